"""How many trials a reuse will take, before the reused program is known (ETO, section 6.1).

The paper draws ten programs at random and averages what Algorithm 1 would measure for them; here the average
over all of them is computed, so that the same operators always give the same plan.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from toolkit.reuse.block_shape import block_shape, loaded_elements
from toolkit.reuse.divisors import divisors, divisors_between
from toolkit.reuse.loops import MajorLoops

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


def expected_trials(target: MajorLoops, source: MajorLoops) -> float:
    """Expected measurements of the hierarchical search for `target` that reuses a program of `source`.

    Over the reused program's block size (by its number of divisors), threads (uniform among the divisors of
    the block, up to MOST_THREADS) and staged steps (uniform among the divisors of the split loop).
    """
    total = weight = 0.0
    for block in divisors(source.points):
        share = len(divisors(block))
        weight += share
        total += share * sum(
            _trials(target, source, block, size) for size in block_sizes(target, source, block)
        )
    return total / weight


def _trials(target: MajorLoops, source: MajorLoops, block: int, size: int) -> float:
    threads = [count for count in divisors(block) if count <= MOST_THREADS]
    tried = _mean(len(thread_counts(target, source, block, count, size)) for count in threads)
    return tried + _staged(target, source, block, size) - 1 + UNROLL_TRIALS + VECTOR_TRIALS


@lru_cache(maxsize=65536)
def _staged(target: MajorLoops, source: MajorLoops, block: int, size: int) -> float:
    """Average number of staged steps to try."""
    own, reused = block_shape(target, size), block_shape(source, block)
    if own is None or reused is None:
        return 1.0
    loads = loaded_elements(target, own.shape, 1) / loaded_elements(source, reused.shape, 1)
    increase = target.size / source.size
    high = loads * (target.points / source.points) / (size / block)
    return _mean(
        len(divisors_between(steps * high / increase, steps * high, target.split_extent))
        for steps in divisors(source.split_extent)
    )


def _one_more(target: MajorLoops, reused: int, found: tuple[int, ...], *, smaller: bool) -> tuple[int, ...]:
    if smaller:
        return tuple(size for size in divisors(target.points) if size <= reused - NEAREST_OTHER)[-1:]
    return tuple(size for size in divisors(target.points) if size > max(found))[:1]


def _mean(values: Iterable[int]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
