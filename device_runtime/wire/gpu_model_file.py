"""A whole model for a GPU: its kernels, its parameters, its memory and its steps, as the runtime loads them.

A msgpack map of the version and the fields of GpuModel, where "module" is the GpuModule's bytes and "steps"
is [[symbol, [[kind, at, size_bytes], ...]], ...]. A step calls a kernel with buffers of which `kind` says
where they are: number `at` of the graph's inputs or outputs, or `size_bytes` from byte `at` of the parameters
or the arena on, a multiple of GPU_ALIGNMENT. What a step writes overlaps nothing that it reads: OpenCL leaves
undefined what a kernel finds in overlapping parts of a buffer. Start at GpuModel.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Tuple

import msgpack

from device_runtime.wire.entries import between, checked, take, unexpected
from device_runtime.wire.frames import ProtocolError
from device_runtime.wire.gpu_module import GpuModule, unpacked

GPU_MODEL_VERSION = 1
GPU_ALIGNMENT = 512  # bytes; the largest that a device wants of a part of a buffer
KINDS = ("input", "output", "parameter", "arena")
MAX_BYTES = 1 << 40

GpuBuffer = Tuple[str, int, int]
GpuStep = Tuple[str, Tuple[GpuBuffer, ...]]


@dataclass(frozen=True)
class GpuModel:
    """`inputs` and `outputs` are sizes in bytes; a step's last buffer is the one that it writes."""

    module: GpuModule
    parameters: bytes
    arena_bytes: int
    inputs: Tuple[int, ...]
    outputs: Tuple[int, ...]
    steps: Tuple[GpuStep, ...]

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
        plain = {entry.name: getattr(self, entry.name) for entry in dataclasses.fields(self)}
        plain["module"] = self.module.to_bytes()
        packed: bytes = msgpack.packb({"version": GPU_MODEL_VERSION, **plain}, use_bin_type=True)
        return packed

    @classmethod
    def from_bytes(cls, data: bytes) -> "GpuModel":
        """The checked model; ProtocolError names what was expected and what was found."""
        plain = unpacked(data, "GPU model", GPU_MODEL_VERSION)
        names = {entry.name for entry in dataclasses.fields(cls)}
        if set(plain) != names:
            raise _unexpected("entries", ", ".join(sorted(names)), sorted(map(str, plain)))
        model = cls(
            module=GpuModule.from_bytes(take(plain, "module", bytes)),
            parameters=take(plain, "parameters", bytes),
            arena_bytes=_size(plain["arena_bytes"], "arena_bytes"),
            inputs=tuple(_size(size, "inputs") for size in take(plain, "inputs", list)),
            outputs=tuple(_size(size, "outputs") for size in take(plain, "outputs", list)),
            steps=tuple(_step(step) for step in take(plain, "steps", list)),
        )
        model.check()
        return model

    def check(self) -> None:
        """Raise ProtocolError where a step names a kernel or a place that is not there."""
        for number, (symbol, buffers) in enumerate(self.steps):
            where = f"step {number}"
            if symbol not in self.module.kernels:
                raise _unexpected(where, "a kernel of the module", symbol)
            for buffer in buffers:
                self._check_buffer(where, buffer)

    def _check_buffer(self, where: str, buffer: GpuBuffer) -> None:
        kind, at, size_bytes = buffer
        if kind in ("input", "output"):
            sizes = self.inputs if kind == "input" else self.outputs
            if at >= len(sizes) or sizes[at] != size_bytes:
                raise _unexpected(where, f"one of the {kind}s, of {sizes} bytes", buffer)
            return
        whole_bytes = len(self.parameters) if kind == "parameter" else self.arena_bytes
        if at % GPU_ALIGNMENT or size_bytes < 1 or at + size_bytes > whole_bytes:
            expected = f"{kind} from a multiple of {GPU_ALIGNMENT} to at most {whole_bytes}"
            raise _unexpected(where, expected, buffer)


def _step(plain: object) -> GpuStep:
    if not isinstance(plain, list) or len(plain) != 2 or not isinstance(plain[0], str):
        raise _unexpected("step", "a symbol and buffers", plain)
    if not isinstance(plain[1], list):
        raise _unexpected("step", "a list of buffers", plain[1])
    return plain[0], tuple(_buffer(buffer) for buffer in plain[1])


def _buffer(plain: object) -> GpuBuffer:
    if not isinstance(plain, list) or len(plain) != 3 or plain[0] not in KINDS:
        raise _unexpected("buffer", f"one of {', '.join(KINDS)}, a place and a size", plain)
    return plain[0], _size(plain[1], plain[0]), _size(plain[2], plain[0])


def _size(value: object, name: str) -> int:
    size: int = checked(value, int, between(0, MAX_BYTES), f"'{name}'")
    return size


def _unexpected(where: str, expected: str, found: object) -> ProtocolError:
    return unexpected(f"GPU model: {where}", expected, found)
