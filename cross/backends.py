"""What depends on the kind of a target when its code is made: one Backend per kind, from `backend_of`.

A further language for GPUs is a Dialect (codegen/c) and its line in codegen/c/gpu_code.py.
"""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path

import msgspec
from msgspec.structs import replace

from boards.target import Target
from cross.codegen.c.gpu_code import gpu_module
from cross.codegen.llvm.module import Caller, caller_of, callers_module, llvm_module, piece_module, pieces
from cross.codegen.llvm.objects import compile_ir
from cross.codegen.llvm.piece import Piece
from cross.inspection.fingerprint import code_hash
from cross.link import link, native_objects
from cross.loopnest.nodes import LoopNest
from device_runtime.protocol import GpuModule, merged

Unit = LoopNest | Piece | tuple[Caller, ...]
"""What is compiled to one object: a kernel, a part of kernels, or the functions that call such parts."""


class Split(msgspec.Struct, frozen=True):
    """A kernel in units by name, and what calls them where none of them is the kernel itself."""

    symbol: str
    units: Mapping[str, Unit]
    caller: Caller | None = None


class HashedOnce:
    """A key of several values; its hash, for which whole nests are walked, is computed once."""

    __slots__ = ("_hash", "_parts")

    def __init__(self, *parts: Hashable) -> None:
        self._parts = parts
        self._hash = hash(parts)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, HashedOnce) and self._hash == other._hash and self._parts == other._parts


class PieceNames:
    """Names for pieces, one for equal ones, and which of them was asked for last."""

    def __init__(self) -> None:
        self._names: dict[HashedOnce, str] = {}
        self._given = 0

    def of(self, piece: Piece) -> str:
        """The name of an equal piece, or a new one."""
        key = HashedOnce(piece)
        name = self._names.pop(key, "")
        if not name:
            name, self._given = f"tfb_piece{self._given}", self._given + 1
        self._names[key] = name
        return name

    def newest(self, most: int) -> set[str]:
        """So many names that were asked for last; all others are forgotten."""
        for key in list(self._names)[: max(0, len(self._names) - most)]:
            del self._names[key]
        return set(self._names.values())


class Backend(ABC):
    """From one bound nest to an object, and from a batch's objects to what a board loads.

    A nest, or what `split` makes of it, is a unit: what is compiled to one object.
    """

    @abstractmethod
    def object_of(self, symbol: str, unit: Unit, target: Target) -> bytes:
        """The code of one unit under its name. Raises CompileError."""

    @abstractmethod
    def split(self, symbol: str, nest: LoopNest, target: Target, names: PieceNames) -> Split:
        """A kernel in units that other kernels can share. Raises CompileError."""

    @abstractmethod
    def linked(self, objects: Sequence[bytes], target: Target, cache_dir: Path) -> bytes:
        """One artifact of several objects. Raises LinkError."""

    @abstractmethod
    def fingerprint(self, split: Split, objects: Sequence[bytes]) -> str:
        """SHA-256 in hex, equal for kernels whose objects do the same; no name counts."""


class CpuBackend(Backend):
    """LLVM text to ELF objects, linked with the native code. The text is written as it should run: LLVM's
    passes are off, only its code generator runs."""

    def object_of(self, symbol: str, unit: Unit, target: Target) -> bytes:
        match unit:
            case LoopNest():
                text = llvm_module(symbol, unit, target)
            case Piece():
                text = piece_module(symbol, unit, target)
            case _:
                text = callers_module(unit)
        return compile_ir(text, target)

    def split(self, symbol: str, nest: LoopNest, target: Target, names: PieceNames) -> Split:
        found = pieces(nest, target)
        own = [names.of(piece) for piece in found]
        units = dict(zip(own, found, strict=True))
        return Split(symbol, units, caller_of(symbol, nest, found, own))

    def linked(self, objects: Sequence[bytes], target: Target, cache_dir: Path) -> bytes:
        return link(objects, target, extra_objects=native_objects(target, cache_dir), cache_dir=cache_dir)

    def fingerprint(self, split: Split, objects: Sequence[bytes]) -> str:
        assert split.caller is not None
        codes = {name: code_hash(code, name) for name, code in zip(split.units, objects, strict=True)}
        calls = [replace(call, region=codes[call.region]) for call in split.caller.calls]
        return hashlib.sha256(repr(calls).encode()).hexdigest()


class GpuBackend(Backend):
    """C text, compiled here where its dialect can be, to a GpuModule for each kernel; merged into one."""

    def object_of(self, symbol: str, unit: Unit, target: Target) -> bytes:
        assert isinstance(unit, LoopNest)
        return gpu_module(symbol, unit, target).to_bytes()

    def split(self, symbol: str, nest: LoopNest, target: Target, names: PieceNames) -> Split:
        return Split(symbol, {symbol: nest})

    def linked(self, objects: Sequence[bytes], target: Target, cache_dir: Path) -> bytes:
        return merged([GpuModule.from_bytes(item) for item in objects]).to_bytes()

    def fingerprint(self, split: Split, objects: Sequence[bytes]) -> str:
        (code,) = objects
        kernel = GpuModule.from_bytes(code).kernels[split.symbol]
        program = kernel.code if isinstance(kernel.code, bytes) else kernel.code.encode()
        launches = repr((kernel.workspace_bytes, kernel.launches)).encode()
        return hashlib.sha256((program + launches).replace(split.symbol.encode(), b"kernel")).hexdigest()


_CPU, _GPU = CpuBackend(), GpuBackend()


def backend_of(target: Target) -> Backend:
    """The backend for the kind of a target; which language a GPU's is, `gpu_module` looks up."""
    return _CPU if target.gpu is None else _GPU
