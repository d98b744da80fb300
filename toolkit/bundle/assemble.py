"""From a fused graph and one kernel per distinct operator to the plan of a model.

Weights are packed here, ahead of time, each in the order in which its kernel reads it; intermediate results
get their place in the arena; every group becomes one step.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np

from boards.target import Target
from cross.expression.language.tensor import Tensor
from cross.schedule.packing import Packing
from device_runtime.protocol import GPU_ALIGNMENT
from toolkit.bundle.manifest import TensorSpec
from toolkit.bundle.model_plan import ALIGNMENT, BufferRef, ModelPlan, PlannedKernel, Step, aligned
from toolkit.errors import InputError
from toolkit.model.graph import Array, Graph, Group
from toolkit.model.memory import MemoryPlan, plan_memory


@dataclass(frozen=True, slots=True)
class OperatorKernel:
    """The kernel chosen for an operator; `packings` has one entry per operator input, None: row-major."""

    planned: PlannedKernel
    packings: tuple[Packing | None, ...]


def assemble(graph: Graph, kernels: Mapping[str, OperatorKernel], target: Target) -> ModelPlan:
    """The plan that runs `graph.groups` in order with `kernels` (operator key -> kernel) on `target`.

    Raises:
        InputError: an operator has no kernel, or a kernel wants an input packed that is no constant.
    """
    layers: dict[str, list[str]] = {}
    for group in graph.groups:
        if group.operator.key not in kernels:
            raise InputError(
                f"model {graph.name!r}: group {group.name!r} needs a kernel for the operator "
                f"{group.operator.key} "
                f"({group.operator.name}), found kernels for {len(kernels)} other operators; compile one "
                "for each task"
            )
        layers.setdefault(group.operator.key, []).extend(group.nodes)
    alignment = ALIGNMENT if target.kind == "cpu" else GPU_ALIGNMENT
    memory = plan_memory(graph, alignment)
    parameters = _Parameters(graph, alignment)
    buffers = _buffers(graph, memory)
    steps = tuple(
        _step(group, kernels[group.operator.key], graph, parameters, buffers) for group in graph.groups
    )
    return ModelPlan(
        name=graph.name,
        inputs=tuple(_spec(graph, name) for name in graph.inputs),
        outputs=tuple(_spec(graph, name) for name in graph.outputs),
        kernels=tuple(_named(kernels[key].planned, names) for key, names in layers.items()),
        parameters=bytes(parameters.data),
        arena_bytes=memory.arena_bytes,
        steps=steps,
        threads=target.threads,
        cores=target.cores,
        alignment=alignment,
    )


@dataclass(slots=True)
class _Parameters:
    """The packed weights, each distinct content once, at aligned offsets."""

    graph: Graph
    alignment: int
    data: bytearray = field(default_factory=bytearray)
    _offsets: dict[bytes, int] = field(default_factory=dict)

    def offset(self, name: str, tensor: Tensor, packing: Packing | None) -> int:
        """Byte offset of the constant `name`, packed for the operator input `tensor`."""
        array = self.graph.values[name].data
        assert array is not None
        content = _packed(array, tensor, packing).tobytes()
        digest = hashlib.sha256(content).digest()
        if digest not in self._offsets:
            self._offsets[digest] = len(self.data)
            self.data += content
            self.data += bytes(aligned(len(self.data), self.alignment) - len(self.data))
        return self._offsets[digest]


def _packed(array: Array, tensor: Tensor, packing: Packing | None) -> Array:
    plain = np.ascontiguousarray(array.reshape(tensor.shape), dtype=tensor.dtype)
    return plain if packing is None else packing.apply(plain)


def _buffers(graph: Graph, memory: MemoryPlan) -> dict[str, BufferRef]:
    """Where every computed value and graph input lies; keyed by the value that owns the memory."""
    found = {place.value: BufferRef("arena", place.offset_bytes) for place in memory.placements}
    found |= {name: BufferRef("input", number) for number, name in enumerate(graph.inputs)}
    found |= {graph.root(name): BufferRef("output", number) for number, name in enumerate(graph.outputs)}
    return found


def _step(
    group: Group,
    kernel: OperatorKernel,
    graph: Graph,
    parameters: _Parameters,
    buffers: Mapping[str, BufferRef],
) -> Step:
    operands = zip(group.inputs, group.operator.inputs, kernel.packings, strict=True)
    refs: list[BufferRef] = []
    for name, tensor, packing in operands:
        if graph.values[name].constant:
            refs.append(BufferRef("parameter", parameters.offset(name, tensor, packing)))
        elif packing is None:
            refs.append(buffers[graph.root(name)])
        else:
            raise InputError(
                f"model {graph.name!r}: the kernel of group {group.name!r} wants its input {name!r} packed "
                "ahead of time, "
                "but that value is computed at run time; choose a configuration without that packing"
            )
    refs.append(buffers[group.output])
    return Step(kernel.planned.symbol, tuple(refs), group.name)


def _named(kernel: PlannedKernel, layers: list[str]) -> PlannedKernel:
    provenance = msgspec.structs.replace(kernel.provenance, layers=tuple(layers))
    return replace(kernel, provenance=provenance)


def _spec(graph: Graph, name: str) -> TensorSpec:
    value = graph.values[name]
    layout = "NCHW" if len(value.shape) == 4 else ""
    return TensorSpec(name=name, shape=value.shape, dtype=value.dtype, layout=layout)
