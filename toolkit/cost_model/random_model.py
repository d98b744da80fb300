"""A cost model that knows nothing: the baseline that every learning model must beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolkit.cost_model.base import check_lengths


class RandomModel:
    """Scores drawn from `rng`, whatever was measured."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def fit(self, features: NDArray[np.float32], costs_s: NDArray[np.float64]) -> None:
        check_lengths(features, costs_s)

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        return self._rng.random(len(features), dtype=np.float32)
