"""How fast a board's main memory is read: sums of vectors, all of the target's cores together.

The data are the workspace of an ordinary kernel, so that nothing is sent to the board; the runtime writes all
of it before the kernel is timed. The same loop measures caches for benchmarks.kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from boards.target import Target
from cross.codegen.llvm.objects import compile_ir
from cross.link import DEFAULT_CACHE_DIR, link, native_objects
from device_runtime.protocol import BufferRequest, MeasureRequest, MeasureResult, Timing
from toolkit.measure.session import Session, fastest_s

SYMBOL: Final = "tfb_bandwidth"
READ_VECTORS: Final = 8  # neighbouring ones, whose sums do not wait for each other
FLOAT_BYTES: Final = 4
CACHES: Final = 4  # times the last cache: at most a quarter of the data can still be there, up to MOST_BYTES
LEAST_BYTES, MOST_BYTES = 32 << 20, 512 << 20
MEMORY_SHARE: Final = 8  # at most that part of a board's memory


def measure_bandwidth(session: Session, target: Target, *, cache_dir: Path = DEFAULT_CACHE_DIR) -> float:
    """GB/s (1e9 bytes) that the target's cores together read, the best of several repeats.

    Raises VerificationError when the loop fails on the board.
    """
    block_bytes = READ_VECTORS * target.vector_lanes() * FLOAT_BYTES
    blocks = working_set_bytes(target, session.board.memory_bytes) // block_bytes
    text = "\n".join([_exported(blocks), read_body(SYMBOL, target.vector_lanes(), 1)])
    code = link(
        [compile_ir(text, target)],
        target,
        extra_objects=native_objects(target, cache_dir),
        cache_dir=cache_dir,
    )
    written = np.ones(1, np.float32)

    def measured() -> MeasureResult:
        request = MeasureRequest(
            module=session.put(code),
            symbol=SYMBOL,
            buffers=(BufferRequest("output", "float32", 1, session.put(written.tobytes())),),
            workspace_bytes=blocks * block_bytes,
            timing=Timing(warmup=2, repeat=20, min_repeat_ms=1.0),
            threads=target.threads,
            cores=target.cores,
            timeout_s=60.0,
            rtol=1e-6,
        )
        return session.measure(request)

    seconds = fastest_s(measured, session, target.name, "the loop that reads memory")
    return blocks * block_bytes / seconds / 1e9


def working_set_bytes(target: Target, memory_bytes: int) -> int:
    """Bytes to read: more than the caches hold, and a small part of the board's memory."""
    wanted = CACHES * max(target.l3_bytes, target.l2_bytes * target.threads)
    return min(max(wanted, LEAST_BYTES), memory_bytes // MEMORY_SHARE, MOST_BYTES)


def _exported(blocks: int) -> str:
    """The kernel: reads the blocks of its workspace, then writes a 1 to say so."""
    return f"""
declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)
define i32 @{SYMBOL}(ptr %buffers, ptr %workspace, ptr %pool) nounwind {{
  %status = call i32 @tfb_parallel_for(ptr %pool, ptr @{SYMBOL}.body, ptr %workspace, i64 {blocks})
  %out = load ptr, ptr %buffers
  store float 1.0, ptr %out
  ret i32 %status
}}"""


def read_body(symbol: str, lanes: int, passes: int) -> str:
    """SYMBOL.body as LLVM IR: sums of READ_VECTORS neighbouring vectors, block by block.

    It goes over the part of a thread `passes` times.
    """
    vector = f"<{lanes} x float>"
    every = range(READ_VECTORS)
    outer = "\n".join(f"  %o{i} = phi {vector} [ zeroinitializer, %entry ], [ %s{i}, %after ]" for i in every)
    inner = "\n".join(f"  %a{i} = phi {vector} [ %o{i}, %pass ], [ %s{i}, %loop ]" for i in every)
    reads = "\n".join(
        f"  %p{i} = getelementptr {vector}, ptr %block, i64 {i}\n"
        f"  %v{i} = load {vector}, ptr %p{i}, align 4\n"
        f"  %s{i} = fadd {vector} %a{i}, %v{i}"
        for i in every
    )
    uses = "\n".join(f"  store volatile {vector} %s{i}, ptr %sink" for i in every)
    return f"""
define internal void @{symbol}.body(ptr %data, i64 %begin, i64 %end) nounwind {{
entry:
  %sink = alloca {vector}, align 64
  br label %pass
pass:
  %n = phi i64 [ 0, %entry ], [ %m, %after ]
{outer}
  br label %loop
loop:
  %i = phi i64 [ %begin, %pass ], [ %j, %loop ]
{inner}
  %block = getelementptr [{READ_VECTORS} x {vector}], ptr %data, i64 %i
{reads}
  %j = add i64 %i, 1
  %more = icmp slt i64 %j, %end
  br i1 %more, label %loop, label %after
after:
  %m = add i64 %n, 1
  %again = icmp slt i64 %m, {passes}
  br i1 %again, label %pass, label %done
done:
{uses}
  ret void
}}"""
