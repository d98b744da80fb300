"""One suite for every CostModel (toolkit/cost_model/base.py holds the contract)."""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace

from tests.quick import others_slow
from tests.synthetic_trees import CHANNELS, tree_features
from toolkit.cost_model.base import Objective, Saveable
from toolkit.cost_model.bootstrap import BootstrapEnsemble
from toolkit.cost_model.choose import make_cost_model
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.cost_model.model_file import FeatureFacts, Provenance, SavedModel, from_bytes, to_bytes
from toolkit.cost_model.names import COST_MODELS, TREE_MODELS
from toolkit.cost_model.transfer import Transfer
from toolkit.cost_model.tree_gru import TrainingOptions, TreeGRU

Make = Callable[[int], Saveable]
ORIGIN = Provenance((), "0", 0, 0.0, 0.0)


@functools.cache
def learnt(seed: int) -> Saveable:
    """A model that has learnt something; nobody fits it again."""
    model = make_cost_model("gbt", seed)
    model.fit(tree_features(60, seed=9)[:, :100], data(60, seed=9)[1])
    return model


def transfer(seed: int) -> Saveable:
    """A transfer model whose global part has learnt something."""
    return Transfer(learnt(seed), make_cost_model("gbt", seed + 1), columns=100)


def named(name: str, seed: int) -> Saveable:
    """The model of this name; the five members of an ensemble get a few trees each, not 100."""
    model = make_cost_model(name, seed)
    if isinstance(model, BootstrapEnsemble):
        for member in model.members:
            assert isinstance(member, GradientBoostedTrees)
            member.options = replace(member.options, rounds=10)
    return model


def tree(objective: Objective, vanilla: bool) -> Make:
    """A network that learns for a moment only: what is tested here does not need more."""
    short = TrainingOptions(fewest_steps=4, most_steps=4, batch=32)
    return lambda seed: TreeGRU(CHANNELS, objective, vanilla=vanilla, seed=seed, options=short)


MODELS: dict[str, Make] = {
    **{name: functools.partial(named, name) for name in COST_MODELS if name not in TREE_MODELS},
    "treegru": tree("rank", vanilla=False),
    "vanilla-treegru": tree("regression", vanilla=True),  # two networks have both objectives and both kinds
    "transfer": transfer,
}
# networks take long to compile, and one kind of ensemble stands for the others
LONG = {*TREE_MODELS, "bootstrap-mean", "bootstrap-ucb"}
COMPILED = [pytest.param(name, marks=pytest.mark.slow if name in LONG else []) for name in MODELS]


@pytest.fixture(params=COMPILED, name="make")
def _make(request: pytest.FixtureRequest) -> Make:
    return MODELS[request.param]


def data(n: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    features = tree_features(n, seed=seed)
    innermost = features.reshape(n, -1, CHANNELS)[:, 0, 4:]
    return features, np.exp(innermost[:, 0] - 0.5 * innermost[:, 5]).astype(np.float64)


def test_scores_have_one_row_each(make: Make) -> None:
    model = make(0)
    features, costs = data(50)
    assert model.predict(features).shape == (50,)
    model.fit(features, costs)
    scores = model.predict(features)
    assert scores.shape == (50,) and scores.dtype == np.float32
    assert np.isfinite(scores).all()
    assert model.predict(features[:0]).shape == (0,)


def test_one_seed_one_result(make: Make) -> None:
    features, costs = data(80)
    scores = []
    for _ in range(2):
        model = make(5)
        model.fit(features, costs)
        scores.append(model.predict(features))
    assert np.array_equal(scores[0], scores[1])


def test_a_fit_replaces_what_was_learnt_before(make: Make) -> None:
    features, costs = data(40)
    fresh, again = make(5), make(5)
    again.fit(features[::-1], costs)
    again.fit(features, costs)
    fresh.fit(features, costs)
    assert np.array_equal(again.predict(features), fresh.predict(features))


@pytest.mark.parametrize("n", others_slow([1, 2, 3], 1))
def test_a_first_batch_of_any_size_is_enough(make: Make, n: int) -> None:
    features, costs = data(n)
    model = make(0)
    model.fit(features, costs)
    model.fit(features, np.full(n, np.nan))
    assert np.isfinite(model.predict(features)).all()


def test_only_times_of_one_group_are_compared(make: Make) -> None:
    features, costs = data(90)
    groups = np.repeat([4, 0, 7], 30)
    scores = []
    for scale in (np.ones(90), np.repeat([1e-3, 1.0, 1e4], 30)):
        model = make(1)
        model.fit(features, costs * scale, groups)
        scores.append(model.predict(features))
    assert np.allclose(scores[0], scores[1], atol=1e-5)


def test_what_was_saved_predicts_the_same(make: Make) -> None:
    features, costs = data(60)
    model = make(3)
    for fitted in (False, True):
        if fitted:
            model.fit(features, costs, offsets=features[:, 4].copy())
        saved = SavedModel("x", model, FeatureFacts("tree", features.shape[1], CHANNELS), ORIGIN)
        loaded = from_bytes(to_bytes(saved), "here").model
        assert type(loaded) is type(model)
        assert np.array_equal(loaded.predict(features), model.predict(features))


@pytest.mark.parametrize(
    ("features", "costs", "more"),
    [
        (np.zeros((3, 2), np.float32), np.zeros(2), {}),
        (np.zeros((0, 2), np.float32), np.zeros(0), {}),
        (np.zeros(3, np.float32), np.zeros(3), {}),
        (np.zeros((3, 2), np.float32), np.zeros(3), {"groups": np.zeros(2, np.int64)}),
        (np.zeros((3, 2), np.float32), np.zeros(3), {"offsets": np.zeros((3, 1), np.float32)}),
    ],
)
def test_misshapen_data_is_refused(
    make: Make, features: np.ndarray, costs: np.ndarray, more: dict[str, np.ndarray]
) -> None:
    with pytest.raises(ValueError, match="a cost model is fitted"):
        make(0).fit(features, costs, **more)
