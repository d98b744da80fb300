"""Faster or not: false verdicts on equal programs, a small slowdown found, under noise of several kinds."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.stats import wilcoxon

from toolkit.measure.comparison import compare
from toolkit.model_job.latency import PAIRS

RUNS = 10  # of each program in a pair
CASES = 1000


def measured(
    rng: np.random.Generator, slowdown: float, *, neighbour: bool
) -> tuple[list[float], list[float]]:
    """Medians of pairs: 2 % of jitter a run, a clock that wanders by 1 % a pair; with a neighbour, a third of
    the blocks take up to 1.4 times as long, whichever program they are of."""
    clock = np.exp(np.cumsum(rng.normal(0.0, 0.01, PAIRS)))
    medians = []
    for factor in (1.0, slowdown):
        runs: NDArray[np.float64] = factor * clock[:, None] * np.exp(rng.normal(0.0, 0.02, (PAIRS, RUNS)))
        if neighbour:
            runs *= np.where(rng.random((PAIRS, 1)) < 1 / 3, rng.uniform(1.0, 1.4, (PAIRS, 1)), 1.0)
        medians.append(np.median(runs, axis=1).tolist())
    return medians[0], medians[1]


@pytest.mark.parametrize("neighbour", [False, True])
def test_equal_programs_are_told_apart_in_at_most_5_of_100_cases(neighbour: bool) -> None:
    rng = np.random.default_rng(15)
    verdicts = [compare(*measured(rng, 1.0, neighbour=neighbour)).verdict for _ in range(CASES)]
    assert sum(verdict != "no difference found" for verdict in verdicts) <= 0.05 * CASES


def test_a_kernel_that_is_3_percent_slower_is_found_in_9_of_10_cases() -> None:
    rng = np.random.default_rng(15)
    verdicts = [compare(*measured(rng, 1.03, neighbour=False)).verdict for _ in range(CASES)]
    assert verdicts.count("slower") >= 0.9 * CASES
    assert "faster" not in verdicts


def test_a_few_disturbed_pairs_do_not_hide_a_difference() -> None:
    before = np.full(PAIRS, 1.0) + np.linspace(0, 0.01, PAIRS)
    after = before / 1.1
    after[0] *= 3.0
    found = compare(before.tolist(), after.tolist())
    assert found.verdict == "faster"
    assert found.ratio == pytest.approx(1.1, rel=0.01)


@pytest.mark.parametrize("pairs", [8, 9, 12, 20])
def test_the_verdict_is_that_of_the_signed_rank_test(pairs: int) -> None:
    """Against scipy's exact test of the same differences."""
    rng = np.random.default_rng(pairs)
    for shift in np.linspace(0.0, 0.05, 40):
        differences = rng.normal(shift, 0.03, pairs)
        found = compare(np.exp(differences).tolist(), [1.0] * pairs)
        significant = wilcoxon(differences, method="exact").pvalue <= 0.01
        assert (found.verdict != "no difference found") == significant


def test_too_few_pairs_decide_nothing() -> None:
    assert compare([2.0] * 7, [1.0] * 7).verdict == "too few runs to tell"
    assert compare([2.0] * 8, [1.0] * 8).verdict == "faster"


@pytest.mark.parametrize("before", [[], [1.0], [1.0, 0.0], [1.0, float("nan")]])
def test_samples_that_cannot_be_compared_are_refused(before: list[float]) -> None:
    with pytest.raises(ValueError, match="expected"):
        compare(before, [1.0, 1.0])
