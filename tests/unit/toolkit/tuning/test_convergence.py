"""The rule that says when more trials no longer pay."""

from __future__ import annotations

import math

import pytest

from toolkit.tuning.convergence import ConvergenceRule, converged, gain

RULE = ConvergenceRule(share=0.01, trials=16, patience=8)


def test_gain_is_the_fall_of_the_best_within_the_window() -> None:
    assert gain([4.0, 5.0, 3.0, math.nan, 2.0], 1) == pytest.approx(1 / 3)
    assert gain([4.0, 5.0, 3.0, math.nan, 2.0], 3) == pytest.approx(0.5)
    assert gain([4.0, 2.0, 3.0, 2.0], 2) == 0.0
    assert gain([math.nan, math.nan, 2.0], 1) == 1.0  # the first success
    assert gain([2.0], 8) == 1.0
    assert gain([math.nan] * 4, 2) == 0.0
    assert gain([], 2) == 0.0


def test_an_operator_that_gains_nothing_converges_after_enough_trials() -> None:
    flat = [1.0] * 16
    assert not converged(flat[:15], RULE)
    assert converged(flat, RULE)


def test_small_gains_count_as_none_and_larger_ones_do_not() -> None:
    assert converged([1.0] * 8 + [0.995] * 8, RULE)
    assert not converged([1.0] * 8 + [0.98] * 8, RULE)


def test_a_gain_in_the_last_half_keeps_an_operator_going_and_is_forgotten_later() -> None:
    costs = [1.0] * 12 + [0.5] + [0.5] * 3
    assert not converged(costs, RULE)
    assert not converged(costs + [0.5] * 8, RULE)  # 24 trials: the last 12 begin with trial 13
    assert converged(costs + [0.5] * 10, RULE)


def test_patience_is_a_number_of_trials() -> None:
    late = ConvergenceRule(share=0.01, trials=4, patience=8)
    assert not converged([1.0, 0.5, 0.5, 0.5, 0.5], late)
    assert converged([1.0, 0.5] + [0.5] * 8, late)


def test_slow_but_steady_progress_converges_when_it_is_slow_enough() -> None:
    """A time that falls with the square root of the trials gains 29 % by doubling them, whatever they are."""
    steady = [t**-0.5 for t in range(1, 400)]
    assert not any(converged(steady[:n], RULE) for n in range(400))
    slow = [1.0 + t**-0.5 for t in range(1, 4000)]
    first = next(n for n in range(4000) if converged(slow[:n], RULE))
    assert 1000 < first < 3000
    assert gain(slow[:first], first // 2) == pytest.approx(0.01, abs=1e-4)


def test_an_operator_that_never_works_has_converged() -> None:
    assert converged([math.nan] * 16, RULE)


@pytest.mark.parametrize("wrong", [{"share": 0.0}, {"share": 1.0}, {"trials": 0}, {"patience": 0}])
def test_rules_that_cannot_be(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="share between 0 and 1 and at least one trial of patience"):
        ConvergenceRule(**wrong)  # type: ignore[arg-type]
