"""How many trials the rounds of a reuse will take, before the reused program is known (ETO, section 6.1).

The paper draws ten programs at random and averages what Algorithm 1 would measure for them; here the average
over all of them is computed, so that the same operators always give the same plan.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np

from cross.schedule.tiles import divisors
from toolkit.explore.neighbourhood.cpu import BLOCKS
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.explore.neighbourhood.tile_shapes import REGISTER_TILES
from toolkit.explore.rounds import PATIENCE
from toolkit.reuse.rounds.block_shape import block_shapes
from toolkit.reuse.rounds.divisor_table import Numbers, Places, divisor_table
from toolkit.reuse.rounds.sizes import NEAREST_OTHER, block_sizes

UNROLL_TRIALS: Final = 4  # options of other effect, at most one fewer than a GPU space has
VECTOR_TRIALS: Final = 4  # two lengths for each of two inputs
LAUNCH_VECTOR_TRIALS: Final = 2  # elements of a thread of a stage of two levels
MOST_THREADS: Final = 1024  # of a block, on the GPUs at hand


def expected_cpu_rounds(target: MajorLoops, source: MajorLoops) -> float:
    """Expected trials of the rounds on a CPU, over the block sizes that the reused program may have."""
    counts = np.minimum(BLOCKS, block_size_counts(target, source))
    return REGISTER_TILES * float(counts.mean()) + PATIENCE


def expected_gpu_rounds(target: MajorLoops, source: MajorLoops) -> float:
    """Expected trials of the rounds on a GPU, over what the reused program may be."""
    rounds = expected_trials if is_tiled(target) else expected_two_level_rounds
    return rounds(target, source)


def is_tiled(loops: MajorLoops) -> bool:
    """Whether inputs are combined that are read again along a space loop, as in contractions."""
    wide = {loop for loop, extent in enumerate(loops.space) if extent > 1}
    used = [{loop for dimension in item for loop, _ in dimension.steps} for item in loops.inputs]
    return bool(loops.reduce) and len(used) > 1 and any(not wide <= loops_of for loops_of in used)


def expected_two_level_rounds(target: MajorLoops, source: MajorLoops) -> float:
    """Expected trials of one GPU stage of two levels, over the numbers of threads of the reused program."""
    sizes = [block_sizes(target, source, 1 << power) for power in range(MOST_THREADS.bit_length())]
    counts = [len({round(math.log2(size)) for size in found}) for found in sizes]
    return sum(counts) / len(counts) + LAUNCH_VECTOR_TRIALS


def block_size_counts(target: MajorLoops, source: MajorLoops) -> Places:
    """How many sizes of a block there are to try for each divisor of the source's points, int64 [R]."""
    reused = _reused(source.points)
    block, _ = _sizes(target, _Pair.of(target, source), reused)
    return np.bincount(block, minlength=len(reused.sizes))


def expected_trials(target: MajorLoops, source: MajorLoops) -> float:
    """Expected measurements of the hierarchical search for `target` that reuses a program of `source`.

    Over the reused program's block size (by its number of divisors), threads (uniform among the divisors of
    the block, up to MOST_THREADS) and staged steps (uniform among the divisors of the split loop). All these
    draws are weighed at once. The two must be reusable.
    """
    reused, pair = _reused(source.points), _Pair.of(target, source)
    block, size = _sizes(target, pair, reused)
    growth = divisor_table(target.points).values[size] / reused.sizes[block]
    tried = _threads_tried(target, pair, reused, block, size, pair.points / growth)
    loads = block_shapes(target).loads[size] / block_shapes(source).loads[block]
    staged = _steps_tried(target, source, pair, loads * pair.points / growth)
    trials = tried + staged - 1 + UNROLL_TRIALS + VECTOR_TRIALS
    # bincount and cumsum add up one after the other, like a plain loop
    of_block = np.bincount(block, weights=trials, minlength=len(reused.sizes))
    return float((reused.shares * of_block).cumsum()[-1] / reused.shares.sum())


class _Pair(msgspec.Struct, frozen=True):
    """How many times more points all loops and the space loops of a target have than a source's; `same`: and
    the reductions are equal."""

    increase: float
    points: float
    same: bool

    @staticmethod
    def of(target: MajorLoops, source: MajorLoops) -> _Pair:
        same = target.size * source.points == source.size * target.points
        return _Pair(target.size / source.size, target.points / source.points, same)


class _Reused(msgspec.Struct, frozen=True, eq=False):
    """The draws of a reused program: block sizes [R], their weights, and the thread counts of all of them one
    after the other, of which block r has those from `first[r]` on, `threads[r]` of them."""

    sizes: Numbers
    shares: Numbers
    listed: Numbers
    first: Places
    threads: Places


@lru_cache(maxsize=4096)
def _reused(points: int) -> _Reused:
    table = divisor_table(points)
    threads = [[count for count in divisors(size) if count <= MOST_THREADS] for size in divisors(points)]
    counts = np.array([len(item) for item in threads])
    listed = np.array([count for item in threads for count in item], np.float64)
    return _Reused(table.values, table.counts, listed, np.cumsum(counts) - counts, counts)


def _sizes(target: MajorLoops, pair: _Pair, reused: _Reused) -> tuple[Places, Places]:
    """The block sizes that each reused one leads to: (position of the reused one, position among the divisors
    of the target's points), both [N]."""
    table = divisor_table(target.points)
    up, down = reused.sizes * pair.increase, reused.sizes / (pair.increase / pair.points)
    larger = pair.increase > 1
    ranges = table.ranges(*((down, up) if larger else (up, down)), rising=True)
    counts = ranges.counts
    if not pair.same:
        block, place = _spread(counts)
        return block, ranges.first[block] + place
    end = ranges.first + counts
    # At equal reductions one more: below all that a smaller program's size leads to, or above them.
    more = np.searchsorted(table.values, reused.sizes - NEAREST_OTHER, "right") - 1 if larger else end
    fresh = (more >= 0) & (more < len(table.values)) & ((more < ranges.first) | (more >= end))
    block, place = _spread(counts + fresh)
    return block, np.where(place < counts[block], ranges.first[block] + place, more[block])


def _threads_tried(
    target: MajorLoops, pair: _Pair, reused: _Reused, block: Places, size: Places, blocks: Numbers
) -> Numbers:
    """Average number of thread counts to try for each size, [N]."""
    counts = reused.threads[block]
    begins = np.cumsum(counts) - counts
    place = np.repeat(reused.first[block] - begins, counts)
    place += np.arange(len(place))
    threads, blocks = reused.listed.take(place), blocks.repeat(counts)
    starts, ends = threads / blocks, threads * pair.increase / blocks
    rising = pair.increase >= 1
    tried = divisor_table(target.points).ranges(starts, ends, size.repeat(counts), rising=rising)
    found: Numbers = np.add.reduceat(tried.counts, begins) / counts
    return found


def _steps_tried(target: MajorLoops, source: MajorLoops, pair: _Pair, high: Numbers) -> Numbers:
    """Average number of staged steps to try for each size, [N]."""
    steps = divisor_table(source.split_extent).values
    ends = (steps[None, :] * high[:, None]).ravel()
    rising = pair.increase >= 1
    tried = divisor_table(target.split_extent).ranges(ends / pair.increase, ends, rising=rising)
    found: Numbers = tried.counts.reshape(len(high), -1).sum(axis=1) / len(steps)
    return found


def _spread(counts: Places) -> tuple[Places, Places]:
    """For `counts` of each of N things in a row: whose each one is, and its place among those of the same."""
    owner = np.arange(len(counts)).repeat(counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]
