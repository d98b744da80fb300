"""What the collected tuning runs show: curves by trials and by time, and the goals.

Every run begins with the untuned schedules; they are left out here, so that methods are compared by what they
find themselves. The comparison with them counted is in the goals as well.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiments.again import EARLY, Pair, timed_pairs
from benchmarks.experiments.collect import LEARNED, OPERATORS, RANDOM, TARGETS_OF_TRANSFER, TRANSFER
from benchmarks.experiments.collected import Run, programs_of, runs
from benchmarks.experiments.results import interval, rounded, rounded_band
from benchmarks.harness.statistics import (
    Array,
    Interval,
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
RATIO: Final = "times, geometric mean"

Found = Mapping[tuple[str, str], list[Run]]
"""Runs by method and operator."""


def live_results(work: Path, trials: int) -> dict[str, Any]:
    """Curves of every operator and the goals, from what has been collected so far."""
    return summary(runs(work, OPERATORS), trials, timed_pairs(work, trials))


def summary(made: Sequence[Run], trials: int, again: Sequence[Pair] = ()) -> dict[str, Any]:
    """Curves of every operator and the goals, of the given runs and of winners that were timed again."""
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
                **rounded_band(mean, low, high),
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


def _goal(name: str, unit: str, value: Interval, goal: str, met: bool | None, **more: Any) -> dict[str, Any]:
    """One goal as data; `more`: its verdict, and a table of columns and rows."""
    return {"name": name, "unit": unit, "value": interval(value), "goal": goal, "met": met, **more}


def _learned_goals(found: Found, trials: int) -> list[dict[str, Any]]:
    """Learned against random in C1 to C12: runs of the same seed are pairs, a row for each operator."""
    rows = []
    for name in OPERATORS:
        pairs = _pairs(found.get((LEARNED, name), []), found.get((RANDOM, name), []))
        if not pairs:
            continue
        ends = [(_best(a, trials), _best(b, trials)) for a, b in pairs]
        whole = [(_best(a, trials, untuned=True), _best(b, trials, untuned=True)) for a, b in pairs]
        reached = [trials_to_reach(a, float(b[-1])) or trials for a, b in ends]
        of_operator = [run for (_, operator), made in found.items() if operator == name for run in made]
        known_s = np.array([min(np.nanmin(run.costs_s) for run in of_operator)])
        fastest = _mean_ratio([(known_s, b) for _, b in ends])
        rows.append((name, _mean_ratio(ends), float(np.mean(reached)) / trials, _mean_ratio(whole), fastest))
    if not rows:
        return []
    _, best, share, with_untuned, fastest_known = zip(*rows, strict=True)
    speedup, counted, most = (compare(v, [1.0] * len(v)) for v in (best, with_untuned, fastest_known))
    return [
        _goal(
            f"learned against random, best found within {trials} trials",
            RATIO,
            speedup.ratio,
            f"at least {SPEEDUP_GOAL}",
            speedup.ratio.estimate >= SPEEDUP_GOAL,
            verdict=speedup.verdict,
            columns=[
                "operator", "learned / random", "share of trials", "with the untuned schedules",
                "fastest of all runs / random",
            ],
            rows=[[name, *map(rounded, row)] for name, *row in rows],
        ),
        _goal(
            "the same ratio of the fastest program of all runs: what there was to gain",
            RATIO, most.ratio, "none", None,
        ),
        _goal(
            "the same with the untuned schedules counted",
            RATIO, counted.ratio, "none", None, verdict=counted.verdict,
        ),
        _goal(
            f"share of random's {trials} trials after which learned is at random's best",
            "mean", mean_interval(share), "at most a third", float(np.mean(share)) <= SHARE_GOAL,
        ),
    ]  # fmt: skip


def _transfer_goal(found: Found, trials: int) -> list[dict[str, Any]]:
    rows, needed = [], []
    for name in TARGETS_OF_TRANSFER:
        for with_it, scratch in _pairs(found.get((TRANSFER, name), []), found.get((LEARNED, name), [])):
            trial = trials_to_reach(_best(with_it, trials), float(_best(scratch, trials)[-1]))
            needed.append(trial or trials)
            rows.append([name, with_it.seed, trial or "never"])
    if not rows:
        return []
    return [
        _goal(
            f"trials until transfer is at the best of {trials} trials from scratch",
            "trials, mean; a run that never gets there counts with all",
            mean_interval(needed),
            f"at most {TRANSFER_GOAL} on each",
            max(needed) <= TRANSFER_GOAL,
            columns=["operator", "seed", "trials"],
            rows=rows,
        )
    ]


def _again_goal(again: Sequence[Pair], trials: int) -> list[dict[str, Any]]:
    """How much faster the winner with transfer is than the one without, of winners timed again in turn."""
    if not again:
        return []
    ratio = compare([1.0 / pair.transfer_s for pair in again], [1.0 / pair.scratch_s for pair in again])
    return [
        _goal(
            f"transfer's best of {EARLY} trials against the best of {trials} from scratch, both timed again",
            RATIO,
            ratio.ratio,
            "as fast",
            ratio.ratio.high >= 1.0,
            verdict=ratio.verdict,
            columns=["operator", "seed", "transfer / scratch"],
            rows=[[pair.operator, pair.seed, rounded(pair.scratch_s / pair.transfer_s)] for pair in again],
        )
    ]


def _mean_ratio(pairs: Sequence[tuple[Array, Array]]) -> float:
    return float(np.exp(np.mean([np.log(b[-1] / a[-1]) for a, b in pairs])))


def _pairs(mine: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    by_seed = {run.seed: run for run in others}
    return [(run, by_seed[run.seed]) for run in mine if run.seed in by_seed]
