"""Reuse as a search: it keeps to the contract of toolkit.explore.proposer."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import ScheduleSpace
from toolkit.explore.proposer import History, Proposer
from toolkit.explore.space import Batch, fresh
from toolkit.reuse.rounds import Around, Program, first_round, later_round

PASSES = 2
WORTH = 0.99  # of the time of the best program: what a pass must fall below for another one to follow


class ReuseProposer:
    """Asks for what a tuned program of another operator calls for, then for what a search would (ETO, 5).

    A round begins from the best of the programs asked for in the rounds before and the untuned ones. What was
    told before it is asked for counts as asked for when its round comes: a search that is begun again with
    its old measurements goes the same way, and ends where it ended. `then` is asked when the rounds are
    over, and hears every measurement; without it the search ends there.
    """

    def __init__(self, space: ScheduleSpace, reused: Program, then: Proposer | None = None) -> None:
        self._space = space
        self._then = then
        self._history = History(space)
        self._round: Batch = first_round(space, reused)
        untuned = space.batch([space.default()])
        self._origin = np.concatenate([self._round, untuned])[0]
        self._visited: Batch = space.batch(space.defaults())
        self._next_rounds = [around for _ in range(PASSES) for around in Around]
        self._pass_from_s = np.inf

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        rows = self._of_rounds(n)
        if not len(rows) and n > 0 and self._then is not None:
            rows = fresh(self._space, self._then.ask(n), self._history.seen)
        return self._history.asked(rows)

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """See Proposer.tell."""
        self._history.told(batch, costs_s)
        if self._then is not None:
            self._then.tell(batch, costs_s)

    def _of_rounds(self, n: int) -> Batch:
        """At most n rows of the round that is due; none when there are no more rounds."""
        while n > 0:
            self._visited = np.concatenate([self._visited, self._round])
            self._round = fresh(self._space, self._round, self._history.seen)
            if len(self._round):
                return self._round[:n]
            if not self._begin_round():
                break
        return self._round[:0]

    def _best(self) -> tuple[NDArray[np.int64], float]:
        """The fastest visited program and its seconds; where none ran, the first one and infinity."""
        ids, known = self._space.ids(self._visited), self._space.ids(self._history.batch)
        mine = np.flatnonzero(np.isin(known, ids) & np.isfinite(self._history.costs_s))
        if not len(mine):
            return self._origin, np.inf
        best = mine[self._history.costs_s[mine].argmin()]
        return self._history.batch[best], float(self._history.costs_s[best])

    def _begin_round(self) -> bool:
        """Whether there is another round."""
        if not self._next_rounds:
            return False
        best, best_s = self._best()
        if self._next_rounds[0] is next(iter(Around)):
            if self._pass_from_s < np.inf and best_s > WORTH * self._pass_from_s:
                self._next_rounds.clear()
                return False
            self._pass_from_s = best_s
        self._round = later_round(self._space, best, self._next_rounds.pop(0))
        return True
