"""Transfer: a global model of other operators helps from the first measurement on, and is corrected later."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import kendalltau

from toolkit.cost_model.base import Objective
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.cost_model.transfer import HALVED_AFTER, Transfer

RNG = np.random.default_rng(0)
SOURCES = 6


def operator(n: int, *, own: float, scale: float) -> tuple[np.ndarray, np.ndarray]:
    """Configurations of an operator: two features matter for all operators, one for this one only."""
    features = RNG.normal(size=(n, 8)).astype(np.float32)
    costs_s = scale * np.exp(features[:, 0] - np.abs(features[:, 1]) + own * features[:, 2])
    return features, costs_s.astype(np.float64)


def global_model(objective: Objective) -> GradientBoostedTrees:
    data = [operator(200, own=0.0, scale=10.0**power) for power in range(SOURCES)]
    model = GradientBoostedTrees(objective)
    model.fit(
        np.concatenate([features for features, _ in data]),
        np.concatenate([costs_s for _, costs_s in data]),
        np.repeat(np.arange(SOURCES), 200),
    )
    return model


@pytest.mark.parametrize("objective", ["rank", "regression"])
def test_the_global_model_ranks_before_anything_was_measured_and_the_local_one_corrects_it(
    objective: Objective,
) -> None:
    unseen, truth = operator(400, own=-1.5, scale=3.0)
    known, costs_s = operator(64, own=-1.5, scale=3.0)
    transfer = Transfer(global_model(objective), GradientBoostedTrees(objective))
    alone = GradientBoostedTrees(objective)
    before = kendalltau(transfer.predict(unseen), -truth)[0]
    few: dict[str, float] = {}
    for count in (8, 64):
        transfer.fit(known[:count], costs_s[:count])
        alone.fit(known[:count], costs_s[:count])
        few[f"transfer {count}"] = kendalltau(transfer.predict(unseen), -truth)[0]
        few[f"alone {count}"] = kendalltau(alone.predict(unseen), -truth)[0]
    assert before > 0.25
    assert few["transfer 8"] > few["alone 8"]
    assert few["transfer 64"] > before + 0.1
    assert objective == "regression" or few["transfer 64"] > few["alone 64"]


def test_each_model_reads_its_own_columns() -> None:
    features, costs_s = operator(100, own=0.0, scale=1.0)
    first, second = (GradientBoostedTrees() for _ in range(2))
    first.fit(features[:, :3], costs_s)
    transfer = Transfer(first, second, columns=3)
    assert np.array_equal(transfer.predict(features), first.predict(features[:, :3]))
    transfer.fit(features, costs_s)
    known = first.predict(features[:, :3]) * HALVED_AFTER / (HALVED_AFTER + 100)
    added = transfer.predict(features) - known
    assert added.std() > 0.1
    assert np.allclose(added, second.predict(features[:, 3:]), atol=1e-5)


def test_the_global_model_counts_the_less_the_more_is_known() -> None:
    features, costs_s = operator(3 * HALVED_AFTER, own=0.0, scale=1.0)
    first = GradientBoostedTrees()
    first.fit(features, costs_s)
    transfer, weights = Transfer(first, GradientBoostedTrees()), []
    for count in (0, HALVED_AFTER, 3 * HALVED_AFTER):
        if count:
            transfer.fit(features[:count], costs_s[:count])
        weights.append(transfer.state()["weight"])
    assert weights == [1.0, 0.5, 0.25]
