"""What the collected tuning runs show: curves by trials and by time, and the goals.

Every run begins with the untuned schedules; they are left out here, so that methods are compared by what they
find themselves. The comparison with them counted is in the goals as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from benchmarks.experiments.again import EARLY, Pair, timed_pairs
from benchmarks.experiments.collect import LEARNED, OPERATORS, RANDOM, TARGETS_OF_TRANSFER, TRANSFER
from benchmarks.experiments.collected import Run, programs_of, runs
from benchmarks.experiments.results import compared, interval, rounded
from benchmarks.experiments.statistics import (
    Array,
    band,
    best_so_far,
    compare,
    mean_interval,
    trials_to_reach,
)

SPEEDUP_GOAL: Final = 1.25
SHARE_GOAL: Final = 1.0 / 3.0
TRANSFER_GOAL: Final = 80
LABELS: Final = {LEARNED: "learned (GBT, rank)", RANDOM: "random", TRANSFER: "learned, transfer from C1-C6"}
TIME_POINTS: Final = 100

Found = Mapping[tuple[str, str], list[Run]]
"""Runs by method and operator."""


def live_results(work: Path, trials: int) -> dict[str, Any]:
    """Curves of every operator and the goals, from what has been collected so far."""
    return summary(runs(work, OPERATORS), trials, timed_pairs(work, trials))


def summary(made: Sequence[Run], trials: int, again: Sequence[Pair] = ()) -> dict[str, Any]:
    """The same, of the given runs and of winners that were timed again."""
    found: dict[tuple[str, str], list[Run]] = {}
    for run in made:
        found.setdefault((run.method, run.operator), []).append(run)
    return {
        "trials": trials,
        "operators": [
            _operator(name, found, trials)
            for name in OPERATORS
            if any(operator == name for _, operator in found)
        ],
        "goals": [
            *_learned_goals(found, trials),
            *_transfer_goal(found, trials),
            *_again_goal(again, trials),
        ],
    }


def _best(run: Run, trials: int, *, untuned: bool = False) -> Array:
    """Seconds of the best so far, without the untuned schedules unless they are asked for."""
    start = 0 if untuned else run.untuned
    return best_so_far(run.costs_s[start:].tolist(), trials)


def _operator(name: str, found: Found, trials: int) -> dict[str, Any]:
    flops = programs_of(name).space.operator.flops
    methods = []
    for method, label in LABELS.items():
        mine = found.get((method, name), [])
        if not mine:
            continue
        mean, low, high = band(flops / np.stack([_best(run, trials) for run in mine]) / 1e9)
        times, by_time = _by_time(mine, flops)
        methods.append(
            {
                "name": method,
                "label": label,
                "seeds": len(mine),
                "mean": [rounded(value) for value in mean],
                "low": [rounded(value) for value in low],
                "high": [rounded(value) for value in high],
                "seconds": times,
                "by_time": by_time,
            }
        )
    return {"name": name, "methods": methods}


def _by_time(mine: Sequence[Run], flops: int) -> tuple[list[float], list[float]]:
    """Mean GFLOP/s of the best so far at TIME_POINTS times, as far as the shortest run goes."""
    until_s = min(run.elapsed_s[-1] for run in mine)
    times = np.linspace(0.0, until_s, TIME_POINTS)
    curves = []
    for run in mine:
        best = best_so_far(run.costs_s[run.untuned :].tolist(), max(1, len(run.costs_s) - run.untuned))
        measured = np.searchsorted(run.elapsed_s[run.untuned :], times, side="right")
        curves.append(np.where(measured > 0, flops / best[np.maximum(measured, 1) - 1] / 1e9, 0.0))
    return [rounded(value) for value in times], [rounded(value) for value in np.mean(curves, axis=0)]


class _Speedups(NamedTuple):
    """Learned over random in C1 to C12, a number for each operator that has pairs of runs of one seed."""

    operators: list[str]
    best: list[float]
    share: list[float]  # of random's trials after which learned is at random's best
    with_untuned: list[float]
    fastest_known: list[float]  # the best of all runs over random's

    def rows(self) -> list[list[Any]]:
        """For the table."""
        columns = (self.best, self.share, self.with_untuned, self.fastest_known)
        return [[name, *map(rounded, row)] for name, *row in zip(self.operators, *columns, strict=True)]


def _speedups(found: Found, trials: int) -> _Speedups:
    speedups = _Speedups([], [], [], [], [])
    for name in OPERATORS:
        pairs = _pairs(found.get((LEARNED, name), []), found.get((RANDOM, name), []))
        if not pairs:
            continue
        ends = [(_best(a, trials), _best(b, trials)) for a, b in pairs]
        whole = [(_best(a, trials, untuned=True), _best(b, trials, untuned=True)) for a, b in pairs]
        reached = [trials_to_reach(a, float(b[-1])) for a, b in ends]
        known_s = np.array([min(np.nanmin(run.costs_s) for run in _of(found, name))])
        speedups.operators.append(name)
        speedups.best.append(_mean_ratio(ends))
        speedups.share.append(float(np.mean([trials if t is None else t for t in reached])) / trials)
        speedups.with_untuned.append(_mean_ratio(whole))
        speedups.fastest_known.append(_mean_ratio([(known_s, b) for _, b in ends]))
    return speedups


def _learned_goals(found: Found, trials: int) -> list[dict[str, Any]]:
    """Learned against random, operator by operator: runs of the same seed are pairs."""
    of = _speedups(found, trials)
    if not of.operators:
        return []
    ones = [1.0] * len(of.operators)
    speedup, counted, fastest = (
        compare(values, ones) for values in (of.best, of.with_untuned, of.fastest_known)
    )
    return [
        {
            "name": f"learned against random, best found within {trials} trials",
            "unit": "times, geometric mean",
            "value": interval(speedup.ratio),
            "verdict": compared(speedup)["verdict"],
            "goal": f"at least {SPEEDUP_GOAL}",
            "met": speedup.ratio.estimate >= SPEEDUP_GOAL,
            "columns": [
                "operator",
                "learned / random",
                "share of trials",
                "with the untuned schedules",
                "fastest of all runs / random",
            ],
            "rows": of.rows(),
        },
        {
            "name": "the same ratio of the fastest program of all runs: what there was to gain",
            "unit": "times, geometric mean",
            "value": interval(fastest.ratio),
            "goal": "none",
            "met": None,
        },
        {
            "name": "the same with the untuned schedules counted",
            "unit": "times, geometric mean",
            "value": interval(counted.ratio),
            "verdict": compared(counted)["verdict"],
            "goal": "none",
            "met": None,
        },
        {
            "name": f"share of random's {trials} trials after which learned is at random's best",
            "unit": "mean",
            "value": interval(mean_interval(of.share)),
            "goal": "at most a third",
            "met": float(np.mean(of.share)) <= SHARE_GOAL,
        },
    ]


def _transfer_goal(found: Found, trials: int) -> list[dict[str, Any]]:
    rows, needed = [], []
    for name in TARGETS_OF_TRANSFER:
        for with_it, scratch in _pairs(found.get((TRANSFER, name), []), found.get((LEARNED, name), [])):
            goal_s = float(_best(scratch, trials)[-1])
            trial = trials_to_reach(_best(with_it, trials), goal_s)
            needed.append(trials if trial is None else trial)
            rows.append([name, with_it.seed, "never" if trial is None else trial])
    if not rows:
        return []
    return [
        {
            "name": f"trials until transfer is at the best of {trials} trials from scratch",
            "unit": "trials, mean; a run that never gets there counts with all",
            "value": interval(mean_interval([float(value) for value in needed])),
            "goal": f"at most {TRANSFER_GOAL} on each",
            "met": max(needed) <= TRANSFER_GOAL,
            "columns": ["operator", "seed", "trials"],
            "rows": rows,
        }
    ]


def _again_goal(again: Sequence[Pair], trials: int) -> list[dict[str, Any]]:
    """The same question without luck: of the two winners, timed in turn."""
    if not again:
        return []
    ratio = compare([1.0 / pair.transfer_s for pair in again], [1.0 / pair.scratch_s for pair in again])
    return [
        {
            "name": f"transfer's best of {EARLY} trials against the best of {trials} from scratch, "
            "both timed again in turn",
            "unit": "times, geometric mean",
            "value": interval(ratio.ratio),
            "verdict": compared(ratio)["verdict"],
            "goal": "as fast",
            "met": ratio.ratio.high >= 1.0,
            "columns": ["operator", "seed", "transfer / scratch"],
            "rows": [[pair.operator, pair.seed, rounded(pair.scratch_s / pair.transfer_s)] for pair in again],
        }
    ]


def _of(found: Found, operator: str) -> list[Run]:
    """All runs of an operator."""
    return [run for (_, name), made in found.items() if name == operator for run in made]


def _mean_ratio(pairs: Sequence[tuple[Array, Array]]) -> float:
    return float(np.exp(np.mean([np.log(b[-1] / a[-1]) for a, b in pairs])))


def _pairs(mine: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    by_seed = {run.seed: run for run in others}
    return [(run, by_seed[run.seed]) for run in mine if run.seed in by_seed]
