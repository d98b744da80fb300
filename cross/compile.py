"""The door of the compiler: bound loop nests in, an artifact for the target out.

    artifact = compile([("matmul_0", nest)], target)

A batch of kernels for a CPU becomes one shared object with one linker call; for a GPU, a module of OpenCL C
or of cubins (device_runtime/wire/gpu_module.py). `compile_object` and `link` are its two halves, for builders
that spread the first over processes; `Backend.split` is for those that compile what kernels share once.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import msgspec

from boards.target import Target
from cross.backends import PieceNames, Unit, backend_of
from cross.codegen.buffers import local_bytes, workspace_offsets
from cross.codegen.llvm.module import CALLERS
from cross.errors import CompileError
from cross.expression.language.terms import Int
from cross.link import DEFAULT_CACHE_DIR
from cross.loopnest.nodes import Buffer, LoopNest
from cross.schedule.packing import Packing


class Argument(msgspec.Struct, frozen=True):
    """One buffer of a kernel: `shape` is that of the packed array where `packing` is set."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str  # "input" | "constant" | "output"
    packing: Packing | None = None

    @property
    def elements(self) -> int:
        """Number of elements in memory."""
        return math.prod(self.shape)


class Kernel(msgspec.Struct, frozen=True):
    """An exported function with the ABI of cross/native/tfb.h; on a GPU, a kernel of its module."""

    symbol: str
    arguments: tuple[Argument, ...]
    workspace_bytes: int
    local_bytes: int
    """What it keeps on the stack of each thread, but for registers that do not fit; on a CPU."""
    flops: int


class Artifact(msgspec.Struct, frozen=True, dict=True):
    """Compiled code with no live handle, and its kernels: an ELF shared object, or a GpuModule's bytes."""

    target: Target
    code: bytes
    kernels: tuple[Kernel, ...]

    @cached_property
    def sha256(self) -> str:
        """Content hash of the code, in hex."""
        return hashlib.sha256(self.code).hexdigest()


def compile(
    nests: Sequence[tuple[str, LoopNest]], target: Target, *, cache_dir: Path = DEFAULT_CACHE_DIR
) -> Artifact:
    """One artifact with a kernel per (symbol, bound nest); pieces that kernels share are in it once.

    Raises:
        CompileError: a nest is not bound, or LLVM or NVRTC refuses its code.
        ValueError: two kernels have one symbol.
        LinkError: the linker refuses the objects.
    """
    names = PieceNames()
    splits = [
        backend_of(target).split(symbol, nest, target, names) for symbol, nest in by_symbol(nests).items()
    ]
    units = {name: unit for split in splits for name, unit in split.units.items()}
    if callers := tuple(split.caller for split in splits if split.caller is not None):
        units[CALLERS] = callers
    objects = [compile_object(name, unit, target) for name, unit in units.items()]
    kernels = [kernel_of(symbol, nest) for symbol, nest in nests]
    return link(objects, kernels, target, cache_dir=cache_dir)


def by_symbol(nests: Sequence[tuple[str, LoopNest]]) -> dict[str, LoopNest]:
    """The nests of a batch, in order. Raises ValueError where two kernels have one symbol."""
    found = dict(nests)
    if len(found) < len(nests):
        raise ValueError("two kernels of a batch have one symbol")
    return found


def compile_object(symbol: str, unit: Unit, target: Target) -> bytes:
    """One kernel, or another unit of backends.py, as an ELF object; a kernel of a GPU as a module of its own.

    Raises:
        CompileError: a nest is not bound, asks for more than the board has, or LLVM or NVRTC refuses its
            code; NvrtcMissing where a CUDA target needs it.
    """
    return backend_of(target).object_of(symbol, unit, target)


def link(
    objects: Sequence[bytes],
    kernels: Sequence[Kernel],
    target: Target,
    *,
    cache_dir: Path = DEFAULT_CACHE_DIR,
) -> Artifact:
    """Objects and the native code as one shared object; modules of a GPU as one module.

    Raises:
        LinkError: the linker refuses the objects.
    """
    return Artifact(target, backend_of(target).linked(objects, target, cache_dir), tuple(kernels))


def kernel_of(symbol: str, nest: LoopNest) -> Kernel:
    """What a caller of the kernel must know.

    Raises:
        CompileError: the nest is not bound.
    """
    arguments = tuple(_argument(buffer) for buffer in nest.arguments)
    return Kernel(symbol, arguments, workspace_offsets(nest)[""], local_bytes(nest), nest.flops)


def _argument(buffer: Buffer) -> Argument:
    shape = tuple(extent.value for extent in buffer.shape if isinstance(extent, Int))
    if len(shape) != len(buffer.shape):
        raise CompileError(f"argument {buffer.name} has a shape that is not bound")
    return Argument(buffer.name, shape, buffer.dtype, buffer.role, buffer.packing)
