"""Trials over synthetic operators whose time falls by a known law: where they go, and what that is worth."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest
from msgspec.structs import replace

from toolkit.tuning.allocation import (
    AllocationOptions,
    AllocationState,
    choose,
    expected_falls,
    fitting,
    shared,
)
from toolkit.tuning.convergence import ConvergenceRule

BATCH = 16
NO_LUCK = AllocationOptions(epsilon=0.0)


@dataclass
class Law:
    """An operator whose best time after t trials is floor + (first - floor) / t**speed."""

    first_s: float
    floor_s: float
    speed: float
    weight: float = 1.0
    trial_s: float = 0.1
    flops: int = 10_000_000
    kind: str = "conv"
    costs_s: list[float] = field(default_factory=list)

    def after(self, trials: int) -> float:
        return self.floor_s + (self.first_s - self.floor_s) * trials**-self.speed

    def state(self, limit: int = 10_000) -> AllocationState:
        batch = min(BATCH, limit - len(self.costs_s))
        return AllocationState(self.weight, self.flops, self.kind, self.costs_s, 0, self.trial_s, batch)

    def measure(self) -> float:
        """One more batch; returns the seconds that it took."""
        done = len(self.costs_s)
        self.costs_s += [self.after(trial) for trial in range(done + 1, done + BATCH + 1)]
        return BATCH * self.trial_s


def model() -> list[Law]:
    """One with much to gain, a heavy one with nothing to gain, a slow learner, and many cheap ones."""
    return [
        Law(10e-3, 2e-3, 0.5, weight=4.0),
        Law(8e-3, 7.95e-3, 0.5),
        Law(5e-3, 1e-3, 0.15, trial_s=0.3),
        *(Law(2e-5, 1e-5, 0.3, flops=0, kind="pool") for _ in range(6)),
    ]


def latency_s(laws: list[Law]) -> float:
    return sum(law.weight * law.after(len(law.costs_s)) for law in laws)


def allocated(laws: list[Law], seconds: float) -> list[int]:
    """Spend the seconds; the order in which operators had their turns."""
    turns: list[int] = []
    while seconds > 0:
        rng = np.random.default_rng([0, len(turns)])
        position = choose([law.state() for law in laws], rng)
        assert position is not None
        turns.append(position)
        seconds -= laws[position].measure()
    return turns


def test_the_model_ends_faster_than_with_equal_shares() -> None:
    uniform, chosen, half = model(), model(), model()
    seconds = 200.0
    while seconds > 0:
        seconds -= sum(law.measure() for law in uniform)
    allocated(chosen, 200.0)
    allocated(half, 100.0)
    floor_s = sum(law.weight * law.floor_s for law in model())
    assert latency_s(chosen) - floor_s < 0.7 * (latency_s(uniform) - floor_s)
    assert latency_s(half) < latency_s(uniform)  # in half the time


def test_trials_go_where_the_latency_falls_and_cheap_operators_do_not_eat_them() -> None:
    laws = model()
    turns = allocated(laws, 200.0)
    counts = [turns.count(position) for position in range(len(laws))]
    assert counts[0] == max(counts)
    assert counts[2] > counts[1]  # slow progress, but progress
    assert all(1 <= count <= 5 for count in counts[3:])  # the first batch, and what epsilon gives


def test_everyone_gets_a_first_batch_the_most_work_first() -> None:
    laws = model()
    laws[4].flops, laws[1].weight = 90_000_000, 3.0
    assert allocated(laws, 20.0)[:9] == [4, 0, 1, 2, 3, 5, 6, 7, 8]


def test_converged_operators_get_nothing_while_others_have_not() -> None:
    rule = ConvergenceRule(trials=32, patience=16)
    done = Law(1.0, 1.0, 1.0, costs_s=[1.0] * 64)  # a thousand times heavier
    going = Law(1e-3, 1e-4, 0.3)
    going.measure()
    options = AllocationOptions(rule=rule)
    rng = np.random.default_rng(0)
    assert {choose([done.state(), going.state()], rng, options) for _ in range(100)} == {1}
    assert choose([done.state(), going.state(limit=BATCH)], rng, options) == 0  # nobody else is left
    assert choose([done.state(limit=64), going.state(limit=BATCH)], rng, options) is None


def test_epsilon_reaches_everyone() -> None:
    laws = [Law(1.0, 0.1, 0.5), Law(1e-6, 5e-7, 0.5)]
    for law in laws:
        law.measure()
    states = [law.state() for law in laws]
    rng = np.random.default_rng(0)
    drawn = [choose(states, rng, AllocationOptions(epsilon=0.2)) for _ in range(2000)]
    assert drawn.count(1) == pytest.approx(200, abs=50)
    assert choose(states, np.random.default_rng(0), NO_LUCK) == 0


@pytest.mark.parametrize(
    "better",
    [
        {"weight": 2.0},  # the model computes it more often
        {"trial_s": 0.05},  # its trials cost less
        {"costs_s": [4e-3, 3e-3, 2e-3, 1e-3]},  # its past promises more
        {"costs_s": [1e-3, 1e-3]},  # less is known
    ],
)
def test_what_makes_an_operator_worth_more(better: dict[str, object]) -> None:
    plain = AllocationState(1.0, 0, "", [1e-3] * 4, 0, 0.1, 2)
    falls = expected_falls([plain, replace(plain, **better)], NO_LUCK)  # type: ignore[arg-type]
    assert falls[1] > falls[0] > 0.0


def test_an_operator_far_below_its_kind_is_hoped_to_catch_up() -> None:
    fast = AllocationState(1.0, 8_000_000, "conv", [1e-3] * 8, 0, 0.1, 8)
    slow = replace(fast, flops=1_000_000)
    other = replace(fast, flops=1_000_000, kind="dense")
    falls = expected_falls([fast, slow, other], NO_LUCK)
    assert falls[1] > falls[0]
    assert falls[2] == falls[0]  # the fastest of its own kind


def test_what_never_worked_is_treated_like_the_others() -> None:
    fine = AllocationState(1.0, 0, "", [1e-3] * 8, 0, 0.1, 8)
    broken = replace(fine, costs_s=[math.nan] * 8)
    alone = expected_falls([broken, broken], NO_LUCK)
    falls = expected_falls([fine, broken], NO_LUCK)
    assert alone[0] > 0.0
    assert falls[1] == pytest.approx(falls[0])


def test_pending_trials_count_as_tried() -> None:
    idle = AllocationState(1.0, 0, "", [1e-3] * 8, 0, 0.1, 8)
    busy = replace(idle, pending=8)
    falls = expected_falls([idle, busy], NO_LUCK)
    assert falls[0] > falls[1]
    untried = replace(idle, costs_s=[], pending=8)
    assert choose([untried, replace(untried, pending=0)], np.random.default_rng(0), NO_LUCK) == 1


def test_the_same_courses_give_the_same_turns() -> None:
    assert allocated(model(), 60.0) == allocated(model(), 60.0)


def test_first_batches_leave_some_for_the_others() -> None:
    untried = AllocationState(1.0, 0, "", [], 0, 0.0, 8)
    tried = replace(untried, costs_s=[1.0], batch=64)
    sizes = [state.batch for state in shared([untried, untried, tried, replace(untried, batch=0)], 10)]
    assert sizes == [5, 5, 10, 0]
    assert [state.batch for state in shared([untried] * 20, 10)] == [1] * 20
    assert [state.batch for state in shared([tried, untried], 0)] == [0, 0]
    assert [state.batch for state in shared([tried], -3)] == [0]


def test_batches_fit_the_time_that_is_left() -> None:
    known = AllocationState(1.0, 0, "", [1e-3], 0, 0.5, 64)
    pending = replace(known, pending=4, trial_s=1.0)
    unknown = replace(known, trial_s=0.0)
    assert [state.batch for state in fitting([known, pending, unknown], 10.0)] == [12, 6, 8]
    assert [state.batch for state in fitting([known], 0.4)] == [0]
    assert [state.batch for state in fitting([unknown], 0.4)] == [64]  # nobody knows
    assert [state.batch for state in fitting([unknown], 0.0)] == [0]
    untried = replace(known, costs_s=[], batch=8)
    assert [state.batch for state in fitting([untried, untried, known], 6.0)] == [6, 6, 12]
    assert [state.batch for state in fitting([untried] * 9, 1.0)] == [1] * 9
