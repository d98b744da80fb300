"""Which kernels a network gets: by their times in networks that differ in kernels."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cross.schedule.space import Configuration
from toolkit.bundle.model_plan import BufferRef, Copy, Loop, ModelPlan, PlanStep, Step
from toolkit.measure.comparison import compare
from toolkit.model_job.confirm import Winner
from toolkit.model_job.in_network import in_pairs, kernel_times, lineups, winner_of
from toolkit.model_job.kernels import TunedOperator
from toolkit.model_job.latency import LOOKS, PAIRS, measure_in_turn
from toolkit.model_job.options import Latency
from toolkit.model_job.settle import changed, most_saving

DEFAULT, FAST, OTHER, SLOW = (Configuration((number,)) for number in range(4))


def test_networks_differ_in_the_finalists_that_are_near_the_fastest() -> None:
    first = (DEFAULT, {FAST: 1.0, OTHER: 1.05, SLOW: 1.2, DEFAULT: 2.0})
    second = (DEFAULT, {DEFAULT: 1.0, FAST: 1.5})
    failed: tuple[Configuration, dict[Configuration, float]] = (DEFAULT, {})
    assert lineups([first, second, failed]) == [
        [DEFAULT, DEFAULT, DEFAULT],
        [FAST, DEFAULT, DEFAULT],
        [OTHER, DEFAULT, DEFAULT],
    ]
    assert lineups([second, failed]) == [[DEFAULT, DEFAULT]]


def test_kernels_are_timed_by_the_call_whatever_loops_they_are_in() -> None:
    at = BufferRef("arena", 0)
    steps: tuple[PlanStep, ...] = (
        Step("a", (at, at)),
        Loop(3, (Step("b", (at, at)), Copy(at, at, 4), Loop(2, (Step("a", (at, at)),)))),
    )
    plan = ModelPlan("m", (), (), (), b"", 0, steps)
    assert kernel_times(plan, [1.0, 6.0, 9.0, 6.0]) == {"a": 1.0, "b": 2.0}
    assert kernel_times(plan, [0.0, 6.0, 9.0, 0.0]) == {"b": 2.0}  # a branch that was not taken


def test_load_that_lasts_for_rounds_does_not_decide_between_kernels() -> None:
    untuned = {0: {"k": 2.0}, 1: {"k": 2.0}, 2: {"k": 1.0}}  # with half of the machine, and then alone
    better = {0: {"k": 1.8}, 1: {"k": 1.8}, 2: {"k": 1.1}}
    worse = {0: {"k": 2.2}, 1: {"k": 0.9}, 2: {"k": 1.1}}
    found = in_pairs([untuned, better, worse])
    assert [times["k"] for times in found] == pytest.approx([1.0, 0.9, 1.1])


def test_a_kernel_that_was_not_paired_has_its_least_time() -> None:
    untuned = {0: {"k": 3.0}, 2: {"k": 2.0}}
    other = {1: {"k": 1.5, "new": 4.0}, 2: {"k": 2.2, "new": 3.0}}
    first, second = in_pairs([untuned, other])
    assert first == {"k": 2.0} and second == pytest.approx({"k": 2.2, "new": 3.0})
    assert in_pairs([{}, other]) == [{}, {"k": 1.5, "new": 3.0}]
    assert in_pairs([{0: {"a": 2.0, "b": 1.0}, 1: {"a": 1.0, "c": 3.0}}]) == [{"a": 1.0, "b": 1.0, "c": 3.0}]


def test_the_network_decides_between_kernels() -> None:
    recorded_s = {FAST: 1.0, OTHER: 1.1, DEFAULT: 1.2}
    cold = [(DEFAULT, {"k": 3.0}), (FAST, {"k": 4.0}), (OTHER, {"k": 2.0})]
    assert winner_of("k", recorded_s, cold) == Winner(OTHER, 2.0, 3.0)
    assert winner_of("k", recorded_s, cold[:2]) == Winner(DEFAULT, 3.0, 3.0)  # faster by itself alone
    assert winner_of("k", recorded_s, [(DEFAULT, {"k": 2.01}), (FAST, {"k": 2.0})]).configuration == DEFAULT
    assert winner_of("k", recorded_s, [(DEFAULT, {}), (FAST, {"k": 4.0})]) == Winner(FAST, 4.0, None)
    assert winner_of("k", recorded_s, [(DEFAULT, {}), (FAST, {})]) == Winner(FAST, 1.0, 1.2)
    assert winner_of("k", {}, cold[:1]) == Winner(DEFAULT, None, None)


def operator(weight: float, winner: Winner) -> TunedOperator:
    task: Any = SimpleNamespace(weight=weight, space=SimpleNamespace(default=lambda: DEFAULT))
    return TunedOperator(task, cast(Any, None), winner)


def test_a_network_that_is_not_faster_keeps_the_kernels_that_save_most() -> None:
    tuned = [
        operator(1.0, Winner(FAST, 1.0, 2.0)),
        operator(3.0, Winner(FAST, 1.0, 1.5)),
        operator(1.0, Winner(DEFAULT, 9.0, 9.0)),
        operator(1.0, Winner(FAST, 1.0, 1.1)),
        operator(1.0, Winner(FAST, 1.0, None)),
    ]
    fewer = most_saving(tuned)
    assert [item.winner.configuration for item in fewer] == [DEFAULT, FAST, DEFAULT, DEFAULT, FAST]
    assert fewer[0].winner.seconds == 2.0
    assert [changed(tuned), changed(fewer), changed(most_saving(fewer))] == [4, 2, 1]
    assert changed(most_saving(most_saving(fewer))) == 0


@pytest.mark.parametrize("pairs, slowdown", [(LOOKS[0], 1.2), (PAIRS, 1.0)])
def test_a_comparison_ends_when_its_verdict_is_clear(pairs: int, slowdown: float) -> None:
    rng = np.random.default_rng(0)

    def block(factor: float) -> Latency:
        return Latency((factor * rng.uniform(0.99, 1.01),), 0.0)

    found = measure_in_turn(lambda: block(slowdown), lambda: block(1.0), PAIRS)
    assert found.comparison is not None and found.comparison.pairs == pairs
    assert (found.comparison.verdict == "faster") == (slowdown > 1)


def test_every_look_at_growing_pairs_needs_a_clearer_verdict() -> None:
    assert compare([2.0] * 8, [1.0] * 8).verdict == "faster"
    assert compare([2.0] * 8, [1.0] * 8, looks=2).verdict == "too few runs to tell"
    assert compare([2.0] * 9, [1.0] * 9, looks=2).verdict == "faster"
