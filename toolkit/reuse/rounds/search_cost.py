"""How many trials a reuse will take, before the reused program is known (ETO, section 6.1).

The paper draws ten programs at random and averages what Algorithm 1 would measure for them; here the average
over all of them is computed, so that the same operators always give the same plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np

from toolkit.reuse.rounds.block_shape import block_shapes
from toolkit.reuse.rounds.divisors import Numbers, Places, divisor_table, divisors, divisors_between
from toolkit.reuse.rounds.loops import MajorLoops

UNROLL_TRIALS: Final = 4
VECTOR_TRIALS: Final = 4
MOST_THREADS: Final = 1024
NEAREST_OTHER: Final = 2
"""At equal reductions the one block size more is at most the reused one minus this."""


def block_sizes(target: MajorLoops, source: MajorLoops, reused: int) -> tuple[int, ...]:
    """Sizes of a block to try where the reused program has `reused` points in one (Algorithm 1, line 1)."""
    increase = target.size / source.size
    reductions = increase / (target.points / source.points)
    if increase > 1:
        found = divisors_between(reused / reductions, reused * increase, target.points)
    else:
        found = divisors_between(reused * increase, reused / reductions, target.points)
    if target.size * source.points == source.size * target.points:
        found += _one_more(target, reused, found, smaller=increase > 1)
    return tuple(dict.fromkeys(found))


def thread_counts(
    target: MajorLoops, source: MajorLoops, block: float, reused: int, size: int
) -> tuple[int, ...]:
    """Threads to try in a block of `size` points; the reused program has `reused` in blocks of `block`."""
    increase = target.size / source.size
    blocks = (target.points / source.points) / (size / block)
    return divisors_between(reused / blocks, reused * increase / blocks, size)


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


@dataclass(frozen=True, slots=True)
class _Pair:
    """How many times more points all loops and the space loops of a target have than a source's; `same`: and
    the reductions are equal."""

    increase: float
    points: float
    same: bool

    @staticmethod
    def of(target: MajorLoops, source: MajorLoops) -> _Pair:
        same = target.size * source.points == source.size * target.points
        return _Pair(target.size / source.size, target.points / source.points, same)


@dataclass(frozen=True, slots=True, eq=False)
class _Reused:
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
    ranges = table.ranges(*((down, up) if larger else (up, down)), None, rising=True)
    counts = ranges.counts
    if not pair.same:
        block, place = _spread(counts)
        return block, ranges.first[block] + place
    end = ranges.first + counts
    # At equal reductions one more: below all that a smaller program's size leads to, or above them.
    more = table.ranks.up_to(reused.sizes - NEAREST_OTHER) - 1 if larger else end
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
    tried = divisor_table(target.split_extent).ranges(ends / pair.increase, ends, None, rising=rising)
    found: Numbers = tried.counts.reshape(len(high), -1).sum(axis=1) / len(steps)
    return found


def _spread(counts: Places) -> tuple[Places, Places]:
    """For `counts` of each of N things in a row: whose each one is, and its place among those of the same."""
    owner = np.arange(len(counts)).repeat(counts)
    return owner, np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]


def _one_more(target: MajorLoops, reused: int, found: tuple[int, ...], *, smaller: bool) -> tuple[int, ...]:
    if smaller:
        return tuple(size for size in divisors(target.points) if size <= reused - NEAREST_OTHER)[-1:]
    return tuple(size for size in divisors(target.points) if size > max(found))[:1]
