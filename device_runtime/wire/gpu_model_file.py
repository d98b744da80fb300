"""A whole model for a GPU: its kernels, its parameters, its memory and its steps, as the runtime loads them.

A msgpack map of the version and the fields of GpuModel, each message in it a map of its own fields:

    {"version": 2, "module": {...}, "parameters": bytes,
     "arena_bytes": n, "inputs": [n, ...], "outputs": [n, ...],
     "steps": [{"symbol": kernel of the module, "buffers": [BUFFER, ...]}, the last one is written
               {"source": BUFFER, "target": BUFFER},                       a copy of bytes
               {"count": n, "condition": BUFFER or nil, "steps": [...]},   a loop
               {"condition": BUFFER, "then": [...], "otherwise": [...]},   a choice
               ...]}

Steps run one after the other. A condition is one byte, 0 for false; a loop reads its own before every run.
The buffers of kernels and conditions begin at multiples of GPU_ALIGNMENT, those of copies anywhere.
What a step writes overlaps nothing that it reads: OpenCL leaves undefined what a kernel finds in overlapping
parts of a buffer. Start at GpuModel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence, Tuple, Union

import msgpack

from device_runtime.wire.entries import Message, between, entry, one_of, to_plain, unexpected
from device_runtime.wire.frames import ProtocolError
from device_runtime.wire.gpu_module import GpuModule, unpacked

GPU_MODEL_VERSION = 2
GPU_ALIGNMENT = 512  # bytes; the largest that a device wants of a part of a buffer
KINDS = ("input", "output", "parameter", "arena")
WRITTEN = ("output", "arena")
MAX_BYTES = 1 << 40
MAX_RUNS = (1 << 31) - 1
MAX_DEPTH = 16  # loops and choices around a step; exported models have three at most


@dataclass(frozen=True)
class GpuBuffer(Message):
    """`size_bytes` of the graph's input or output number `at`, from byte `offset` on, or of the parameters or
    the arena, from byte `at + offset` on. In run i of a loop around the step they lie i * stride bytes
    further on; `strides` are those of the loops around, the outermost first; left-out ones are 0."""

    kind: str = entry(one_of(KINDS))
    at: int = entry(between(0, MAX_BYTES))
    size_bytes: int = entry(between(1, MAX_BYTES))
    offset: int = entry(between(0, MAX_BYTES), default=0)
    strides: Tuple[int, ...] = entry(between(-MAX_BYTES, MAX_BYTES), default=(), most=MAX_DEPTH)

    @property
    def first(self) -> int:
        """The byte of its memory at which it begins in the first runs of all loops."""
        return self.offset if self.kind in ("input", "output") else self.at + self.offset

    def begin(self, runs: Sequence[int]) -> int:
        """The byte of its memory at which it begins in such runs of the loops around."""
        return self.first + sum(stride * run for stride, run in zip(self.strides, runs))


@dataclass(frozen=True)
class GpuCall(Message):
    """A kernel, which writes the last buffer."""

    symbol: str = entry()
    buffers: Tuple[GpuBuffer, ...] = entry(least=1)


@dataclass(frozen=True)
class GpuCopy(Message):
    """Bytes from one buffer to another of equal size."""

    source: GpuBuffer = entry()
    target: GpuBuffer = entry()


@dataclass(frozen=True)
class GpuLoop(Message):
    """Steps `count` times; no run begins where the condition is false."""

    count: int = entry(between(1, MAX_RUNS))
    condition: Optional[GpuBuffer] = entry()
    steps: Tuple[GpuStep, ...] = entry()


@dataclass(frozen=True)
class GpuChoice(Message):
    """The steps `then` where the condition is true, `otherwise` where it is false."""

    condition: GpuBuffer = entry()
    then: Tuple[GpuStep, ...] = entry()
    otherwise: Tuple[GpuStep, ...] = entry()


GpuStep = Union[GpuCall, GpuCopy, GpuLoop, GpuChoice]
INNER = ("steps", "then", "otherwise")  # entries of a step that hold steps


@dataclass(frozen=True)
class GpuModel(Message):
    """`inputs` and `outputs` are sizes in bytes."""

    module: GpuModule = entry()
    parameters: bytes = entry()
    arena_bytes: int = entry(between(0, MAX_BYTES))
    inputs: Tuple[int, ...] = entry(between(0, MAX_BYTES))
    outputs: Tuple[int, ...] = entry(between(0, MAX_BYTES))
    steps: Tuple[GpuStep, ...] = entry()

    @property
    def scratch_bytes(self) -> int:
        """The largest workspace of a kernel."""
        return max((kernel.workspace_bytes for kernel in self.module.kernels.values()), default=0)

    @property
    def threads_per_block(self) -> int:
        """The most threads that a launch wants in one block."""
        launches = [launch for kernel in self.module.kernels.values() for launch in kernel.launches]
        return max(x * y * z for x, y, z in (launch.threads for launch in launches))

    def to_bytes(self) -> bytes:
        """As msgpack: the same model gives the same bytes."""
        return bytes(msgpack.packb({"version": GPU_MODEL_VERSION, **to_plain(self)}, use_bin_type=True))

    @classmethod
    def from_bytes(cls, data: bytes) -> GpuModel:
        """The checked model; ProtocolError names what was expected and what was found."""
        plain = unpacked(data, "GPU model", GPU_MODEL_VERSION)
        _check_depth(plain.get("steps"), 0)
        model = cls.from_plain(plain)
        model.module.check()
        model.check()
        return model

    def check(self) -> None:
        """Raise ProtocolError where a step names a kernel or a place that is not there."""
        self._check_steps(self.steps, (), "step ")

    def _check_steps(self, steps: Sequence[GpuStep], counts: Tuple[int, ...], where: str) -> None:
        """`counts` are those of the loops around, the outermost first."""
        for number, step in enumerate(steps):
            here = f"{where}{number}"
            if isinstance(step, GpuCall):
                self._check_call(step, counts, here)
            elif isinstance(step, GpuCopy):
                if step.source.size_bytes != step.target.size_bytes:
                    raise _unexpected(here, f"a target of {step.source.size_bytes} bytes", step.target)
                self._check_buffer(step.source, counts, here)
                self._check_buffer(step.target, counts, here, written=True)
            elif isinstance(step, GpuLoop):
                inside = (*counts, step.count)
                if step.condition is not None:
                    self._check_condition(step.condition, inside, here)
                self._check_steps(step.steps, inside, f"{here}.")
            else:
                self._check_condition(step.condition, counts, here)
                self._check_steps(step.then, counts, f"{here}.then.")
                self._check_steps(step.otherwise, counts, f"{here}.otherwise.")

    def _check_call(self, step: GpuCall, counts: Sequence[int], where: str) -> None:
        if step.symbol not in self.module.kernels:
            raise _unexpected(where, "a kernel of the module", step.symbol)
        for buffer in step.buffers:
            self._check_buffer(buffer, counts, where, written=buffer is step.buffers[-1])
            _check_aligned(buffer, where)

    def _check_condition(self, buffer: GpuBuffer, counts: Sequence[int], where: str) -> None:
        self._check_buffer(buffer, counts, where)
        _check_aligned(buffer, where)
        if buffer.size_bytes != 1:
            raise _unexpected(where, "a condition of 1 byte", buffer)

    def _check_buffer(
        self, buffer: GpuBuffer, counts: Sequence[int], where: str, *, written: bool = False
    ) -> None:
        """It lies in its memory in every run of the loops around."""
        if written and buffer.kind not in WRITTEN:
            raise _unexpected(where, f"what is written to be in one of {', '.join(WRITTEN)}", buffer)
        sizes = {"input": self.inputs, "output": self.outputs}.get(buffer.kind)
        if sizes is not None and buffer.at >= len(sizes):
            raise _unexpected(where, f"one of {len(sizes)} {buffer.kind}s", buffer)
        if len(buffer.strides) > len(counts):
            raise _unexpected(where, f"strides of {len(counts)} loops", buffer)
        within = len(self.parameters) if buffer.kind == "parameter" else self.arena_bytes
        whole_bytes = within if sizes is None else sizes[buffer.at]
        moves = [stride * (count - 1) for stride, count in zip(buffer.strides, counts)]
        low = buffer.first + sum(move for move in moves if move < 0)
        high = buffer.first + sum(move for move in moves if move > 0) + buffer.size_bytes
        if low < 0 or high > whole_bytes:
            raise _unexpected(where, f"bytes of {buffer.kind} {buffer.at} within 0 to {whole_bytes}", buffer)


def _check_aligned(buffer: GpuBuffer, where: str) -> None:
    if any(place % GPU_ALIGNMENT for place in (buffer.first, *buffer.strides)):
        raise _unexpected(where, f"places at multiples of {GPU_ALIGNMENT} bytes", buffer)


def _check_depth(steps: Any, depth: int) -> None:
    """Refuse steps that are nested too deep, before they are read by functions that call themselves."""
    for step in steps if isinstance(steps, list) else ():
        for name in INNER if isinstance(step, dict) else ():
            if name in step:
                if depth == MAX_DEPTH:
                    raise _unexpected(
                        "steps", f"at most {MAX_DEPTH} loops and choices in each other", depth + 1
                    )
                _check_depth(step[name], depth + 1)


def _unexpected(where: str, expected: str, found: object) -> ProtocolError:
    return unexpected(f"GPU model: {where}", expected, found)
