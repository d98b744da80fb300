"""Divisors in ranges around the sizes of a reused program (ETO, section 5.1), for many ranges at once."""

from __future__ import annotations

from functools import cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.schedule.tiles import divisors

WIDER: Final = 1.0
"""How far a range is widened beyond each end: the paper's +- 1, so that rounding leaves out no divisor."""
Numbers = NDArray[np.float64]
Places = NDArray[np.int64]


class DivisorTable:
    """Ranges of the divisors of numbers that are themselves divisors of one `number`.

    `values`, float64 [D]: the divisors of `number`, by whose positions numbers are told; `counts` [D]:
    how many divisors each of them has.
    """

    def __init__(self, number: int) -> None:
        found = np.array(divisors(number), np.int64)
        divides = found[:, None] % found[None, :] == 0  # [number, divisor]
        count = len(found)
        self.values = found.astype(np.float64)
        # how many of the first r divisors of `number` divide each number; r = 0 .. D
        below = np.zeros((count, count + 1), np.int64)
        below[:, 1:] = divides.cumsum(axis=1)
        self.counts = below[:, -1].astype(np.float64)
        # the divisors of each number in order, behind a 0; the rest of a row is infinite
        rows = np.full((count, count + 2), np.inf)
        rows[:, 0] = 0.0
        numbers, columns = np.nonzero(divides)
        rows[numbers, below[numbers, columns] + 1] = self.values[columns]
        self._below, self._rows = below, rows

    def ranges(
        self,
        starts: Numbers,
        ends: Numbers,
        numbers: Places | int = -1,
        *,
        rising: bool,
        wider: float = WIDER,
    ) -> Ranges:
        """The divisors from starts to ends, all ranges rising or all falling; of `number` without `numbers`.

        A range is first made `wider` on both sides. When it holds none: the first divisor beyond its end.
        Otherwise the divisor beyond the end comes along when it is at least as close to the end that was
        asked for, in ratio, as the last one inside; the start is never extended.
        """
        low, high = (starts, ends) if rising else (ends, starts)
        first = self._below[numbers, np.searchsorted(self.values, low - wider)]
        last = self._below[numbers, np.searchsorted(self.values, high + wider, "right")]
        # The last inside and what lies beyond the end, side by side among the divisors of each number.
        at = last if rising else first
        sides = self._rows[numbers, at], self._rows[numbers, at + 1]
        edge, beyond = sides if rising else sides[::-1]
        with np.errstate(divide="ignore", invalid="ignore"):
            away = beyond / ends if rising else ends / beyond
            near = np.maximum(edge / ends, ends / edge)
        extended = ((away <= near) | (first == last)) & np.isfinite(away)
        return Ranges(first, last, extended)


class Ranges(msgspec.Struct, frozen=True):
    """Positions among the divisors of each number, [first, last); `extended`: and the one beyond the end."""

    first: Places
    last: Places
    extended: NDArray[np.bool_]

    @property
    def counts(self) -> Places:
        """How many divisors each range has, int64 [N]."""
        found: Places = self.last - self.first + self.extended
        return found


@cache
def divisor_table(number: int) -> DivisorTable:
    """The table of a number, made once."""
    return DivisorTable(number)
