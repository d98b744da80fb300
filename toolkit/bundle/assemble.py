"""From a fused graph and one kernel per distinct operator to the plan of a model.

Weights are packed here, ahead of time, each in the order in which its kernel reads it; intermediate results
get their place in the arena; every group becomes one step, every loop and choice a step with steps inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from boards.target import Target
from cross.expression.language.tensor import Tensor
from cross.schedule.packing import Packing
from device_runtime.protocol import GPU_ALIGNMENT
from toolkit.bundle.manifest import TensorSpec
from toolkit.bundle.model_plan import (
    BufferRef,
    Choice,
    Copy,
    Loop,
    ModelPlan,
    PlannedKernel,
    PlanStep,
    Step,
    leaves,
)
from toolkit.errors import InputError
from toolkit.model.graph import Array, Choose, Count, Graph, Group, Region, Repeat
from toolkit.model.memory import ALIGNMENT_BYTES, MemoryPlan, aligned, held_values, plan_memory, rows

CACHE_SHARE = 0.5
"""Of the second cache that a loop's weights fill: more are partly pushed out by what else a run touches."""


class OperatorKernel(msgspec.Struct, frozen=True):
    """The kernel chosen for an operator; `packings` has one entry per operator input, None: row-major."""

    planned: PlannedKernel
    packings: tuple[Packing | None, ...]


def assemble(graph: Graph, kernels: Mapping[str, OperatorKernel], target: Target) -> ModelPlan:
    """The plan that runs `graph.steps` in order with `kernels` (operator key -> kernel) on `target`.

    Raises:
        InputError: an operator has no kernel, or a kernel wants an input packed that is no constant.
    """
    layers: dict[str, list[str]] = {}
    for group, _ in graph.every_group():
        if group.operator.key not in kernels:
            raise InputError(
                f"model {graph.name!r}: group {group.name!r} needs a kernel for the operator "
                f"{group.operator.key} ({group.operator.name}), found kernels for {len(kernels)} other "
                "operators; compile one for each task"
            )
        layers.setdefault(group.operator.key, []).extend(group.nodes)
    alignment = ALIGNMENT_BYTES if target.kind == "cpu" else GPU_ALIGNMENT
    memory = plan_memory(graph, alignment)
    parameters = _Parameters(alignment)
    buffers = _arena(memory) | {name: BufferRef("input", number) for number, name in enumerate(graph.inputs)}
    buffers |= {graph.root(name): BufferRef("output", number) for number, name in enumerate(graph.outputs)}
    steps = _Steps(graph, buffers, kernels, parameters, target.l2_bytes).plan()
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


class _Parameters(msgspec.Struct):
    """The packed weights, each distinct content once, at aligned offsets."""

    alignment: int
    data: bytearray = bytearray()
    _offsets: dict[bytes, int] = {}
    _sizes: dict[int, int] = {}

    def offset(self, array: Array) -> int:
        """Byte offset of an array's content."""
        content = array.tobytes()
        digest = hashlib.sha256(content).digest()
        if digest not in self._offsets:
            self._offsets[digest] = len(self.data)
            self._sizes[len(self.data)] = len(content)
            self.data += content
            self.data += bytes(aligned(len(self.data), self.alignment) - len(self.data))
        return self._offsets[digest]

    def size_bytes(self, steps: Sequence[PlanStep]) -> int:
        """Of all that kernels of some steps read."""
        calls = [step for step, _ in leaves(steps) if isinstance(step, Step)]
        read = {ref.at for step in calls for ref in step.buffers if ref.kind == "parameter"}
        return sum(self._sizes[at] for at in read)


def _packed(array: Array, tensor: Tensor, packing: Packing | None) -> Array:
    plain = np.ascontiguousarray(array.reshape(tensor.shape), dtype=tensor.dtype)
    return plain if packing is None else packing.apply(plain)


def _arena(memory: MemoryPlan, base: int = 0) -> dict[str, BufferRef]:
    """Where the values of a plan lie; keyed by the value that owns the memory."""
    return {place.value: BufferRef("arena", base + place.offset_bytes) for place in memory.placements}


class _Steps(msgspec.Struct, frozen=True):
    """Makes the steps of a graph inside `depth` loops.

    `buffers` says where its values lie, `cache_bytes` how much of them a core keeps near.
    """

    graph: Graph
    buffers: Mapping[str, BufferRef]
    kernels: Mapping[str, OperatorKernel]
    parameters: _Parameters
    cache_bytes: int
    depth: int = 0

    def plan(self) -> tuple[PlanStep, ...]:
        """All steps in order."""
        steps: list[PlanStep] = []
        for step in self.graph.steps:
            if isinstance(step, Group):
                steps.append(self._call(step))
            elif isinstance(step.control, Choose):
                steps.append(self._choice(step, step.control))
            else:
                steps += self._loop(step, step.control)
        return tuple(steps)

    def _inside(self, graph: Graph, buffers: Mapping[str, BufferRef], deeper: int) -> _Steps:
        depth = self.depth + deeper
        return _Steps(graph, buffers, self.kernels, self.parameters, self.cache_bytes, depth)

    def _buffer(self, name: str) -> BufferRef:
        """Where a value lies as it is."""
        value = self.graph.values[name]
        if value.data is None:
            return self.buffers[self.graph.root(name)]
        return BufferRef("parameter", self.parameters.offset(np.ascontiguousarray(value.data)))

    def _call(self, group: Group) -> Step:
        kernel = self.kernels[group.operator.key]
        operands = zip(group.inputs, group.operator.inputs, kernel.packings, strict=True)
        refs: list[BufferRef] = []
        for name, tensor, packing in operands:
            data = self.graph.values[name].data
            if data is not None:
                refs.append(BufferRef("parameter", self.parameters.offset(_packed(data, tensor, packing))))
            elif packing is None:
                refs.append(self._buffer(name))
            else:
                raise InputError(
                    f"model {self.graph.name!r}: the kernel of group {group.name!r} wants its input {name!r} "
                    "packed ahead of time, but that value is computed at run time; choose a configuration "
                    "without that packing"
                )
        refs.append(self._buffer(group.output))
        return Step(kernel.planned.symbol, tuple(refs), group.name)

    def _choice(self, region: Region, choose: Choose) -> Choice:
        """The steps of both branches; each writes its outputs where the surrounding graph reads them."""
        base = self.buffers[region.scratch].at if region.scratch in self.buffers else 0
        branches: list[tuple[PlanStep, ...]] = []
        for body in choose.bodies:
            buffers = _arena(plan_memory(body, self.parameters.alignment), base)
            buffers |= {
                own: self._buffer(name) for own, name in zip(body.inputs, region.inputs[1:], strict=True)
            }
            outputs = zip(body.outputs, region.outputs, strict=True)
            buffers |= {body.root(own): self._buffer(name) for own, name in outputs}
            branches.append(self._inside(body, buffers, 0).plan())
        then, otherwise = branches
        return Choice(self._buffer(region.inputs[0]), then, otherwise, region.name)

    def _loop(self, region: Region, repeat: Repeat) -> list[PlanStep]:
        """What is carried lies where the loop's outputs do: copied there before it and after each run."""
        body, alignment = repeat.body, self.parameters.alignment
        held = held_values(repeat, alignment)
        base = self.buffers[region.scratch].at if region.scratch in self.buffers else 0
        buffers = _arena(plan_memory(body, alignment, held), base)

        def copy(source: BufferRef, target: BufferRef, name: str) -> Copy:
            return Copy(source, target, body.values[name].nbytes, region.name)

        def part(whole: BufferRef, name: str, number: int) -> BufferRef:
            backwards = bool(repeat.backwards) and repeat.backwards[number]
            return whole.slice(body.values[name].nbytes, repeat.count, self.depth, backwards)

        begin, first, behind = [], [], []
        for number, (own, name) in enumerate(zip(body.inputs, region.inputs, strict=True)):
            if number < repeat.carried:
                buffers[own] = self._buffer(region.outputs[number])
                begin.append(copy(self._buffer(name), buffers[own], own))
            elif number >= repeat.carried + repeat.scanned:
                buffers[own] = self._buffer(name)
            else:
                found = part(self._buffer(name), own, number - repeat.carried)
                if own in held:
                    first.append(copy(found, buffers[own], own))
                else:
                    buffers[own] = found
        in_place = rows(repeat, alignment)
        for number, name in enumerate(repeat.results[repeat.carried :]):
            whole = self._buffer(region.outputs[repeat.carried + number])
            found = part(whole, name, repeat.scanned + number)
            if in_place.get(body.root(name)) == number:
                buffers[body.root(name)] = found
            else:
                behind.append((name, found))
        carried = zip(repeat.results, body.inputs[: repeat.carried], strict=False)
        behind += [(name, buffers[own]) for name, own in carried]
        steps = self._inside(body, buffers, 1).plan()
        last = [copy(buffers[body.root(name)], target, name) for name, target in behind]
        condition = buffers[body.inputs[0]] if repeat.conditional else None
        alternating = self.parameters.size_bytes(steps) > CACHE_SHARE * self.cache_bytes
        return [*begin, Loop(repeat.count, (*first, *steps, *last), condition, region.name, alternating)]


def _named(kernel: PlannedKernel, layers: list[str]) -> PlannedKernel:
    provenance = replace(kernel.provenance, layers=tuple(layers))
    return replace(kernel, provenance=provenance)


def _spec(graph: Graph, name: str) -> TensorSpec:
    value = graph.values[name]
    layout = "NCHW" if len(value.shape) == 4 else ""
    count = graph.counts.get(name, Count("", 0))
    return TensorSpec(name, value.shape, value.dtype, layout, count.by, count.dimension)
