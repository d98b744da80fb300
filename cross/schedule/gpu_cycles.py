"""How long a contraction's tiles take on a GPU with shared memory on its chip: for its untuned programs.

A multiprocessor takes turns among the blocks that it holds. Each step of the reduction costs a block what its
threads fetch from memory, wait for at two barriers, load from shared memory into registers, and multiply; of
blocks that are there together the waits overlap. Large tiles load less for each product, small ones leave no
multiprocessor without a block. `cycles` weighs all of that; only a measurement knows.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.target import Target

# Fitted to 156 programs of nine operators (1024-cubed, BERT's products, 1x1 and 3x3 convolutions) on an H100,
# tests/unit/cross/h100_tiles.json; test_gpu_cycles.py beside it says how well:
STEP_CYCLES = 400  # of a step, whatever it does: barriers, and the first fetch's way to memory
FETCH_CYCLES = 40  # more for each vector that a thread fetches
TERM_CYCLES = 10  # more for each term of the reduction: loads and multiply-adds wait for one another
FETCHED_BYTES = 64  # that a multiprocessor fetches from the cache behind it in a cycle
BUSY_WARPS = 4  # of a multiprocessor, beyond which no scheduler is without a warp
IDLE_EXPONENT = 0.75  # how much of the time is lost where some are
# Of the architecture:
LOADED_BYTES = 128  # that a multiprocessor loads from shared memory in a cycle: 32 banks of 4 bytes
ROW_TERMS = 4  # of float32 in the widest load
VECTOR_BYTES = 16  # of that
WARP = 32
# Of a multiprocessor, by the table of technical specifications per compute capability in the CUDA programming
# guide, from 5.0 on; of shared memory and blocks the least of all.
THREADS = {"sm_75": 1024, "sm_86": 1536, "sm_87": 1536, "sm_89": 1536}  # 2048 of all others
REGISTERS, SHARED_BYTES, BLOCKS = 65536, 65536, 16


class BlockShapes(msgspec.Struct, frozen=True):
    """N shapes of a block and one step of its reduction; every array is int64 [N].

    Of a thread: `rows` of elements, each of `columns` along the last axis in vectors of `vector`, and its
    `registers`. `threads` of a block, `threads_along` the last axis. `steps` of the reduction, `depth` terms
    each, for which a block keeps `bytes` in shared memory and fetches `fetched_bytes`; `blocks` in all.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    vector: NDArray[np.int64]
    threads: NDArray[np.int64]
    threads_along: NDArray[np.int64]
    depth: NDArray[np.int64]
    steps: NDArray[np.int64]
    bytes: NDArray[np.int64]
    fetched_bytes: NDArray[np.int64]
    registers: NDArray[np.int64]
    blocks: NDArray[np.int64]


def cycles(shapes: BlockShapes, target: Target) -> NDArray[np.float64]:
    """Cycles until the last multiprocessor of a target with GPU limits is done, float64 [N]; of float32."""
    assert target.gpu is not None
    warps = -(-shapes.threads // WARP)
    along = np.minimum(shapes.threads_along, WARP)
    # Where the loop over terms is written out, a load brings four terms of a row. Threads along the last axis
    # load the same; those of different rows lie a multiple of all banks apart and load one after the other.
    rows = shapes.rows / ROW_TERMS * (WARP / along)
    vectors = -(-shapes.columns // shapes.vector)
    # A thread's vectors are next to one another, so that those that a warp loads at once lie as many vectors
    # apart, and that many of them wait for the same bank.
    columns = vectors**2 * np.maximum(1.0, along * shapes.vector * 4 / LOADED_BYTES)
    loading = warps * (rows + columns) * shapes.depth
    multiplying = shapes.threads * shapes.rows * shapes.columns * shapes.depth / (target.flops_per_cycle / 2)
    busy = np.maximum(np.maximum(loading, multiplying), shapes.fetched_bytes / FETCHED_BYTES)

    mine = -(-shapes.blocks // target.gpu.compute_units)
    most_threads = THREADS.get(target.gpu.compute_capability, 2048)
    together = np.minimum(most_threads // shapes.threads, REGISTERS // (shapes.threads * shapes.registers))
    together = np.minimum(together, np.minimum(SHARED_BYTES // np.maximum(shapes.bytes, 1), BLOCKS))
    together = np.minimum(np.maximum(together, 1), mine)
    idle = np.maximum(1.0, BUSY_WARPS / (together * warps)) ** IDLE_EXPONENT
    fetching = FETCH_CYCLES * shapes.fetched_bytes / (VECTOR_BYTES * shapes.threads)
    waiting = STEP_CYCLES + fetching + TERM_CYCLES * shapes.depth
    return np.asarray(mine / together * shapes.steps * (together * busy * idle + waiting))
