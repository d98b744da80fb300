"""Baseline: configurations drawn at random, each once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.proposer import History
from toolkit.explore.space import Batch, SearchSpace, draw_unseen


class RandomProposer:
    """Ignores what it is told, except that it proposes nothing twice."""

    def __init__(self, space: SearchSpace, rng: np.random.Generator) -> None:
        self._space = space
        self._rng = rng
        self._history = History(space)

    def ask(self, n: int) -> Batch:
        return self._history.asked(draw_unseen(self._space, self._rng, n, self._history.seen))

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        self._history.told(batch, costs_s)
