"""How long a contraction's tiles take on a GPU with shared memory on its chip: for its untuned programs.

A multiprocessor takes turns among the blocks that it holds. Each step of the reduction costs a block what its
threads fetch from memory, wait for at two barriers, load from shared memory into registers, and multiply; of
blocks that are there together the waits overlap. Large tiles load less for each product, small ones leave no
multiprocessor without a block. `cycles` weighs all of that; only a measurement knows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boards.target import GpuLimits
from cross.schedule.space import Values

# Fitted to 156 programs of nine operators (1024-cubed, BERT's products, 1x1 and 3x3 convolutions) on an H100,
# whose times they predict with a standard error of 34 %; the fastest by them took 1.12 times as long as the
# fastest of the 8 to 26 of an operator (geometric mean).
STEP_CYCLES = 400  # of a step, whatever it does: barriers, and the first fetch's way to memory
FETCH_CYCLES = 40  # more for each vector that a thread fetches
TERM_CYCLES = 10  # more for each term of the reduction: loads and multiply-adds wait for one another
LANES = 128  # multiply-adds that a multiprocessor begins in a cycle
LOADED_BYTES = 128  # that it loads from shared memory in a cycle
FETCHED_BYTES = 64  # that it fetches from the cache behind it in a cycle
ROW_TERMS = 4  # of float32 in the widest load
VECTOR_BYTES = 16  # of that
WARP = 32
# Of a multiprocessor, since Maxwell, by the tables of the CUDA programming guide; shared memory at least.
THREADS, REGISTERS, SHARED_BYTES, BLOCKS = 2048, 65536, 65536, 16
BUSY_WARPS = 4  # of a multiprocessor, one for each of its schedulers


@dataclass(frozen=True, slots=True)
class BlockShapes:
    """N shapes of a block and one step of its reduction; every array is int64 [N].

    Of a thread: `rows` of elements, each of `columns` along the last axis in vectors of `vector`, and its
    `registers`. `threads` of a block, `threads_along` the last axis. `steps` of the reduction, `depth` terms
    each, for which a block fetches `bytes`; `blocks` in all.
    """

    rows: NDArray[np.int64]
    columns: NDArray[np.int64]
    vector: NDArray[np.int64]
    threads: NDArray[np.int64]
    threads_along: NDArray[np.int64]
    depth: NDArray[np.int64]
    steps: NDArray[np.int64]
    bytes: NDArray[np.int64]
    registers: NDArray[np.int64]
    blocks: NDArray[np.int64]


def cycles(shapes: BlockShapes, limits: GpuLimits) -> NDArray[np.float64]:
    """Cycles until the last multiprocessor is done, [N]."""
    warps = -(-shapes.threads // WARP)
    along = np.minimum(shapes.threads_along, WARP)
    # Four terms of a row are one load, where the loop over them is written out; rows of a warp are a multiple
    # of all banks apart, and its threads along the last axis want the same of a row.
    rows = shapes.rows / ROW_TERMS * (WARP / along)
    vectors = -(-shapes.columns // shapes.vector)
    # Several vectors of a thread lie next to one another: those of a warp are as many vectors apart.
    columns = vectors**2 * np.maximum(1.0, along * shapes.vector * 4 / LOADED_BYTES)
    loading = warps * (rows + columns) * shapes.depth
    multiplying = shapes.threads * shapes.rows * shapes.columns * shapes.depth / LANES
    busy = np.maximum(np.maximum(loading, multiplying), shapes.bytes / FETCHED_BYTES)

    mine = -(-shapes.blocks // limits.compute_units)
    together = np.minimum(THREADS // shapes.threads, REGISTERS // (shapes.threads * shapes.registers))
    together = np.minimum(together, np.minimum(SHARED_BYTES // np.maximum(shapes.bytes, 1), BLOCKS))
    together = np.minimum(np.maximum(together, 1), mine)
    idle = np.maximum(1.0, BUSY_WARPS / (together * warps)) ** 0.75
    fetching = FETCH_CYCLES * shapes.bytes / (VECTOR_BYTES * shapes.threads)
    waiting = STEP_CYCLES + fetching + TERM_CYCLES * shapes.depth
    return np.asarray(mine / together * shapes.steps * (together * busy * idle + waiting))


def grid(options: Sequence[Values]) -> Values:
    """Every combination of some groups of columns; the columns of a group, [M] each, belong together."""
    lengths = [len(next(iter(group.values()))) for group in options]
    places = np.indices(lengths).reshape(len(lengths), -1)
    return {
        name: column[place]
        for group, place in zip(options, places, strict=True)
        for name, column in group.items()
    }
