"""What a compiled model is made of: kernels, parameters, an arena and the steps in order.

A `ModelPlan` is data; `build.build` turns it into a shared object or, for a GPU, into a GpuModel. Offsets are
in bytes and multiples of its alignment. The order of the graph's inputs and outputs is the order of
`tfb_model`'s buffers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from device_runtime.protocol import DTYPE_BYTES
from toolkit.bundle.manifest import KernelProvenance, TensorSpec
from toolkit.errors import InputError

ALIGNMENT = 64
"""Of a CPU's buffers."""

PLAN_VERSION = 1


@dataclass(frozen=True, slots=True)
class BufferRef:
    """One buffer of a step: the graph's input or output number `at`, or the parameter or arena byte `at`."""

    kind: Literal["input", "output", "parameter", "arena"]
    at: int


@dataclass(frozen=True, slots=True)
class Step:
    """One kernel call: `buffers` are its inputs in order, then its output (the kernel ABI of cross)."""

    symbol: str
    buffers: tuple[BufferRef, ...]
    layer: str = ""
    """Name of the model's node (or fused group), for readers."""


@dataclass(frozen=True, slots=True)
class PlannedKernel:
    """One compiled kernel: `code` is a relocatable ELF object that defines `provenance.symbol`, or for a GPU
    a GpuModule with that one kernel; `argument_bytes` are the sizes of what it is called with (GPUs only)."""

    code: bytes
    workspace_bytes: int
    provenance: KernelProvenance
    argument_bytes: tuple[int, ...] = ()

    @property
    def symbol(self) -> str:
        return self.provenance.symbol


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """A whole model, ready to be linked for one target."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kernels: tuple[PlannedKernel, ...]
    parameters: bytes
    """All weights, each packed as its kernel expects, at the offsets that the steps name."""
    arena_bytes: int
    """Size of the one allocation that all intermediate results share."""
    steps: tuple[Step, ...]
    threads: int = 1
    cores: tuple[int, ...] = ()
    """Cores the threads are pinned to; empty: not pinned."""
    alignment: int = ALIGNMENT

    @property
    def scratch_bytes(self) -> int:
        """Largest kernel workspace, rounded up."""
        return aligned(max((kernel.workspace_bytes for kernel in self.kernels), default=0), self.alignment)

    @property
    def workspace_bytes(self) -> int:
        """What `tfb_model` needs as its workspace: the arena, then the kernels' scratch."""
        return aligned(self.arena_bytes, self.alignment) + self.scratch_bytes


def aligned(size_bytes: int, alignment: int = ALIGNMENT) -> int:
    """`size_bytes` rounded up to a multiple of `alignment`."""
    return -(-size_bytes // alignment) * alignment


def check(plan: ModelPlan) -> None:
    """Raise InputError, naming the step and buffer, when the plan cannot be a library."""
    symbols = [kernel.symbol for kernel in plan.kernels]
    if len(symbols) != len(set(symbols)):
        raise InputError(f"plan of {plan.name!r}: two kernels have the same symbol: {sorted(symbols)}")
    if not plan.steps:
        raise InputError(f"plan of {plan.name!r} has no steps; expected at least one kernel call")
    for spec in (*plan.inputs, *plan.outputs):
        if spec.dtype not in DTYPE_BYTES:
            raise InputError(
                f"plan of {plan.name!r}: tensor {spec.name!r} has dtype {spec.dtype!r}; "
                f"expected one of {', '.join(sorted(DTYPE_BYTES))}"
            )
    limits = {
        "input": len(plan.inputs),
        "output": len(plan.outputs),
        "parameter": len(plan.parameters),
        "arena": plan.arena_bytes,
    }
    for number, step in enumerate(plan.steps):
        where = f"plan of {plan.name!r}, step {number} ({step.layer or step.symbol})"
        if step.symbol not in symbols:
            raise InputError(f"{where} calls {step.symbol!r}, which no kernel of the plan defines")
        for ref in step.buffers:
            if not 0 <= ref.at < limits[ref.kind]:
                raise InputError(f"{where}: {ref.kind} {ref.at} is outside 0..{limits[ref.kind] - 1}")
            if ref.kind in ("parameter", "arena") and ref.at % plan.alignment:
                raise InputError(
                    f"{where}: {ref.kind} offset {ref.at} is not a multiple of {plan.alignment} bytes"
                )
    written = {step.buffers[-1] for step in plan.steps if step.buffers}
    for number, spec in enumerate(plan.outputs):
        if BufferRef("output", number) not in written:
            raise InputError(f"plan of {plan.name!r}: no step writes output {number} ({spec.name!r})")


def document(plan: ModelPlan) -> bytes:
    """The graph and memory plan as canonical JSON, the form that a bundle carries for readers."""
    steps: list[dict[str, Any]] = [
        {"symbol": step.symbol, "layer": step.layer, "buffers": [[ref.kind, ref.at] for ref in step.buffers]}
        for step in plan.steps
    ]
    content = {
        "plan_version": PLAN_VERSION,
        "name": plan.name,
        "inputs": plan.inputs,
        "outputs": plan.outputs,
        "arena_bytes": plan.arena_bytes,
        "scratch_bytes": plan.scratch_bytes,
        "parameters_bytes": len(plan.parameters),
        "threads": plan.threads,
        "cores": plan.cores,
        "steps": steps,
    }
    return msgspec.json.encode(content, order="sorted")
