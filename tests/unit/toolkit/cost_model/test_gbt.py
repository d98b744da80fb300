"""Boosted trees: they rank, failures are worst, threads do not matter, eq. 2 has the right gradient."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime
from scipy.stats import kendalltau

from toolkit.cost_model.base import throughput
from toolkit.cost_model.gbt import GradientBoostedTrees, Objective, TreeOptions, pairwise_rank

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(600, 12)).astype(np.float32)
COSTS_S = np.exp(FEATURES[:, 0] - np.abs(FEATURES[:, 1]) + 0.3 * FEATURES[:, 2]).astype(np.float64)
OBJECTIVES: list[Objective] = ["rank", "regression"]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_unseen_configurations_are_ranked(objective: Objective) -> None:
    model = GradientBoostedTrees(objective, options=TreeOptions(threads=1))
    model.fit(FEATURES[:300], COSTS_S[:300])
    tau = kendalltau(model.predict(FEATURES[300:]), -COSTS_S[300:])[0]
    assert tau > 0.7


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_failures_score_below_everything_that_ran(objective: Objective) -> None:
    costs = np.where(FEATURES[:, 3] > 0.5, np.nan, COSTS_S)
    model = GradientBoostedTrees(objective, options=TreeOptions(threads=1))
    model.fit(FEATURES, costs)
    scores = model.predict(FEATURES)
    assert np.median(scores[np.isnan(costs)]) < np.quantile(scores[~np.isnan(costs)], 0.2)


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_thread_count_does_not_change_the_scores(objective: Objective) -> None:
    scores = []
    for threads in (1, 2):
        model = GradientBoostedTrees(objective, seed=3, options=TreeOptions(threads=threads, rounds=5))
        model.fit(FEATURES, COSTS_S)
        scores.append(model.predict(FEATURES))
    assert np.array_equal(*scores)


def test_the_gradient_is_that_of_equation_2() -> None:
    labels = np.array([1.0, 0.5, 0.5, 0.25, 0.0, 0.0])
    scores = np.linspace(-1.0, 1.0, 6)

    def loss(f: np.ndarray) -> float:
        sign = np.sign(labels[:, None] - labels[None, :])
        margin = sign * (f[:, None] - f[None, :])
        return float(np.log1p(np.exp(-margin))[sign > 0].sum())

    first, second = pairwise_rank(labels, np.random.default_rng(0))(scores.astype(np.float32), None)
    meets = np.array([5, 4, 4, 5, 4, 4])
    assert first * meets == pytest.approx(approx_fprime(scores, loss), abs=1e-4)
    assert (second > 0).all()


def test_labels_are_relative_throughput_and_failures_zero() -> None:
    assert throughput(np.array([2e-3, np.nan, 1e-3])).tolist() == [0.5, 0.0, 1.0]
    assert throughput(np.array([np.nan])).tolist() == [0.0]


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'rank' or 'regression', found 'mse'"):
        GradientBoostedTrees("mse")  # type: ignore[arg-type]
