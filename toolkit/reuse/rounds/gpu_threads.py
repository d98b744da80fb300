"""The shape of a block's threads on a GPU: the one whose loads meet the fewest conflicts (ETO, GetTShape).

A block is split along each space loop into virtual threads, threads and what one thread computes, in this
order from the outside. All splits for a number of threads are weighed at once. A split costs, for each input,
what a load of all threads takes times the elements that a thread loads:

- Where inputs are staged in shared memory, a load of a warp takes as long as the busiest bank has different
  addresses among the threads' first elements.
- Where threads read memory directly, it takes the lines under those elements.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.schedule.tiles import divisors
from toolkit.explore.neighbourhood.footprint import FLOAT_BYTES, Shapes, reached
from toolkit.explore.neighbourhood.loops import Dimension, MajorLoops
from toolkit.reuse.rounds.block_shape import GPU_LINE_BYTES, factorizations

BANKS = 32  # of 4 bytes, on every CUDA GPU
LANES = 32

Costs = NDArray[np.int64]


class Staging(msgspec.Struct, frozen=True):
    """How a block's inputs reach its threads: `fetched` iterations of each reduction loop at a time, into
    shared memory or not; `lanes` threads load at once."""

    fetched: tuple[int, ...]
    shared: bool = True
    lanes: int = LANES


class ThreadShapes(msgspec.Struct, frozen=True):
    """Splits of one block: virtual threads, threads, and points of a thread between those of its virtual
    threads, along each space loop: int64 [N, S] each."""

    virtual: Shapes
    threads: Shapes
    inner: Shapes

    def __len__(self) -> int:
        return len(self.threads)

    def __getitem__(self, rows: NDArray[np.bool_] | NDArray[np.intp]) -> ThreadShapes:
        return ThreadShapes(self.virtual[rows], self.threads[rows], self.inner[rows])


def thread_shapes(block: tuple[int, ...], threads: int) -> ThreadShapes:
    """All splits of a block between so many threads; lexicographic by threads, then virtual threads."""
    shapes = factorizations(threads, block)
    columns = np.meshgrid(*(np.array(divisors(side)) for side in block), indexing="ij")
    virtual = np.stack([column.ravel() for column in columns], axis=1)
    left = np.repeat(shapes, len(virtual), axis=0)
    right = np.tile(virtual, (len(shapes), 1))
    inner, rest = np.divmod(np.array(block), left * right)
    whole = ~rest.any(axis=1)
    return ThreadShapes(right[whole], left[whole], inner[whole])


def order_by_cost(shapes: ThreadShapes, costs: Costs) -> NDArray[np.intp]:
    """Rows, cheapest first; of equal ones those with fewer virtual threads."""
    found: NDArray[np.intp] = np.lexsort((shapes.virtual.prod(axis=1), costs))
    return found


def thread_costs(loops: MajorLoops, block: tuple[int, ...], shapes: ThreadShapes, staging: Staging) -> Costs:
    """What the loads of one fetch cost with each split of a block, int64 [N]; the number of threads is the
    same in all. float32 elements."""
    total = np.zeros(len(shapes), np.int64)
    if not len(shapes):
        return total
    for dimensions in loops.inputs:
        steps = _address_steps(dimensions, (*block, *staging.fetched), staging.shared)[: len(block)]
        loads = _loads(steps * shapes.inner, shapes.threads, staging)
        total += loads * _elements(dimensions, block, shapes, staging.fetched)
    return total


def _address_steps(
    dimensions: tuple[Dimension, ...], extents: tuple[int, ...], shared: bool
) -> NDArray[np.int64]:
    """Elements that one step of each loop moves, in the block's tile of an input or in the input itself."""
    pitch, found = 1, np.zeros(len(extents), np.int64)
    for dimension in reversed(dimensions):
        for loop, step in dimension.steps:
            found[loop] += pitch * step
        reach = 1 + sum(step * (extents[loop] - 1) for loop, step in dimension.steps)
        pitch *= min(reach, dimension.extent) if shared else dimension.extent
    return found


def _loads(steps: Shapes, threads: Shapes, staging: Staging) -> Costs:
    """Turns that a load of all threads takes, [N]: the sum over warps. steps: elements between threads."""
    keys, back = np.unique(np.concatenate([threads, steps], axis=1), axis=0, return_inverse=True)
    sides, steps = np.split(keys, 2, axis=1)
    count = int(sides[0].prod())
    lanes = min(staging.lanes, count)
    # The last warp is filled up with its last thread, whose address is no new one.
    ids = np.minimum(np.arange(-(-count // lanes) * lanes), count - 1)
    first = np.zeros((len(keys), len(ids)), np.int64)
    outer = np.ones((len(keys), 1), np.int64)
    for axis in reversed(range(sides.shape[1])):
        first += ids // outer % sides[:, axis : axis + 1] * steps[:, axis : axis + 1]
        outer = outer * sides[:, axis : axis + 1]
    warps = first.reshape(-1, lanes)
    turns = _bank_turns(warps) if staging.shared else _lines(warps)
    found: Costs = turns.reshape(len(keys), -1).sum(axis=1)[back.reshape(-1)]
    return found


def _bank_turns(warps: NDArray[np.int64]) -> Costs:
    """Different addresses in the busiest bank of each warp, [W]."""
    ordered, new = _new_ones(warps)
    places = np.arange(len(warps))[:, None] * BANKS + ordered % BANKS
    counts = np.bincount(places[new], minlength=len(warps) * BANKS)
    found: Costs = counts.reshape(-1, BANKS).max(axis=1)
    return found


def _lines(warps: NDArray[np.int64]) -> Costs:
    """Memory lines under the addresses of each warp, [W]."""
    found: Costs = _new_ones(warps // (GPU_LINE_BYTES // FLOAT_BYTES))[1].sum(axis=1)
    return found


def _new_ones(warps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Each warp's values in order, and which of them differ from the one before."""
    ordered = np.sort(warps, axis=1)
    new = np.ones(ordered.shape, np.bool_)
    new[:, 1:] = ordered[:, 1:] != ordered[:, :-1]
    return ordered, new


def _elements(
    dimensions: tuple[Dimension, ...], block: tuple[int, ...], shapes: ThreadShapes, fetched: tuple[int, ...]
) -> Costs:
    """Different elements of an input that the first thread loads in one fetch, [N]."""
    total = np.ones(len(shapes), np.int64)
    apart = shapes.threads * shapes.inner  # points between virtual threads
    for dimension in dimensions:
        mine = [loop for loop, _ in dimension.steps if loop < len(block)]
        keys = np.concatenate([shapes.virtual[:, mine], apart[:, mine], shapes.inner[:, mine]], axis=1)
        rows, back = np.unique(keys, axis=0, return_inverse=True)
        counts = [_reach_of_thread(dimension, row, mine, len(block), fetched) for row in rows.tolist()]
        total *= np.array(counts, np.int64)[back.reshape(-1)]
    return total


def _reach_of_thread(
    dimension: Dimension, row: list[int], mine: list[int], spaces: int, fetched: tuple[int, ...]
) -> int:
    """Positions along a dimension under a thread. row: virtual threads, their distance and the points of each
    for the loops of `mine`, one kind after the other."""
    count = len(mine)
    split = {loop: row[place::count] for place, loop in enumerate(mine)}
    steps: list[tuple[int, int]] = []
    for loop, step in dimension.steps:
        if loop < spaces:
            virtual, apart, inner = split[loop]
            steps += [(virtual, step * apart), (inner, step)]
        else:
            steps.append((fetched[loop - spaces], step))
    return len(reached(dimension, tuple(steps)))


def smallest_prime(number: int) -> int:
    """Smallest prime factor, 1 of 1."""
    return next((factor for factor in divisors(number) if factor > 1), 1)
