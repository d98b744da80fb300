"""The contract of a cost model: fit on what was measured, score what was not."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class CostModel(Protocol):
    """f̂ of the papers, seen from the search: only the order of its scores matters."""

    def fit(self, features: NDArray[np.float32], costs_s: NDArray[np.float64]) -> None:
        """Learn from every measurement so far, replacing what was learnt before.

        features: float32 [N, F], N >= 1; costs_s: float64 [N], seconds per call, NaN where the run failed.
        A failure is worse than every measured time. Raises ValueError when the lengths differ.
        """
        ...

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Scores, float32 [N], of features float32 [N, F]: higher is predicted faster."""
        ...


def throughput(costs_s: NDArray[np.float64]) -> NDArray[np.float64]:
    """Best time over each time, float64 [N] in (0, 1]; 0 for failures (NaN): the labels that models learn."""
    worked = np.isfinite(costs_s)
    labels = np.zeros(len(costs_s))
    if worked.any():
        labels[worked] = costs_s[worked].min() / costs_s[worked]
    return labels


def check_lengths(features: NDArray[np.float32], costs_s: NDArray[np.float64]) -> None:
    """Raise ValueError unless there is one cost for each row of features."""
    if features.ndim != 2 or costs_s.shape != features.shape[:1] or not len(costs_s):
        raise ValueError(
            "a cost model is fitted on features [N, F] and costs [N] with N >= 1: "
            f"found {features.shape} and {costs_s.shape}"
        )
