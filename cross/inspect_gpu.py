"""What can be said of a GPU kernel without running it: its launches against the limits of the board.

    for launch in inspect_gpu("conv_0", nest, target): launch.threads, launch.shared_bytes, launch.registers

Registers are NVRTC's, read from the cubin: OpenCL's compilers are on the board. What a thread keeps for
itself by the source (`private_bytes`: sums, copies) is known for every language; addresses and operands on
their way come on top of it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from boards.target import Target
from cross.codegen.c_registers import own_dimensions
from cross.codegen.gpu_code import gpu_program
from cross.codegen.llvm_region import size_bytes
from cross.loopnest.nodes import Allocate, Block, Buffer, For, Int, LoopNest, Statement
from cross.loopnest.threads import THREAD_PRIVATE, LaunchShape, launches
from cross.nvrtc import Usage, compile_cubin, usage

REGISTER_BYTES = 4
VECTOR = re.compile(r"\b(?:char|double|float|half|int|long|short|uchar|vload|vstore)(2|4|8|16)\b")


@dataclass(frozen=True, slots=True)
class LaunchReport:
    """One launch. `private_bytes` and `registers` are of a thread, `shared_bytes` of a block; `registers` is
    None for OpenCL. `vector_lanes`: of the widest vector in the launch's source, 1 without any."""

    name: str
    blocks: int
    threads: int
    shared_bytes: int
    private_bytes: int
    vector_lanes: int
    registers: int | None

    def shares(self, target: Target) -> dict[str, float]:
        """What a block takes of what the board has, by name; above 1 it cannot run.

        For OpenCL registers are what the source keeps in them; above 1 the board's compiler spills.
        """
        limits = target.gpu
        assert limits is not None
        found = {
            "threads": self.threads / limits.threads_of_a_launch,
            "shared memory": self.shared_bytes / limits.shared_memory_bytes,
        }
        own = self.registers
        if own is None and target.kind == "opencl":
            own = self.private_bytes // REGISTER_BYTES
        if own is not None and limits.registers_per_block:
            found["registers"] = self.threads * own / limits.registers_per_block
        if own is not None and limits.registers_per_thread:
            found["registers of a thread"] = own / limits.registers_per_thread
        return found


def inspect_gpu(symbol: str, nest: LoopNest, target: Target) -> tuple[LaunchReport, ...]:
    """The launches of a kernel for an OpenCL or CUDA target, in order.

    Raises:
        CompileError: the nest is not bound, asks for more than the board has, or NVRTC refuses its code;
            NvrtcMissing where a CUDA target needs it.
    """
    program = gpu_program(symbol, nest, target)
    used: dict[str, Usage] = {}
    if target.kind == "cuda":
        assert target.gpu is not None
        used = usage(compile_cubin(program.source, target.gpu.compute_capability))
    return tuple(
        LaunchReport(
            name=function.name,
            blocks=function.blocks,
            threads=function.threads,
            shared_bytes=function.shared_bytes,
            private_bytes=_private_bytes(shape),
            vector_lanes=_vector_lanes(program.source, function.name),
            registers=used[function.name].registers if used else None,
        )
        for function, shape in zip(program.functions, launches(nest), strict=True)
    )


def _vector_lanes(source: str, function: str) -> int:
    """Lanes of the widest vector in a function."""
    body = source[source.index(f" {function}(") :].partition("\n}")[0]
    return max((int(found) for found in VECTOR.findall(body)), default=1)


def _private_bytes(shape: LaunchShape) -> int:
    """What a thread allocates for itself: of what outlives a loop over threads, its own part."""
    own = own_dimensions(shape.body)
    return sum(_part_bytes(buffer, own.get(buffer.name, frozenset())) for buffer in _private(shape.body))


def _private(statement: Statement) -> Iterator[Buffer]:
    match statement:
        case For(_, _, _, body):
            yield from _private(body)
        case Allocate(buffer, body):
            if buffer.scope in THREAD_PRIVATE:
                yield buffer
            yield from _private(body)
        case Block(statements):
            for item in statements:
                yield from _private(item)


def _part_bytes(buffer: Buffer, own: frozenset[int]) -> int:
    extents = [extent.value if isinstance(extent, Int) else 1 for extent in buffer.shape]
    whole = size_bytes(buffer)
    return whole // math.prod(extents[dimension] for dimension in own)
