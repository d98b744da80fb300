"""`divisors_between` (toolkit.reuse.rounds.sizes) for many ranges at once: for plans of many operators."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from cross.schedule.tiles import divisors
from toolkit.reuse.rounds.sizes import WIDER

Numbers = NDArray[np.float64]
Places = NDArray[np.int64]

_BITS_LEFT_OUT = 52 - 9  # of a float64's fraction
_LEAST = 0.5


class Ranks:
    """Where numbers belong among ascending `values` of at least 1, as np.searchsorted says, but sooner.

    The leading bits of a number look up where it belongs, but for the few values with the same bits.
    """

    def __init__(self, values: Numbers) -> None:
        bits = values.view(np.int64) >> _BITS_LEFT_OUT
        self._top = 2.0 * float(values[-1])
        self._first = int(np.float64(_LEAST).view(np.int64)) >> _BITS_LEFT_OUT
        last = int(np.float64(self._top).view(np.int64)) >> _BITS_LEFT_OUT
        self._base = np.searchsorted(bits, np.arange(self._first, last + 1))
        self._alike = int(np.unique(bits, return_counts=True)[1].max())
        self._values = np.concatenate([values, np.full(self._alike, np.inf)])

    def below(self, numbers: Numbers) -> Places:
        """How many values are less than each number, [N]."""
        numbers, found = self._start(numbers)
        for _ in range(self._alike):
            found += self._values.take(found) < numbers
        return found

    def up_to(self, numbers: Numbers) -> Places:
        """How many values are at most each number, [N]."""
        numbers, found = self._start(numbers)
        for _ in range(self._alike):
            found += self._values.take(found) <= numbers
        return found

    def _start(self, numbers: Numbers) -> tuple[Numbers, Places]:
        numbers = np.minimum(np.maximum(numbers, _LEAST), self._top)
        return numbers, self._base.take((numbers.view(np.int64) >> _BITS_LEFT_OUT) - self._first)


class DivisorTable:
    """`divisors_between` for many ranges at once; the number of each is a divisor of one `number`.

    `values`, float64 [D]: the divisors of `number`, by whose positions numbers are told; `counts` [D]:
    how many divisors each of them has.
    """

    def __init__(self, number: int) -> None:
        found = np.array(divisors(number), np.int64)
        divides = found[:, None] % found[None, :] == 0  # [number, divisor]
        count = len(found)
        self.values = found.astype(np.float64)
        self.ranks = Ranks(self.values)
        # how many of the first r divisors of `number` divide each number; r = 0 .. D
        below = np.zeros((count, count + 1), np.int64)
        below[:, 1:] = divides.cumsum(axis=1)
        self.counts = below[:, -1].astype(np.float64)
        # the divisors of each number in order, behind a 0; the rest of a row is infinite
        rows = np.full((count, count + 2), np.inf)
        rows[:, 0] = 0.0
        numbers, columns = np.nonzero(divides)
        rows[numbers, below[numbers, columns] + 1] = self.values[columns]
        self._below, self._rows, self._own, self._width = below.ravel(), rows.ravel(), rows[-1], count + 1

    def ranges(self, starts: Numbers, ends: Numbers, numbers: Places | None, *, rising: bool) -> Ranges:
        """The ranges, all of them rising or all falling. `numbers`: None for `number` itself."""
        low, high = (starts, ends) if rising else (ends, starts)
        first, last = self.ranks.below(low - WIDER), self.ranks.up_to(high + WIDER)
        at = last if rising else first
        if numbers is not None:
            row = numbers * self._width
            first, last = self._below.take(row + first), self._below.take(row + last)
            at = (last if rising else first) + (row + numbers)
        # The last inside and what lies beyond the end, side by side among the divisors of each number.
        rows = self._rows if numbers is not None else self._own
        edge, beyond = (rows.take(at), rows.take(at + 1)) if rising else (rows.take(at + 1), rows.take(at))
        with np.errstate(divide="ignore", invalid="ignore"):
            away = beyond / ends if rising else ends / beyond
            near = np.maximum(edge / ends, ends / edge)
        extended = ((away <= near) | (first == last)) & np.isfinite(away)
        return Ranges(first, last, extended)


@dataclass(frozen=True, slots=True)
class Ranges:
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
