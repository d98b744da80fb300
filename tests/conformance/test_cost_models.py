"""One suite for every CostModel (toolkit/cost_model/base.py holds the contract)."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from toolkit.cost_model.base import CostModel
from toolkit.cost_model.gbt import GradientBoostedTrees, TreeOptions
from toolkit.cost_model.random_model import RandomModel

THREADS = TreeOptions(threads=1)
MODELS: dict[str, Callable[[int], CostModel]] = {
    "rank": lambda seed: GradientBoostedTrees("rank", seed=seed, options=THREADS),
    "regression": lambda seed: GradientBoostedTrees("regression", seed=seed, options=THREADS),
    "random": lambda seed: RandomModel(np.random.default_rng(seed)),
}


@pytest.fixture(params=MODELS, name="make")
def _make(request: pytest.FixtureRequest) -> Callable[[int], CostModel]:
    return MODELS[request.param]


def data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    features = np.random.default_rng(seed).normal(size=(n, 12)).astype(np.float32)
    return features, np.exp(features[:, 0] - 0.5 * features[:, 1]).astype(np.float64)


def test_scores_have_one_row_each(make: Callable[[int], CostModel]) -> None:
    model = make(0)
    features, costs = data(50)
    assert model.predict(features).shape == (50,)
    model.fit(features, costs)
    scores = model.predict(features)
    assert scores.shape == (50,) and scores.dtype == np.float32
    assert np.isfinite(scores).all()
    assert model.predict(features[:0]).shape == (0,)


def test_one_seed_one_result(make: Callable[[int], CostModel]) -> None:
    features, costs = data(80)
    scores = []
    for _ in range(2):
        model = make(5)
        model.fit(features, costs)
        scores.append(model.predict(features))
    assert np.array_equal(scores[0], scores[1])


@pytest.mark.parametrize("n", [1, 2, 3])
def test_a_first_batch_of_any_size_is_enough(make: Callable[[int], CostModel], n: int) -> None:
    features, costs = data(n)
    model = make(0)
    model.fit(features, costs)
    model.fit(features, np.full(n, np.nan))
    assert np.isfinite(model.predict(features)).all()


@pytest.mark.parametrize(
    ("features", "costs"),
    [
        (np.zeros((3, 2), np.float32), np.zeros(2)),
        (np.zeros((0, 2), np.float32), np.zeros(0)),
        (np.zeros(3, np.float32), np.zeros(3)),
    ],
)
def test_misshapen_data_is_refused(
    make: Callable[[int], CostModel], features: np.ndarray, costs: np.ndarray
) -> None:
    with pytest.raises(ValueError, match="a cost model is fitted on features"):
        make(0).fit(features, costs)
