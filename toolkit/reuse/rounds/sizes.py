"""Sizes to try: divisors of an extent in a range around those of the reused program (ETO, section 5.1)."""

from __future__ import annotations

from typing import Final

import numpy as np

from cross.schedule.tiles import divisors
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.rounds.divisor_table import WIDER, divisor_table

NEAREST_OTHER: Final = 2
"""At equal reductions the one block size more is at most the reused one minus this: the nearest smaller one
would lie in the widened range of a reused block one smaller."""


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


def _one_more(target: MajorLoops, reused: int, found: tuple[int, ...], *, smaller: bool) -> tuple[int, ...]:
    if smaller:
        return tuple(size for size in divisors(target.points) if size <= reused - NEAREST_OTHER)[-1:]
    return tuple(size for size in divisors(target.points) if size > max(found))[:1]


def divisors_between(start: float, end: float, number: int, *, wider: float = WIDER) -> tuple[int, ...]:
    """The divisors of `number` from `start` to `end`, in that direction (DivisorTable.ranges)."""
    rising = start <= end
    found = divisor_table(number).ranges(np.array([start]), np.array([end]), rising=rising, wider=wider)
    first, last, extended = int(found.first[0]), int(found.last[0]), int(found.extended[0])
    if rising:
        return divisors(number)[first : last + extended]
    return divisors(number)[first - extended : last][::-1]
