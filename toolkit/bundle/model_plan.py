"""What a compiled model is made of: kernels, parameters, an arena and the steps in order, a small program.

A `ModelPlan` is data; `build.build` turns it into a shared object or, for a GPU, into a GpuModel. Offsets are
in bytes and multiples of its alignment. The order of the graph's inputs and outputs is the order of
`tfb_model`'s buffers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal

import msgspec

from device_runtime.protocol import DTYPE_BYTES
from toolkit.bundle.manifest import KernelProvenance, TensorSpec
from toolkit.errors import InputError
from toolkit.model.memory import ALIGNMENT_BYTES, aligned

PLAN_VERSION = 2


class BufferRef(msgspec.Struct, frozen=True):
    """One buffer of a step: the graph's input or output number `at`, or the parameter or arena byte `at`.

    It begins `offset` bytes further on, and in run i of a loop around the step i * stride bytes beyond that;
    `strides` are those of the loops around, the outermost first; left-out ones are 0.
    """

    kind: Literal["input", "output", "parameter", "arena"]
    at: int
    offset: int = 0
    strides: tuple[int, ...] = ()

    def slice(self, size_bytes: int, count: int, depth: int, backwards: bool) -> BufferRef:
        """One of `count` slices for each run of the loop number `depth`, if `backwards` the last first."""
        outer = (*self.strides, *(0,) * (depth - len(self.strides)))
        if backwards:
            last = self.offset + (count - 1) * size_bytes
            return BufferRef(self.kind, self.at, last, (*outer, -size_bytes))
        return BufferRef(self.kind, self.at, self.offset, (*outer, size_bytes))


class Step(msgspec.Struct, frozen=True):
    """One kernel call: `buffers` are its inputs in order, then its output (the kernel ABI of cross)."""

    symbol: str
    buffers: tuple[BufferRef, ...]
    layer: str = ""
    """Name of the model's node (or fused group), for readers."""


class Copy(msgspec.Struct, frozen=True):
    """The bytes of one buffer to another; they do not overlap."""

    source: BufferRef
    target: BufferRef
    size_bytes: int
    layer: str = ""


class Loop(msgspec.Struct, frozen=True):
    """The steps `count` times; with a `condition`, a bool, no time begins once it is false.

    `alternating`: every other time the kernels begin with what they read last, which caches still hold.
    """

    count: int
    steps: tuple[PlanStep, ...]
    condition: BufferRef | None = None
    layer: str = ""
    alternating: bool = False


class Choice(msgspec.Struct, frozen=True):
    """Some steps where the `condition`, a bool, holds, and others where not."""

    condition: BufferRef
    then: tuple[PlanStep, ...]
    otherwise: tuple[PlanStep, ...]
    layer: str = ""


PlanStep = Step | Copy | Loop | Choice


def leaves(
    steps: Iterable[PlanStep], counts: tuple[int, ...] = ()
) -> Iterator[tuple[Step | Copy, tuple[int, ...]]]:
    """Every kernel call and copy, with the counts of the loops around it, the outermost first."""
    for step in steps:
        match step:
            case Step() | Copy():
                yield step, counts
            case Loop(count, inner):
                yield from leaves(inner, (*counts, count))
            case Choice(_, then, otherwise):
                yield from leaves((*then, *otherwise), counts)


class PlannedKernel(msgspec.Struct, frozen=True):
    """One compiled kernel: `code` is a relocatable ELF object that defines `provenance.symbol`, or for a GPU
    a GpuModule with that one kernel; `argument_bytes` are the sizes of what it is called with (GPUs only),
    `local_bytes` what it keeps on the stack of each thread (CPUs only)."""

    code: bytes
    workspace_bytes: int
    provenance: KernelProvenance
    argument_bytes: tuple[int, ...] = ()
    local_bytes: int = 0

    @property
    def symbol(self) -> str:
        return self.provenance.symbol


class ModelPlan(msgspec.Struct, frozen=True):
    """A whole model, ready to be linked for one target."""

    name: str
    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    kernels: tuple[PlannedKernel, ...]
    parameters: bytes
    """All weights, each packed as its kernel expects, at the offsets that the steps name."""
    arena_bytes: int
    """Size of the one allocation that all intermediate results share."""
    steps: tuple[PlanStep, ...]
    threads: int = 1
    cores: tuple[int, ...] = ()
    """Cores the threads are pinned to; empty: not pinned."""
    alignment: int = ALIGNMENT_BYTES

    @property
    def scratch_bytes(self) -> int:
        """Largest kernel workspace, rounded up."""
        return aligned(max((kernel.workspace_bytes for kernel in self.kernels), default=0), self.alignment)

    @property
    def workspace_bytes(self) -> int:
        """What `tfb_model` needs as its workspace: the arena, then the kernels' scratch."""
        return aligned(self.arena_bytes, self.alignment) + self.scratch_bytes


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
    written: set[tuple[str, int]] = set()
    for number, (step, counts) in enumerate(leaves(plan.steps)):
        symbol = step.symbol if isinstance(step, Step) else "copy"
        where = f"plan of {plan.name!r}, step {number} ({step.layer or symbol})"
        if isinstance(step, Step) and step.symbol not in symbols:
            raise InputError(f"{where} calls {step.symbol!r}, which no kernel of the plan defines")
        refs = step.buffers if isinstance(step, Step) else (step.source, step.target)
        for ref in refs:
            _check_buffer(plan, where, ref, counts, isinstance(step, Step))
        written |= {(ref.kind, ref.at) for ref in refs[-1:]}
    for number, spec in enumerate(plan.outputs):
        if ("output", number) not in written and spec.size_bytes:
            raise InputError(f"plan of {plan.name!r}: no step writes output {number} ({spec.name!r})")


def _check_buffer(plan: ModelPlan, where: str, ref: BufferRef, counts: Sequence[int], kernel: bool) -> None:
    """A kernel's buffers are aligned in every run of the loops around it, and all lie within their memory."""
    specs = {"input": plan.inputs, "output": plan.outputs}.get(ref.kind)
    limit = (
        len(specs)
        if specs is not None
        else {"parameter": len(plan.parameters)}.get(ref.kind, plan.arena_bytes)
    )
    if not 0 <= ref.at < limit:
        raise InputError(f"{where}: {ref.kind} {ref.at} is outside 0..{limit - 1}")
    start, size = (0, specs[ref.at].size_bytes) if specs is not None else (ref.at, limit)
    moves = [stride * (count - 1) for stride, count in zip(ref.strides, counts, strict=False)]
    first = start + ref.offset + sum(move for move in moves if move < 0)
    last = start + ref.offset + sum(move for move in moves if move > 0)
    if first < 0 or last >= max(size, 1):
        raise InputError(f"{where}: bytes {first} to {last} of {ref.kind} {ref.at} are outside 0..{size - 1}")
    for offset in (start + ref.offset, *ref.strides):
        if kernel and offset % plan.alignment:
            raise InputError(
                f"{where}: {ref.kind} offset {offset} is not a multiple of {plan.alignment} bytes"
            )


def document(plan: ModelPlan) -> bytes:
    """The graph and memory plan as canonical JSON, the form that a bundle carries for readers."""
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
        "steps": [_described(step) for step in plan.steps],
    }
    return msgspec.json.encode(content, order="sorted")


def _described(step: PlanStep) -> dict[str, Any]:
    """A step for readers: a kernel's has a "symbol", a copy's "bytes", a loop's a "count"."""
    described: dict[str, Any] = {"layer": step.layer}
    match step:
        case Step(symbol, buffers):
            described |= {"symbol": symbol, "buffers": [_place(ref) for ref in buffers]}
        case Copy(source, target, size_bytes):
            described |= {"bytes": size_bytes, "buffers": [_place(source), _place(target)]}
        case Loop(count, steps, condition):
            described |= {"count": count, "steps": [_described(item) for item in steps]}
            described |= {"condition": None if condition is None else _place(condition)}
        case Choice(condition, then, otherwise):
            described |= {"condition": _place(condition)}
            described |= {"then": [_described(item) for item in then]}
            described |= {"otherwise": [_described(item) for item in otherwise]}
    return described


def described_leaves(steps: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """The kernel calls and copies of a plan's document, in the order of `leaves`."""
    for step in steps:
        inner = [step[name] for name in ("steps", "then", "otherwise") if name in step]
        for part in inner:
            yield from described_leaves(part)
        if not inner:
            yield step


def _place(ref: BufferRef) -> list[object]:
    moved = [ref.offset, list(ref.strides)] if ref.offset or ref.strides else []
    return [ref.kind, ref.at, *moved]
