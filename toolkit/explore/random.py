"""Baseline: configurations drawn at random, each once."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.proposer import Told
from toolkit.explore.space import Batch, SearchSpace, draw_unseen


class RandomProposer:
    """Ignores what it is told, except that it never proposes it again."""

    def __init__(self, space: SearchSpace, rng: np.random.Generator) -> None:
        self._space = space
        self._rng = rng
        self._told = Told(space)

    def ask(self, n: int) -> Batch:
        return draw_unseen(self._space, self._rng, n, self._told.ids)

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        self._told.add(batch, costs_s)
