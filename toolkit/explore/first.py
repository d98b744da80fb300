"""A proposer whose very first proposal is given: a default schedule, the time before tuning."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.proposer import Proposer
from toolkit.explore.space import Batch, SearchSpace


class DefaultFirst:
    """Asks for `row`, int64 [K], once and first, unless it is told before; then for what `inner` asks for."""

    def __init__(self, space: SearchSpace, row: NDArray[np.int64], inner: Proposer) -> None:
        self._space = space
        self._inner = inner
        self._first = row[None]
        self._known = False

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        if self._known or n <= 0:
            return self._inner.ask(n)
        self._known = True
        others = self._inner.ask(n - 1)
        same = self._is_first(others)
        if same.any():
            others = np.concatenate([others[~same], self._inner.ask(int(same.sum()))])
        self._inner.tell(self._first, np.array([np.nan]))  # taken; its cost follows
        return np.concatenate([self._first, others])

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """See Proposer.tell."""
        self._inner.tell(batch, costs_s)
        self._known = self._known or bool(self._is_first(batch).any())

    def _is_first(self, batch: Batch) -> NDArray[np.bool_]:
        same: NDArray[np.bool_] = self._space.ids(batch) == self._space.ids(self._first)[0]
        return same
