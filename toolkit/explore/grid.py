"""Baseline: configurations in index order, from the first to the last."""

from __future__ import annotations

import numpy as np

from toolkit.explore.proposer import Remembering
from toolkit.explore.space import Batch, SearchSpace, enumerated, fresh


class GridProposer(Remembering):
    """Walks the space once; ends when every valid configuration has been asked for."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__(space)
        self._blocks = enumerated(space)
        self._ahead: Batch = np.zeros((0, len(space.shape)), np.int64)

    def ask(self, n: int) -> Batch:
        self._ahead = fresh(self._space, self._ahead, self._history.seen)
        while len(self._ahead) < n:
            block = next(self._blocks, None)
            if block is None:
                break
            self._ahead = np.concatenate([self._ahead, fresh(self._space, block, self._history.seen)])
        return self._history.asked(self._ahead[:n])
