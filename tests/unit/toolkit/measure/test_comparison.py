"""Faster or not: false verdicts on equal programs, a small slowdown found, under noise of several kinds."""

from __future__ import annotations

from collections import Counter
from functools import partial

import numpy as np
import pytest
from scipy.stats import wilcoxon

from toolkit.measure.comparison import compare
from toolkit.model_job.latency import (
    BLOCK_S,
    LEAST_RUNS,
    LOOKS,
    PAIRS,
    block_within,
    measure_in_turn,
    runs_of_block,
)
from toolkit.model_job.options import Latency

RUNS = 10  # of each program in a block
CASES = 200


class Machine:
    """Seconds of blocks of runs, one after the other in time, on a machine that is never left alone.

    The clock wanders by 1 % a block and falls by a tenth meanwhile, runs scatter by 2 % and resemble the run
    before. A neighbour comes and goes, for about three blocks each: then caches cost up to 5 %, and seven of
    ten runs wait for a core, for times with a heavy tail.
    """

    def __init__(self, rng: np.random.Generator, *, neighbour: bool) -> None:
        self.rng, self.neighbour = rng, neighbour
        self.clock, self.burdened, self.blocks = 0.0, False, 0

    def block(self, factor: float) -> Latency:
        """Runs of a program that takes `factor` milliseconds alone."""
        rng, jitter, seconds = self.rng, 0.0, []
        self.blocks += 1
        self.clock += rng.normal(0.0, 0.01) + 0.1 / (2 * PAIRS)
        if self.neighbour and rng.random() < 1 / 3:
            self.burdened = not self.burdened
        burden = rng.uniform(1.0, 1.05) if self.burdened else 1.0
        for _ in range(RUNS):
            jitter = 0.7 * jitter + rng.normal(0.0, 0.014)
            waited = rng.pareto(1.5) if self.burdened and rng.random() < 0.7 else 0.0
            seconds.append(1e-3 * factor * burden * np.exp(self.clock + jitter) + 1e-3 * waited)
        return Latency(tuple(seconds), 0.0)


def verdicts(slowdown: float, *, neighbour: bool) -> Counter[str]:
    """Of many comparisons of a program with one that takes `slowdown` times as long."""
    found: Counter[str] = Counter()
    for seed in range(CASES):
        machine = Machine(np.random.default_rng([15, seed]), neighbour=neighbour)
        first, second = partial(machine.block, 1.0), partial(machine.block, slowdown)
        measured = measure_in_turn(first, second, PAIRS)
        assert machine.blocks // 2 in LOOKS and measured.comparison is not None
        found[measured.comparison.verdict] += 1
    return found


@pytest.mark.parametrize("neighbour", [False, True])
def test_equal_programs_are_told_apart_in_at_most_5_of_100_cases(neighbour: bool) -> None:
    found = verdicts(1.0, neighbour=neighbour)
    assert found["no difference found"] >= 0.95 * CASES


def test_a_kernel_that_is_3_percent_slower_is_found_in_9_of_10_cases() -> None:
    found = verdicts(1.03, neighbour=False)
    assert found["slower"] >= 0.9 * CASES and not found["faster"]


def test_runs_that_wait_do_not_hide_a_difference() -> None:
    """Medians of the blocks would find a tenth of them."""
    found = verdicts(1.03, neighbour=True)
    assert found["slower"] >= 0.4 * CASES and not found["faster"]


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


def test_blocks_are_as_short_as_a_verdict_in_the_time_that_is_left_asks_for() -> None:
    """As many pairs as there must be, each block with 40 ms to begin it."""
    assert block_within(60.0) == BLOCK_S
    left_s = 2.7
    assert 2 * LOOKS[0] * (block_within(left_s) + 0.04) < left_s
    assert LEAST_RUNS < runs_of_block(0.0026, block_within(left_s)) < runs_of_block(0.0026)
    assert runs_of_block(0.0026, block_within(-1.0)) == LEAST_RUNS
