"""The arithmetic of a job's plan."""

from __future__ import annotations

import math
import re

import pytest
from msgspec.structs import replace

from toolkit.errors import InputError
from toolkit.model_job.tuning_plan import (
    COMPARE_SHARE,
    CONFIRM_SHARE,
    Costs,
    Demand,
    plan_reuses,
    plan_seconds,
    plan_trials,
)
from toolkit.report.tables import plan_table

HEAVY = Demand("conv", 2, 200_000_000, 0, 1e-3, 0.1)
LIGHT = Demand("pool", 1, 0, 0, 1e-5, 0.05)
COSTS = Costs(prepared_s=3.0, confirm_s=4.0, finish_s=5.0)


def test_a_budget_covers_the_whole_command() -> None:
    plan = plan_seconds([HEAVY, LIGHT], COSTS, 100.0)
    assert plan.total_s == pytest.approx(100.0) and plan.budget_s == 100.0
    assert plan.tuning_s == pytest.approx(88.0)
    assert (plan.prepared_s, plan.confirm_s, plan.finish_s) == (3.0, 4.0, 5.0)
    assert sum(item.seconds for item in plan.operators) == pytest.approx(88.0, abs=0.2)
    assert plan.trials == sum(item.trials for item in plan.operators)
    heavy, light = plan.operators
    assert heavy.trials > 5 * light.trials > 0


def test_confirming_takes_a_bounded_part() -> None:
    plan = plan_seconds([HEAVY, LIGHT], replace(COSTS, confirm_s=1000.0), 100.0)
    assert plan.confirm_s == pytest.approx(100.0 * CONFIRM_SHARE)
    assert plan.total_s == pytest.approx(100.0)


@pytest.mark.parametrize("budget_s", [0.0, 5.0, 8.0])
@pytest.mark.parametrize("confirm_s", [0.1, 4.0, 1000.0])
@pytest.mark.parametrize("compare_s", [0.0, 1.0, 1000.0])
def test_too_small_a_budget_is_refused_with_one_that_works(
    budget_s: float, confirm_s: float, compare_s: float
) -> None:
    demands, costs = [HEAVY, LIGHT], replace(COSTS, confirm_s=confirm_s, compare_s=compare_s)
    with pytest.raises(InputError, match=f"a budget of {budget_s:.0f} s is too small") as refused:
        plan_seconds(demands, costs, budget_s)
    found = re.search(r"give --budget (\d+)s or more", str(refused.value))
    assert found is not None
    *parts, whole = (int(part) for part in re.findall(r"(\d+) s[,;]", str(refused.value)))
    assert sum(parts) == whole <= int(found[1])
    slower = replace(costs, prepared_s=1.1 * costs.prepared_s)  # the next run is never quite the same
    plan = plan_seconds(demands, slower, float(found[1]))
    assert plan.total_s == pytest.approx(float(found[1]))
    assert plan.tuning_s >= 2 * 0.1 + 2 * 0.05
    assert float(found[1]) <= 20.0


def test_without_any_known_pace_no_trials_are_promised() -> None:
    plan = plan_seconds([replace(HEAVY, trial_s=0.0), replace(LIGHT, trial_s=0.0)], COSTS, 100.0)
    assert plan.trials == 0 and plan.tuning_s == pytest.approx(88.0)


def test_recorded_trials_need_no_time_of_a_budget() -> None:
    slow = replace(HEAVY, trial_s=100.0)
    with pytest.raises(InputError, match="too small"):
        plan_seconds([slow, LIGHT], COSTS, 100.0)
    assert plan_seconds([replace(slow, recorded=2), LIGHT], COSTS, 100.0).trials > 0


def test_trials_of_each_operator_beside_the_recorded_ones() -> None:
    plan = plan_trials([replace(HEAVY, recorded=3), replace(LIGHT, recorded=99)], COSTS, each=10)
    assert [item.trials for item in plan.operators] == [7, 0]
    assert plan.tuning_s == pytest.approx(0.7)
    whole_s = (3.0 + 0.7) / (
        1.0 - CONFIRM_SHARE - COMPARE_SHARE
    )  # what comes after a search is measured by it
    assert plan.confirm_s == pytest.approx(CONFIRM_SHARE * whole_s) and plan.budget_s is None
    assert plan.total_s == pytest.approx(3.7 + plan.confirm_s + 5.0)


def test_trials_of_all_operators_together() -> None:
    plan = plan_trials([replace(HEAVY, recorded=10), LIGHT], COSTS, total=110)
    assert plan.trials == 100
    assert plan.operators[0].trials > 90


def test_an_operator_without_a_time_is_judged_by_its_work() -> None:
    unknown = replace(HEAVY, name="other", run_s=math.nan)
    plan = plan_seconds([HEAVY, unknown], COSTS, 100.0)
    assert plan.operators[0].trials == plan.operators[1].trials
    nothing = plan_seconds([replace(HEAVY, run_s=math.nan), unknown], COSTS, 100.0)
    assert nothing.operators[0].trials == nothing.operators[1].trials


def test_bridges_are_tuned_beside_the_operators() -> None:
    bridge = Demand("bridge conv 8x8", 0, 0, 0, math.nan, 0.2)
    steps = {"conv": (100, ""), "bridge conv 8x8": (40, "conv"), "pool": (30, "bridge conv 8x8")}
    plan = plan_reuses([HEAVY, LIGHT], COSTS, steps, bridges=[bridge])
    assert [(item.name, item.trials, item.reuses, item.bridge) for item in plan.operators] == [
        ("conv", 100, "", False),
        ("pool", 30, "bridge conv 8x8", False),
        ("bridge conv 8x8", 40, "conv", True),
    ]
    assert plan.trials == 170
    assert plan.tuning_s == pytest.approx(100 * 0.1 + 30 * 0.05 + 40 * 0.2)
    row = next(line for line in plan_table(plan).splitlines() if line.lstrip().startswith("bridge conv"))
    assert row.split("8x8")[1].split()[:2] == ["conv", "bridge"]


def test_what_reuse_leaves_of_a_budget_goes_to_the_search() -> None:
    steps = {"conv": (100, ""), "pool": (30, "conv")}
    plan = plan_reuses([HEAVY, LIGHT], COSTS, steps, 100.0)
    assert plan.tuning_s == pytest.approx(88.0)
    assert all(item.trials > steps[item.name][0] for item in plan.operators)
    assert sum(item.seconds for item in plan.operators) == pytest.approx(88.0, abs=0.2)
    recorded = plan_reuses([HEAVY, LIGHT], COSTS, {}, 100.0)
    assert recorded.trials == sum(item.trials for item in recorded.operators) > 0
