"""The door of the compiler: bound loop nests in, an artifact for the target out.

    artifact = compile([("matmul_0", nest)], target)

A batch of kernels for a CPU becomes one shared object with one linker call; for a GPU, a module of OpenCL C
or of cubins (device_runtime/wire/gpu_module.py). `compile_object` and `link` are its two halves, for builders
that spread the first over processes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from boards.target import Target
from cross.codegen.buffers import workspace_offsets
from cross.codegen.c.gpu_code import gpu_program, with_code
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import compile_ir
from cross.errors import CompileError
from cross.link import DEFAULT_CACHE_DIR, native_objects
from cross.link import link as link_objects
from cross.loopnest.nodes import Buffer, Int, LoopNest
from cross.nvrtc import compile_cubin
from cross.schedule.packing import Packing
from device_runtime.protocol import GpuModule, merged


@dataclass(frozen=True, slots=True)
class Argument:
    """One buffer of a kernel: `shape` is that of the packed array where `packing` is set."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    role: str  # "input" | "constant" | "output"
    packing: Packing | None = None

    @property
    def elements(self) -> int:
        """Number of elements in memory."""
        count = 1
        for extent in self.shape:
            count *= extent
        return count


@dataclass(frozen=True, slots=True)
class Kernel:
    """An exported function with the ABI of cross/native/tfb.h; on a GPU, a kernel of its module."""

    symbol: str
    arguments: tuple[Argument, ...]
    workspace_bytes: int
    flops: int


@dataclass(frozen=True)
class Artifact:
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
    """One artifact with a kernel per (symbol, bound nest).

    Raises:
        CompileError: a nest is not bound, or LLVM or NVRTC refuses its code.
        LinkError: the linker refuses the objects.
    """
    objects = [compile_object(symbol, nest, target) for symbol, nest in nests]
    kernels = [kernel_of(symbol, nest) for symbol, nest in nests]
    return link(objects, kernels, target, cache_dir=cache_dir)


def compile_object(symbol: str, nest: LoopNest, target: Target) -> bytes:
    """One kernel as an ELF object, or as a module of its own for a GPU.

    The code is written as it should run: no optimizer passes, only LLVM's code generator.

    Raises:
        CompileError: the nest is not bound, asks for more than the board has, or LLVM or NVRTC refuses its
            code; NvrtcMissing where a CUDA target needs it.
    """
    if target.kind != "cpu":
        return _gpu_module(symbol, nest, target).to_bytes()
    return compile_ir(llvm_module(symbol, nest, target), target, passes="none")


def _gpu_module(symbol: str, nest: LoopNest, target: Target) -> GpuModule:
    """A module of one kernel: OpenCL C as it is, CUDA C compiled for the target's architecture."""
    program = gpu_program(symbol, nest, target)
    code: str | bytes = program.source
    if target.kind == "cuda":
        assert target.gpu is not None
        code = compile_cubin(program.source, target.gpu.compute_capability)
    return GpuModule(target.kind, {symbol: with_code(program, code)})


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
    if target.kind != "cpu":
        module = merged([GpuModule.from_bytes(item) for item in objects])
        return Artifact(target, module.to_bytes(), tuple(kernels))
    extra = native_objects(target, cache_dir)
    code = link_objects(objects, target, extra_objects=extra, cache_dir=cache_dir)
    return Artifact(target, code, tuple(kernels))


def kernel_of(symbol: str, nest: LoopNest) -> Kernel:
    """What a caller of the kernel must know.

    Raises:
        CompileError: the nest is not bound.
    """
    return Kernel(
        symbol, tuple(_argument(buffer) for buffer in nest.arguments), workspace_offsets(nest)[""], nest.flops
    )


def _argument(buffer: Buffer) -> Argument:
    shape = tuple(extent.value for extent in buffer.shape if isinstance(extent, Int))
    if len(shape) != len(buffer.shape):
        raise CompileError(f"argument {buffer.name} has a shape that is not bound")
    return Argument(buffer.name, shape, buffer.dtype, buffer.role, buffer.packing)
