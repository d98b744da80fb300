"""Sizes to try: divisors of an extent in a range around those of the reused program (ETO, section 5.1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Final

from cross.schedule.tiles import divisors
from toolkit.explore.neighbourhood.loops import MajorLoops

WIDER: Final = 1.0
"""How far a range is widened beyond each end: the paper's +- 1, so that rounding leaves out no divisor."""
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
    """The divisors of `number` from `start` to `end`, in that direction; `start` may be above `end`.

    The range is first made `wider` on both sides. When it holds none: the first divisor beyond `end`.
    Otherwise the divisor beyond `end` comes along when it is at least as close to the end that was asked for,
    in ratio, as the last one inside; `start` is never extended.
    """
    found = divisors(number)
    if start <= end:
        first, last = bisect_left(found, start - wider), bisect_right(found, end + wider)
        inside = found[first:last]
        beyond = found[last] if last < len(found) else None
    else:
        first, last = bisect_left(found, end - wider), bisect_right(found, start + wider)
        inside = found[first:last][::-1]
        beyond = found[first - 1] if first > 0 else None
    if beyond is None:
        return inside
    if not inside:
        return (beyond,)
    return (*inside, beyond) if _ratio(beyond, end) <= _ratio(inside[-1], end) else inside


def _ratio(left: float, right: float) -> float:
    return max(left / right, right / left)
