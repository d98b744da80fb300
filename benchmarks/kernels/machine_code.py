"""What the machine can do at best, as kernels: multiply-adds in registers, reading memory, an empty loop.

They are LLVM IR with the target's vector width, compiled like any kernel: the same vectors, the same pool and
the same timing loop as in the kernels that they are compared with. The multiply-adds and the reads are the
loops by which `toolkit boards probe` measures a board's peak and bandwidth.
"""

from __future__ import annotations

from dataclasses import dataclass

from boards.target import Target
from cross.codegen.llvm.objects import compile_ir
from cross.link import link, native_objects
from toolkit.measure.bandwidth import FLOAT_BYTES, READ_VECTORS, read_body
from toolkit.measure.peak import accumulators, peak_loop

FMA_ROUNDS = 65536  # a call lasts a few hundred microseconds
LAUNCH_ITERATIONS = 64  # at least one for every thread
READ_BYTES = 1 << 25  # read in one call, by passing over the working set as often as it takes

READ, LAUNCH = "read_bandwidth", "empty_loop"


@dataclass(frozen=True, slots=True)
class MachineCode:
    """The shared object; operations of one call of the multiply-adds, which take two arrays of
    `fma_elements`, and bytes of one call of READ, which takes one of `working_set_bytes` as LAUNCH does."""

    code: bytes
    fma_elements: int
    fma_flops: int
    read_bytes: int
    working_set_bytes: int


def machine_code(target: Target, working_set_bytes: int) -> MachineCode:
    """The kernels for a target; the working set is rounded up to whole blocks of vectors."""
    lanes = target.vector_lanes(FLOAT_BYTES)
    block_bytes = READ_VECTORS * lanes * FLOAT_BYTES
    blocks = -(-working_set_bytes // block_bytes)
    passes = max(1, READ_BYTES // (blocks * block_bytes))
    texts = (peak_loop(target, FMA_ROUNDS), _memory_text(lanes, blocks, passes))
    objects = [compile_ir(text, target) for text in texts]
    elements = target.threads * lanes
    return MachineCode(
        link(objects, target, extra_objects=native_objects(target)),
        fma_elements=elements,
        fma_flops=2 * FMA_ROUNDS * accumulators(target) * elements,
        read_bytes=passes * blocks * block_bytes,
        working_set_bytes=blocks * block_bytes,
    )


def _memory_text(lanes: int, blocks: int, passes: int) -> str:
    """READ and LAUNCH as LLVM IR."""
    return "\n".join((
        "declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)",
        _kernel(READ, blocks),
        read_body(READ, lanes, passes),
        _kernel(LAUNCH, LAUNCH_ITERATIONS),
        f"define internal void @{LAUNCH}.body(ptr %data, i64 %begin, i64 %end) nounwind {{",
        "  ret void",
        "}",
    ))  # fmt: skip


def _kernel(symbol: str, extent: int) -> str:
    """The exported function: its body's iterations, spread over the pool."""
    return f"""
define i32 @{symbol}(ptr %buffers, ptr %workspace, ptr %pool) nounwind {{
  %data = load ptr, ptr %buffers
  %status = call i32 @tfb_parallel_for(ptr %pool, ptr @{symbol}.body, ptr %data, i64 {extent})
  ret i32 %status
}}"""
