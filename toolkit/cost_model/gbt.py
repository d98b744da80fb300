"""Gradient boosted trees over loop features (AutoTVM, section 3.1), by XGBoost.

Two objectives: "rank" is the loss of eq. 2 over all pairs of measurements, "regression" the squared error of
the throughput relative to the best. Prediction is one call for a whole population of candidates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from toolkit.cost_model.base import check_lengths, throughput

Objective = Literal["rank", "regression"]

# Each of N measurements meets at most this many others, so that a fit stays linear in N.
PARTNER_LIMIT: Final = 512
_MIN_HESSIAN: Final = 1e-6


@dataclass(frozen=True, slots=True)
class TreeOptions:
    """Shape of the ensemble.

    `threads` does not change the result. One is the default: fits are small, and OpenMP threads that wait
    for a core another process holds make them many times slower.
    """

    rounds: int = 100
    max_depth: int = 4
    learning_rate: float = 0.2
    min_child_weight: float = 0.5
    max_bin: int = 64
    threads: int = 1


class GradientBoostedTrees:
    """The default cost model; the same seed and measurements give the same scores."""

    def __init__(
        self, objective: Objective = "rank", *, seed: int = 0, options: TreeOptions = TreeOptions()
    ) -> None:
        if objective not in ("rank", "regression"):
            raise ValueError(f"objective: expected 'rank' or 'regression', found {objective!r}")
        self.objective = objective
        self.seed = seed
        self.options = options
        self._booster: Any = None

    def fit(self, features: NDArray[np.float32], costs_s: NDArray[np.float64]) -> None:
        """See CostModel.fit."""
        import xgboost

        check_lengths(features, costs_s)
        options = self.options
        labels = throughput(costs_s)
        parameters = {
            "max_depth": options.max_depth,
            "eta": options.learning_rate,
            "min_child_weight": options.min_child_weight,
            "max_bin": options.max_bin,
            "nthread": options.threads,
            "tree_method": "hist",
            "seed": self.seed,
            "base_score": 0.0,
            "verbosity": 0,
            "disable_default_eval_metric": True,
        }
        data = xgboost.QuantileDMatrix(
            features, label=labels, max_bin=options.max_bin, nthread=options.threads
        )
        ranked = self.objective == "rank"
        self._booster = xgboost.train(
            parameters if ranked else parameters | {"objective": "reg:squarederror"},
            data,
            num_boost_round=options.rounds,
            obj=pairwise_rank(labels, np.random.default_rng(self.seed)) if ranked else None,
        )

    def predict(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """See CostModel.predict."""
        if self._booster is None:
            return np.zeros(len(features), np.float32)
        if not len(features):
            return np.zeros(0, np.float32)
        scores: NDArray[np.float32] = self._booster.inplace_predict(features, predict_type="margin")
        return scores


def pairwise_rank(
    labels: NDArray[np.float64], rng: np.random.Generator
) -> Callable[[NDArray[np.float32], Any], tuple[NDArray[np.float64], NDArray[np.float64]]]:
    """Gradient and diagonal Hessian of eq. 2, log(1 + exp(-sign(l_i - l_j) (f_i - f_j))) summed over pairs.

    labels: float64 [N], higher = faster; equal labels (failures) make no pair. Written out instead of
    XGBoost's `rank:pairwise` because that samples pairs within one query and ranks this data worse.
    """
    count = len(labels)
    partners = np.arange(count)
    if count > PARTNER_LIMIT:
        partners = np.sort(rng.choice(count, PARTNER_LIMIT, replace=False))
    sign = np.sign(labels[:, None] - labels[None, partners]).astype(np.float32)
    meets = np.maximum(np.count_nonzero(sign, axis=1), 1)

    def gradient(scores: NDArray[np.float32], _: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        margin = sign * (scores[:, None] - scores[None, partners])
        wrong = 1.0 / (1.0 + np.exp(np.clip(margin, -30.0, 30.0)))  # sigmoid(-margin)
        first = -(sign * wrong).sum(axis=1) / meets
        second = (np.abs(sign) * wrong * (1.0 - wrong)).sum(axis=1) / meets
        return first.astype(np.float64), np.maximum(second, _MIN_HESSIAN).astype(np.float64)

    return gradient
