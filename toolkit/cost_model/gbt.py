"""Gradient boosted trees over loop features (AutoTVM, section 3.1), by XGBoost.

Two objectives: "rank" is the loss of eq. 2 over pairs of measurements (pairs.py), "regression" the squared
error of the throughput relative to the best. Prediction is one call for a whole population of candidates.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec
import numpy as np
from msgspec.structs import asdict

from toolkit.cost_model.base import Costs, Groups, Objective, Rows, check_lengths, check_objective, throughput
from toolkit.cost_model.pairs import pairwise_rank


class TreeOptions(msgspec.Struct, frozen=True):
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

    kind: ClassVar = "gbt"

    def __init__(
        self, objective: Objective = "rank", *, seed: int = 0, options: TreeOptions = TreeOptions()
    ) -> None:
        check_objective(objective)
        self.objective = objective
        self.seed = seed
        self.options = options
        self._booster: Any = None

    def fit(
        self, features: Rows, costs_s: Costs, groups: Groups | None = None, offsets: Rows | None = None
    ) -> None:
        """See CostModel.fit."""
        import xgboost

        check_lengths(features, costs_s, groups, offsets)
        options = self.options
        labels = throughput(costs_s, groups)
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
            features, label=labels, base_margin=offsets, max_bin=options.max_bin, nthread=options.threads
        )
        ranked = self.objective == "rank"
        self._booster = xgboost.train(
            parameters if ranked else parameters | {"objective": "reg:squarederror"},
            data,
            num_boost_round=options.rounds,
            obj=pairwise_rank(labels, np.random.default_rng(self.seed), groups) if ranked else None,
        )

    def predict(self, features: Rows) -> Rows:
        """See CostModel.predict."""
        if self._booster is None:
            return np.zeros(len(features), np.float32)
        if not len(features):
            return np.zeros(0, np.float32)
        scores: Rows = self._booster.inplace_predict(features, predict_type="margin")
        return scores

    def state(self) -> dict[str, Any]:
        """See Saveable.state; the trees are in XGBoost's own UBJSON."""
        return {
            "objective": self.objective,
            "seed": self.seed,
            "options": asdict(self.options),
            "booster": None if self._booster is None else bytes(self._booster.save_raw("ubj")),
        }

    @classmethod
    def restore(cls, state: dict[str, Any]) -> GradientBoostedTrees:
        """The model that `state` describes. Raises ValueError when XGBoost cannot read the trees."""
        import xgboost

        model = cls(state["objective"], seed=state["seed"], options=TreeOptions(**state["options"]))
        if state["booster"] is not None:
            model._booster = xgboost.Booster({"nthread": model.options.threads})
            model._booster.load_model(bytearray(state["booster"]))
        return model
