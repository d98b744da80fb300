"""What depends on the kind of a target when its code is made: one Backend per kind, from `backend_of`.

A further language for GPUs is a Dialect (codegen/c) and its line in codegen/c/gpu_code.py.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path

from boards.target import Target
from cross.codegen.c.gpu_code import gpu_module
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import compile_ir
from cross.inspection.fingerprint import code_hash
from cross.link import link, native_objects
from cross.loopnest.nodes import LoopNest
from device_runtime.protocol import GpuModule, merged


class Backend(ABC):
    """From one bound nest to an object, and from a batch's objects to what a board loads."""

    @abstractmethod
    def object_of(self, symbol: str, nest: LoopNest, target: Target) -> bytes:
        """The code of one kernel. Raises CompileError."""

    @abstractmethod
    def linked(self, objects: Sequence[bytes], target: Target, cache_dir: Path) -> bytes:
        """One artifact of several objects. Raises LinkError."""

    @abstractmethod
    def fingerprint(self, code: bytes, symbol: str) -> str:
        """SHA-256 in hex, equal for objects that do the same; the kernel's name does not count."""


class CpuBackend(Backend):
    """LLVM text to ELF objects, linked with the native code. The text is written as it should run: LLVM's
    passes are off, only its code generator runs."""

    def object_of(self, symbol: str, nest: LoopNest, target: Target) -> bytes:
        return compile_ir(llvm_module(symbol, nest, target), target)

    def linked(self, objects: Sequence[bytes], target: Target, cache_dir: Path) -> bytes:
        return link(objects, target, extra_objects=native_objects(target, cache_dir), cache_dir=cache_dir)

    def fingerprint(self, code: bytes, symbol: str) -> str:
        return code_hash(code, symbol)


class GpuBackend(Backend):
    """C text, compiled here where its dialect can be, to a GpuModule for each kernel; merged into one."""

    def object_of(self, symbol: str, nest: LoopNest, target: Target) -> bytes:
        return gpu_module(symbol, nest, target).to_bytes()

    def linked(self, objects: Sequence[bytes], target: Target, cache_dir: Path) -> bytes:
        return merged([GpuModule.from_bytes(item) for item in objects]).to_bytes()

    def fingerprint(self, code: bytes, symbol: str) -> str:
        kernel = GpuModule.from_bytes(code).kernels[symbol]
        program = kernel.code if isinstance(kernel.code, bytes) else kernel.code.encode()
        launches = repr((kernel.workspace_bytes, kernel.launches)).encode()
        return hashlib.sha256((program + launches).replace(symbol.encode(), b"kernel")).hexdigest()


_CPU, _GPU = CpuBackend(), GpuBackend()


def backend_of(target: Target) -> Backend:
    """The backend for the kind of a target; which language a GPU's is, `gpu_module` looks up."""
    return _CPU if target.gpu is None else _GPU
