"""Boosted trees: they rank, failures are worst, threads do not matter, an offset is only added to."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau

from toolkit.cost_model.base import Objective
from toolkit.cost_model.gbt import GradientBoostedTrees, TreeOptions

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


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_an_offset_says_already_is_not_learnt_again(objective: Objective) -> None:
    """Given all of the truth there is little to add; given a wrong one, the difference is learnt."""
    model = GradientBoostedTrees(objective)
    truth = COSTS_S.min() / COSTS_S if objective == "regression" else -20.0 * np.log(COSTS_S)
    added = []
    for offsets in (truth.astype(np.float32), np.zeros(len(truth), np.float32)):
        model.fit(FEATURES, COSTS_S, offsets=offsets)
        added.append(model.predict(FEATURES))
    assert added[0].std() < 0.2 * added[1].std()


def test_an_unknown_objective_is_refused() -> None:
    with pytest.raises(ValueError, match="expected 'rank' or 'regression', found 'mse'"):
        GradientBoostedTrees("mse")  # type: ignore[arg-type]
