"""The statistics of the studies, against values computed by hand or known in closed form."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.statistics import (
    band,
    best_so_far,
    compare,
    mean_interval,
    rank_correlation,
    top_recall,
    trials_to_reach,
    widening,
)

NAN = float("nan")


def test_best_so_far_skips_failures_and_goes_on_after_the_end() -> None:
    assert best_so_far([NAN, 3.0, 4.0, 2.0], 6).tolist() == [np.inf, 3.0, 3.0, 2.0, 2.0, 2.0]


def test_two_evaluations_can_count_as_one_trial() -> None:
    assert best_so_far([5.0, 3.0, 4.0, 2.0, 1.0], 3, each=2).tolist() == [3.0, 2.0, 1.0]


def test_trials_to_reach_counts_from_one() -> None:
    best = best_so_far([5.0, 3.0, 3.0, 1.0], 4)
    assert [trials_to_reach(best, goal) for goal in (6.0, 5.0, 3.0, 2.0, 0.5)] == [1, 1, 2, 4, None]


def test_the_interval_covers_the_mean_as_often_as_it_says() -> None:
    rng = np.random.default_rng(0)
    intervals = [mean_interval(rng.normal(1.0, 0.3, 10).tolist()) for _ in range(400)]
    covered = np.mean([item.low <= 1.0 <= item.high for item in intervals])
    assert 0.92 <= covered <= 0.98
    assert all(item.low <= item.estimate <= item.high for item in intervals)


def test_the_band_of_one_curve_is_the_curve() -> None:
    mean, low, high = band(np.array([[1.0, 2.0, 3.0]]))
    assert mean.tolist() == low.tolist() == high.tolist() == [1.0, 2.0, 3.0]


def test_the_band_is_around_the_mean_and_narrower_than_the_range() -> None:
    curves = np.random.default_rng(1).uniform(1.0, 2.0, (10, 5))
    mean, low, high = band(curves)
    assert (low < mean).all() and (mean < high).all()
    assert (low > curves.min(axis=0)).all() and (high < curves.max(axis=0)).all()


def test_a_clear_difference_is_claimed_and_has_a_direction() -> None:
    slow = [1.0, 1.1, 0.9, 1.2, 1.0, 1.1, 0.95, 1.05]
    fast = [1.5 * value * wobble for value, wobble in zip(slow, [1.0, 1.02, 0.98, 1.01] * 2, strict=True)]
    found = compare(fast, slow)
    assert found.ratio.estimate == pytest.approx(1.5, rel=0.02)
    assert (found.verdict, compare(slow, fast).verdict) == ("better", "worse")
    assert compare(slow, fast).ratio.estimate == pytest.approx(1 / found.ratio.estimate)


@pytest.mark.parametrize(
    ("mine", "theirs", "verdict"),
    [
        pytest.param([1.0, 1.3, 0.8, 1.1, 0.9], [1.1, 1.0, 1.0, 1.0, 1.0], "tie", id="interval around 1"),
        pytest.param([2.0] * 5, [2.0] * 5, "tie", id="equal"),
        pytest.param([2.0] * 4, [1.0] * 4, "too few", id="four pairs prove nothing"),
    ],
)
def test_what_is_not_clear_is_not_claimed(mine: list[float], theirs: list[float], verdict: str) -> None:
    assert compare(mine, theirs).verdict == verdict


def test_small_samples_have_wider_intervals() -> None:
    assert widening(10) == pytest.approx(2.262 / 1.96 * np.sqrt(10 / 9), rel=0.01)
    assert 1.0 == widening(1) < widening(1000) < widening(10) < widening(5)


def test_pairs_see_what_samples_do_not() -> None:
    """Seeds differ by a factor of ten and one method is always 5 % ahead: no tie when taken in pairs."""
    other = np.geomspace(1.0, 10.0, 10)
    assert compare((other * 1.05).tolist(), other.tolist()).verdict == "better"


@pytest.mark.parametrize(("mine", "theirs"), [([], []), ([1.0], [1.0, 2.0]), ([0.0], [1.0])])
def test_samples_without_ratios_are_refused(mine: list[float], theirs: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        compare(mine, theirs)


def test_rank_correlation() -> None:
    costs = [1.0, 2.0, 4.0, NAN]
    assert rank_correlation([9.0, 5.0, 1.0, 0.0], costs) == pytest.approx(1.0)
    assert rank_correlation([0.0, 1.0, 5.0, 9.0], costs) == pytest.approx(-1.0)
    assert rank_correlation([1.0, 1.0, 1.0, 1.0], costs) == 0.0
    # with a tie in the scores: ranks 2.5 2.5 1 0 against 3 2 1 0
    assert rank_correlation([7.0, 7.0, 1.0, 0.0], costs) == pytest.approx(4.5 / np.sqrt(4.5 * 5.0))


def test_top_recall() -> None:
    costs = [4.0, 1.0, 2.0, 3.0, NAN]
    assert top_recall([0.0, 9.0, 8.0, 1.0, 2.0], costs, 2) == 1.0
    assert top_recall([9.0, 8.0, 0.0, 1.0, 2.0], costs, 2) == 0.5
    assert top_recall([1.0], [2.0], 64) == 1.0


def test_the_same_sample_gives_the_same_interval() -> None:
    values = np.random.default_rng(2).normal(size=10).tolist()
    assert mean_interval(values) == mean_interval(list(values))
