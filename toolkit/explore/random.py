"""Baseline: configurations drawn at random, each once."""

from __future__ import annotations

import numpy as np

from toolkit.explore.proposer import Remembering
from toolkit.explore.space import Batch, SearchSpace, draw_unseen


class RandomProposer(Remembering):
    """Ignores what it is told, except that it proposes nothing twice."""

    def __init__(self, space: SearchSpace, rng: np.random.Generator) -> None:
        super().__init__(space)
        self._rng = rng

    def ask(self, n: int) -> Batch:
        return self._history.asked(draw_unseen(self._space, self._rng, n, self._history.seen))
