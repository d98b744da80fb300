"""Divisors of an extent in a range, the sizes that the reuse-based tuner tries (ETO, section 5.1)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from functools import cache

WIDER = 1.0
"""How far callers widen a range beyond each end."""


@cache
def divisors(number: int) -> tuple[int, ...]:
    """All divisors in ascending order; raises ValueError below 1."""
    if number < 1:
        raise ValueError(f"divisors: expected a number of at least 1, found {number}")
    low = [value for value in range(1, int(number**0.5) + 1) if number % value == 0]
    return tuple(sorted({*low, *(number // value for value in low)}))


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
