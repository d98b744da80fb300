"""Bootstrap ensembles: deviation where there is no data, and the three acquisition functions."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from toolkit.cost_model.bootstrap import BootstrapEnsemble, log_expected_improvement, normal_cdf
from toolkit.cost_model.choose import ensemble
from toolkit.cost_model.gbt import GradientBoostedTrees, TreeOptions

RNG = np.random.default_rng(0)
FEATURES = RNG.normal(size=(2000, 6)).astype(np.float32)
COSTS_S = np.exp(FEATURES[:, 0] - 0.5 * np.abs(FEATURES[:, 1]) + 0.1 * RNG.normal(size=2000))
SMALL = TreeOptions(rounds=30)


def fitted(acquisition: str, n: int) -> BootstrapEnsemble:
    model = ensemble(
        lambda seed: GradientBoostedTrees("regression", seed=seed, options=SMALL), acquisition, 1
    )
    model.fit(FEATURES[:n], COSTS_S[:n])
    return model


def test_the_members_agree_more_the_more_was_measured() -> None:
    unseen = FEATURES[1500:]
    deviations = [fitted("mean", n).distribution(unseen)[1].mean() for n in (24, 96, 1500)]
    assert deviations[0] > 1.1 * deviations[1] > 1.2 * deviations[2] > 0.0


def test_the_bounds_are_mean_and_deviation() -> None:
    mean, deviation = fitted("mean", 100).distribution(FEATURES)
    assert np.array_equal(fitted("mean", 100).predict(FEATURES), mean)
    assert fitted("ucb", 100).predict(FEATURES) == pytest.approx(mean + deviation)


def test_expected_improvement_prefers_the_uncertain_one_of_equal_means() -> None:
    mean, deviation = np.array([0.5, 0.5, 0.9], np.float32), np.array([0.01, 0.2, 0.01], np.float32)
    scores = log_expected_improvement(mean, deviation, 0.8)
    assert scores.argsort().tolist() == [0, 1, 2]


@pytest.mark.parametrize("z", [-30.0, -8.0, -5.01, -4.99, -1.0, 0.0, 3.0])
def test_expected_improvement_is_the_integral(z: float) -> None:
    """Computed as sigma e^(log density of z) times an integral that no float underflows in."""
    sigma = 0.25
    inner = quad(lambda t: t * np.exp(-0.5 * t * t + z * t), 0.0, np.inf if z <= 0.0 else 40.0)[0]
    expected = np.log(sigma) + norm.logpdf(z) + np.log(inner)
    found = log_expected_improvement(np.array([1.0 + sigma * z]), np.array([sigma]), 1.0)
    assert found[0] == pytest.approx(expected, rel=2e-3, abs=2e-3)


def test_members_that_agree_wholly_still_order_the_candidates() -> None:
    scores = log_expected_improvement(np.linspace(-5.0, 2.0, 50, dtype=np.float32), np.zeros(50), 1.0)
    assert np.isfinite(scores).all() and (np.diff(scores) > 0.0).all()


def test_the_normal_distribution_function() -> None:
    z = np.linspace(-8.0, 8.0, 200)
    assert normal_cdf(z) == pytest.approx(norm.cdf(z), rel=1e-6)


def test_every_group_stays_in_every_resample() -> None:
    """A group of one record would else be lost to most members."""
    seen: list[set[int]] = []

    class Noting(GradientBoostedTrees):
        def fit(self, features, costs_s, groups=None, offsets=None):  # type: ignore[no-untyped-def]
            seen.append(set(groups.tolist()))
            super().fit(features, costs_s, groups, offsets)

    model = BootstrapEnsemble([Noting(options=SMALL) for _ in range(3)])
    model.fit(FEATURES[:20], COSTS_S[:20], np.array([0] * 12 + [1] * 7 + [2]))
    assert seen == [{0, 1, 2}] * 3


def test_what_is_no_ensemble_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 members: found 1"):
        BootstrapEnsemble([GradientBoostedTrees()])
    with pytest.raises(ValueError, match="expected one of mean, ei, ucb, found 'best'"):
        BootstrapEnsemble([GradientBoostedTrees()] * 2, "best")  # type: ignore[arg-type]
