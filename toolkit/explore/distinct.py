"""A search that asks for every program once: many configurations of a space may make the same one."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.proposer import Predicted, Proposer
from toolkit.explore.space import Batch, Identify, SearchSpace

ATTEMPTS: Final = 4  # to fill a batch: an annealing each
DRAWN: Final = 512  # at random where those bring nothing new; if all repeat programs the search is over

Row = NDArray[np.int64]


class DistinctPrograms:
    """Asks for what `inner` asks for, without configurations whose program was asked for or told before.

    `inner` is told what those cost, as soon as that is known: an unrolling limit that changes nothing then
    looks to it like one that was measured. Where `inner` knows nothing but repetitions, of a plateau say,
    configurations are drawn at random. `programs` tells which ones make the same program. It keeps to the
    contract of a Proposer.
    """

    def __init__(
        self, space: SearchSpace, inner: Proposer, programs: Identify, rng: np.random.Generator
    ) -> None:
        self._space = space
        self._inner = inner
        self._programs = programs
        self._rng = rng
        self._costs_s: dict[int, float] = {}  # of programs
        self._waiting: dict[int, list[Row]] = {}  # configurations of programs that are being measured

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        found: list[Row] = []
        repeated: list[tuple[int, Row]] = []
        for _ in range(ATTEMPTS):
            wanted = n - len(found)
            rows = self._inner.ask(wanted)
            new, known = self._parted(rows, wanted)
            found += new
            repeated += known
            fewer = len(rows) < wanted
            if len(found) == n or not len(rows) or (found and fewer):
                break
            if fewer:  # it wants to know costs
                self._tell_repeated(repeated)
                repeated = []
        else:
            if not found:
                found, _ = self._parted(self._space.sample(self._rng, DRAWN), n)
        self._tell_repeated(repeated)
        return self._batch(found)

    def _parted(self, rows: Batch, n: int) -> tuple[list[Row], list[tuple[int, Row]]]:
        """At most n rows with new programs, which are waited for from now on, and those with known ones."""
        new: list[Row] = []
        known: list[tuple[int, Row]] = []
        for program, row in zip(self._programs(rows).tolist(), rows, strict=True):
            if program in self._waiting or program in self._costs_s:
                known.append((program, row))
            elif len(new) < n:
                self._waiting[program] = []
                new.append(row)
        return new, known

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """See Proposer.tell."""
        self._inner.tell(batch, costs_s)
        told: list[tuple[int, Row]] = []
        for program, cost_s in zip(self._programs(batch).tolist(), costs_s.tolist(), strict=True):
            self._costs_s[program] = cost_s
            told += [(program, other) for other in self._waiting.pop(program, [])]
        self._tell_repeated(told)

    def predicted(self, batch: Batch) -> Predicted | None:
        """See Proposer.predicted."""
        return self._inner.predicted(batch)

    def _tell_repeated(self, repeated: list[tuple[int, Row]]) -> None:
        """Tell the costs that are known; what is being measured waits for them."""
        rows, costs_s = [], []
        for program, row in repeated:
            if program in self._costs_s:
                rows.append(row)
                costs_s.append(self._costs_s[program])
            else:
                self._waiting[program].append(row)
        if rows:
            self._inner.tell(self._batch(rows), np.array(costs_s))

    def _batch(self, rows: list[Row]) -> Batch:
        return np.stack(rows) if rows else np.zeros((0, len(self._space.shape)), np.int64)
