"""Proposers as one list: given configurations first, then each proposer when those before have none."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.proposer import Predicted, Proposer
from toolkit.explore.space import Batch, Ids, SearchSpace, fresh


class InTurn:
    """Asks for the rows of `first`, int64 [N, K], unless they are told before; then for what the first of
    `proposers` asks for that has anything, whatever the others ask for.

    All proposers are told everything. A batch that `first` does not fill is filled up; one that a proposer
    does not fill is not, so that the proposer hears what it cost before the next proposer is asked.
    """

    def __init__(self, space: SearchSpace, first: Batch, proposers: Sequence[Proposer]) -> None:
        self._space = space
        self._first = first
        self._proposers = proposers
        self._asked: Ids = np.zeros(0, np.uint64)  # of which proposers may not know yet

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        first, self._first = self._first[:n], self._first[n:]
        self._asked = np.union1d(self._asked, self._space.ids(first))
        rows = np.concatenate([first, self._of_proposers(n - len(first))])
        self._asked = np.union1d(self._asked, self._space.ids(rows))
        if len(first):
            self._tell_all(first, np.full(len(first), np.nan))  # taken; what they cost follows
        return rows

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """See Proposer.tell."""
        self._tell_all(batch, costs_s)
        self._first = fresh(self._space, self._first, self._space.ids(batch))

    def predicted(self, batch: Batch) -> Predicted | None:
        """See Proposer.predicted."""
        found = (proposer.predicted(batch) for proposer in self._proposers)
        return next((prediction for prediction in found if prediction is not None), None)

    def _tell_all(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        for proposer in self._proposers:
            proposer.tell(batch, costs_s)

    def _of_proposers(self, n: int) -> Batch:
        """At most n rows of one proposer that were not asked for yet."""
        found: Batch = np.zeros((0, len(self._space.shape)), np.int64)
        for proposer in self._proposers:
            wanted = n
            while wanted > 0:
                rows = proposer.ask(wanted)
                new = fresh(self._space, rows, self._asked)
                found = np.concatenate([found, new])
                wanted = len(rows) - len(new)
            if len(found):
                break
        return found
