"""The plan of a job, from measured times: how many trials each operator gets, and when the job ends.

Pure arithmetic: stages.py measures what goes in (`Demand`, `Costs`), job.py keeps to what comes out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from toolkit.errors import InputError

FIRST_TRIALS = 2  # of each operator in the smallest sensible budget: the default schedule and another one
CONFIRM_SHARE = 0.08  # of a job at most
COMPARE_SHARE = 0.07  # of a job at most, for all but the first pair of the untuned and the tuned model
SPARE = 1.1  # times what was measured: the preparations of the next run may take a little longer
ROUND_S = 5.0  # a proposed budget is rounded up to a multiple of this


class Demand(msgspec.Struct, frozen=True):
    """An operator before it is tuned: `count` runs in the model, about `run_s` seconds each (NaN: unknown).

    `recorded` trials are done already; one more takes `trial_s`, compiling and searching included.
    """

    name: str
    count: int
    flops: int
    recorded: int
    run_s: float
    trial_s: float


class Costs(msgspec.Struct, frozen=True):
    """Seconds of everything but tuning: `prepared_s` are over, the others still to come.

    `confirm_s`: measuring the finalists again, `finish_s`: compiling, measuring and packing the model;
    `compare_s`: measuring it more often, beside the untuned one, which a small budget leaves out.
    """

    prepared_s: float
    confirm_s: float
    finish_s: float
    compare_s: float = 0.0


class OperatorPlan(msgspec.Struct, frozen=True):
    """About how many `trials` an operator will get, beside those that are `recorded`, in `seconds`.

    `reuses` names the operator whose tuned program it begins with; empty: none. `bridge`: it is tuned only to
    be reused, no model has it, and its `count` is 0.
    """

    name: str
    count: int
    recorded: int
    trials: int
    seconds: float
    reuses: str = ""
    bridge: bool = False


class TuningPlan(msgspec.Struct, frozen=True):
    """A job in seconds, of which `prepared_s` are over; `budget_s` is None where trials are the budget.

    `trials` are those of all operators that are to come. The shares of the operators are a guess: trials go
    where the latency falls.
    """

    operators: tuple[OperatorPlan, ...]
    trials: int
    budget_s: float | None
    prepared_s: float
    tuning_s: float
    confirm_s: float
    finish_s: float
    total_s: float


def plan_seconds(demands: Sequence[Demand], costs: Costs, budget_s: float) -> TuningPlan:
    """A job that takes `budget_s` in all.

    Raises InputError, which names the smallest sensible budget, when that is too little.
    """
    first_s = sum(demand.trial_s * max(0, FIRST_TRIALS - demand.recorded) for demand in demands)
    confirm_s, finish_s = _after_tuning(costs, budget_s)
    tuning_s = budget_s - costs.prepared_s - confirm_s - finish_s
    if tuning_s < first_s or budget_s <= 0:
        raise InputError(_too_small(budget_s, first_s, len(demands), costs))
    return _plan(demands, costs, _within(demands, tuning_s), budget_s=budget_s, tuning_s=tuning_s)


def _after_tuning(costs: Costs, budget_s: float) -> tuple[float, float]:
    """Seconds of a budget for confirming, and for finishing."""
    confirm_s = min(costs.confirm_s, CONFIRM_SHARE * budget_s)
    return confirm_s, costs.finish_s + min(costs.compare_s, COMPARE_SHARE * budget_s)


def _too_small(budget_s: float, first_s: float, operators: int, costs: Costs) -> str:
    """The refusal of a budget: whole seconds of every part, their sum, and a budget with some to spare."""
    fixed_s = costs.prepared_s + first_s + costs.finish_s
    smallest_s = min(
        (fixed_s + confirm_s + compare_s) / (1 - confirm_share - compare_share)
        for confirm_s, confirm_share in ((costs.confirm_s, 0.0), (0.0, CONFIRM_SHARE))
        for compare_s, compare_share in ((costs.compare_s, 0.0), (0.0, COMPARE_SHARE))
    )
    after_s = sum(_after_tuning(costs, smallest_s))
    prepare, first, after = (math.ceil(seconds) for seconds in (costs.prepared_s, first_s, after_s))
    whole_s = prepare + first + after
    advised_s = math.ceil(SPARE * whole_s / ROUND_S) * ROUND_S
    return (
        f"a budget of {budget_s:.0f} s is too small: the preparations take {prepare} s, {FIRST_TRIALS} "
        f"trials of each of the {operators} operators {first} s, confirming, compiling, comparing and "
        f"packing what was found {after} s, together {whole_s} s; give --budget {advised_s:.0f}s or more"
    )


def plan_trials(
    demands: Sequence[Demand], costs: Costs, *, each: int | None = None, total: int | None = None
) -> TuningPlan:
    """A job of `each` trials for every operator, or of `total` for all together; recorded ones count."""
    if each is not None:
        trials = [max(0, each - demand.recorded) for demand in demands]
    else:
        left = max(0, (total or 0) - sum(demand.recorded for demand in demands))
        shares = _shares(demands)
        trials = [round(left * share) for share in shares]
    tuning_s = sum(n * demand.trial_s for n, demand in zip(trials, demands, strict=True))
    return _plan(demands, costs, trials, budget_s=None, tuning_s=tuning_s)


def plan_reuses(
    demands: Sequence[Demand],
    costs: Costs,
    steps: Mapping[str, tuple[int, str]],
    budget_s: float | None = None,
    bridges: Sequence[Demand] = (),
) -> TuningPlan:
    """A job in which operators reuse programs: expected trials and what is reused, by operator.

    Operators that are not among the steps are tuned already; `bridges` are tuned beside them. With `budget_s`
    all of it is used: what reuse leaves goes to the search. Raises InputError for a budget that is too small.
    """
    all_of = [*demands, *bridges]
    trials = [steps.get(demand.name, (0, ""))[0] for demand in all_of]
    tuning_s = sum(n * demand.trial_s for n, demand in zip(trials, all_of, strict=True))
    if budget_s is not None:
        reuse_s, tuning_s = tuning_s, plan_seconds(demands, costs, budget_s).tuning_s
        searched = _within(demands, max(0.0, tuning_s - reuse_s))
        trials = [n + more for n, more in zip(trials, [*searched, *(0 for _ in bridges)], strict=True)]
    plan = _plan(all_of, costs, trials, budget_s=budget_s, tuning_s=tuning_s)
    named = (
        replace(item, reuses=steps.get(item.name, (0, ""))[1], bridge=number >= len(demands))
        for number, item in enumerate(plan.operators)
    )
    return replace(plan, operators=tuple(named))


def _within(demands: Sequence[Demand], seconds: float) -> list[int]:
    """Trials of each operator that fit into `seconds`; 0 where the time of a trial is unknown."""
    return [
        round(share * seconds / demand.trial_s) if demand.trial_s else 0
        for share, demand in zip(_shares(demands), demands, strict=True)
    ]


def _shares(demands: Sequence[Demand]) -> list[float]:
    """Which part of the tuning each operator will get, about: a tenth equally, the rest by its time."""
    known = [demand for demand in demands if math.isfinite(demand.run_s) and demand.flops]
    pace = sum(item.run_s for item in known) / max(1, sum(item.flops for item in known))
    runs_s = [
        demand.count * (demand.run_s if math.isfinite(demand.run_s) else demand.flops * pace)
        for demand in demands
    ]
    whole_s = sum(runs_s)
    equal = 1.0 / len(demands)
    return [0.1 * equal + 0.9 * (run_s / whole_s if whole_s else equal) for run_s in runs_s]


def _plan(
    demands: Sequence[Demand],
    costs: Costs,
    trials: Sequence[int],
    *,
    budget_s: float | None,
    tuning_s: float,
) -> TuningPlan:
    if budget_s is None:
        whole_s = (costs.prepared_s + tuning_s) / (1.0 - CONFIRM_SHARE - COMPARE_SHARE)
    confirm_s, finish_s = _after_tuning(costs, whole_s if budget_s is None else budget_s)
    return TuningPlan(
        operators=tuple(
            OperatorPlan(demand.name, demand.count, demand.recorded, n, n * demand.trial_s)
            for n, demand in zip(trials, demands, strict=True)
        ),
        trials=sum(trials),
        budget_s=budget_s,
        prepared_s=costs.prepared_s,
        tuning_s=tuning_s,
        confirm_s=confirm_s,
        finish_s=finish_s,
        total_s=costs.prepared_s + tuning_s + confirm_s + finish_s,
    )
