"""What can be said of a GPU kernel without running it: its launches against the limits of the board.

    for launch in inspect_gpu("conv_0", nest, target): launch.threads, launch.shared_bytes, launch.registers

Registers are NVRTC's, read from the cubin: OpenCL's compilers are on the board. What a thread keeps for
itself by the source (`private_bytes`: sums, copies) is known for every language; addresses and operands on
their way come on top of it.
"""

from __future__ import annotations

import math
import re

import msgspec

from boards.target import GpuLimits, Target
from cross.codegen.buffers import size_bytes
from cross.codegen.c.gpu_code import compiled, gpu_program
from cross.codegen.c.registers import own_dimensions
from cross.expression.language.terms import Int
from cross.loopnest.nodes import Allocate, Buffer, LoopNest, statements
from cross.loopnest.threads import THREAD_PRIVATE, LaunchShape, launches
from cross.nvrtc import usage

REGISTER_BYTES = 4
VECTOR = re.compile(r"\b(?:char|double|float|half|int|long|short|uchar|vload|vstore)(2|4|8|16)\b")
REGISTERS_AT_ONCE = 8  # that a thread of CUDA gets; and whole warps get them


class LaunchReport(msgspec.Struct, frozen=True):
    """One launch. `shared_bytes` is of a block; `private_bytes`, `registers` and `local_bytes`, which are in
    memory for want of registers, are of a thread, the last two None for OpenCL. `vector_lanes`: of the
    widest vector in the launch's source, 1 without any."""

    name: str
    blocks: int
    threads: int
    shared_bytes: int
    private_bytes: int
    vector_lanes: int
    registers: int | None
    local_bytes: int | None

    def shares(self, target: Target) -> dict[str, float]:
        """What a block takes of what the board has, by name; above 1 it cannot run.

        For OpenCL registers are what the source keeps in them; above 1 the board's compiler spills.
        """
        assert target.gpu is not None
        own = self.private_bytes // REGISTER_BYTES if self.registers is None else self.registers
        return shares(target.gpu, self.threads, self.shared_bytes, own)


def shares(limits: GpuLimits, threads: int, shared_bytes: int, registers: int | None) -> dict[str, float]:
    """What a block takes of what the board has, by name; above 1 it cannot run."""
    found = {
        "threads": threads / limits.threads_of_a_launch,
        "shared memory": shared_bytes / limits.shared_memory_bytes,
    }
    if registers is not None and limits.registers_per_block:
        taken = threads * registers
        if limits.compute_capability:
            taken = _up(threads, limits.warp_size) * _up(registers, REGISTERS_AT_ONCE)
        found["registers"] = taken / limits.registers_per_block
    if registers is not None and limits.registers_per_thread:
        found["registers of a thread"] = registers / limits.registers_per_thread
    return found


def inspect_gpu(symbol: str, nest: LoopNest, target: Target) -> tuple[LaunchReport, ...]:
    """The launches of a kernel for an OpenCL or CUDA target, in order.

    Raises:
        CompileError: the nest is not bound, asks for more than the board has, or NVRTC refuses its code;
            NvrtcMissing where a CUDA target needs it.
    """
    program = gpu_program(symbol, nest, target)
    code = compiled(program, target)
    used = usage(code) if isinstance(code, bytes) else {}
    return tuple(
        LaunchReport(
            name=function.name,
            blocks=function.blocks,
            threads=function.threads,
            shared_bytes=function.shared_bytes,
            private_bytes=_private_bytes(shape),
            vector_lanes=_vector_lanes(program.source, function.name),
            registers=used[function.name].registers if used else None,
            local_bytes=used[function.name].local_bytes if used else None,
        )
        for function, shape in zip(program.functions, launches(nest), strict=True)
    )


def _vector_lanes(source: str, function: str) -> int:
    """Lanes of the widest vector in a function."""
    body = source[source.index(f" {function}(") :].partition("\n}")[0]
    return max((int(found) for found in VECTOR.findall(body)), default=1)


def _up(count: int, unit: int) -> int:
    return -(-count // unit) * unit


def _private_bytes(shape: LaunchShape) -> int:
    """What a thread allocates for itself: of what outlives a loop over threads, its own part."""
    own = own_dimensions(shape.body)
    private = [item.buffer for item in statements(shape.body) if isinstance(item, Allocate)]
    return sum(
        _part_bytes(buffer, own.get(buffer.name, frozenset()))
        for buffer in private
        if buffer.scope in THREAD_PRIVATE
    )


def _part_bytes(buffer: Buffer, own: frozenset[int]) -> int:
    extents = [extent.value if isinstance(extent, Int) else 1 for extent in buffer.shape]
    whole = size_bytes(buffer)
    return whole // math.prod(extents[dimension] for dimension in own)
