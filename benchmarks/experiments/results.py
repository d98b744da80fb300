"""From finished cells to figures: curves with bands, comparisons, and a sentence for each study.

Everything is JSON-able data; the same cells give the same bytes.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.experiments.cells import Cell, Store
from benchmarks.experiments.landscapes import Landscape, open_landscape
from benchmarks.experiments.methods import Method
from benchmarks.experiments.sentences import finding
from benchmarks.experiments.studies import Study
from benchmarks.harness.statistics import (
    NEAR,
    Array,
    Interval,
    band,
    best_so_far,
    compare,
    mean_interval,
    trials_to_reach,
)


def cells_of(study: Study, seeds: int) -> list[Cell]:
    """Every cell of a study."""
    runs = itertools.product(study.landscapes, study.methods, range(seeds))
    return [_cell(study, *run) for run in runs]


def _cell(study: Study, landscape: str, method: Method, seed: int) -> Cell:
    source = study.source if method.transfer else None
    return Cell(landscape, method, seed, study.trials * method.each, source)


def study_results(study: Study, seeds: int, work: Path, notes: Sequence[str]) -> dict[str, Any]:
    """One study: curves of every landscape, comparisons on each and over all of them, and what was found."""
    curves = {name: _curves(study, name, seeds, work) for name in study.landscapes}
    fastest = {name: fastest_s(open_landscape(name, work)) for name in study.landscapes}
    overall = _comparisons(study, [(curves[name], fastest[name]) for name in curves]) if curves else []
    landscapes = [_landscape(study, name, found, work) for name, found in curves.items()]
    return {
        "name": study.name,
        "figure": study.figure,
        "title": study.title,
        "question": study.question,
        "trials": study.trials,
        "seeds": seeds,
        "source": study.source.text if study.source else "",
        "landscapes": landscapes,
        "comparisons": overall,
        "finding": finding(overall, [item["name"] for item in landscapes], study.trials),
        "notes": list(notes),
    }


Curves = Mapping[Method, Array]
"""Seconds of the best so far by method, float64 [seeds, trials]."""


def _curves(study: Study, landscape: str, seeds: int, work: Path) -> Curves:
    store = Store(work)
    result = {}
    for method in study.methods:
        rows = []
        for seed in range(seeds):
            costs_s = store.costs_s(_cell(study, landscape, method, seed))
            if costs_s is None:
                raise ValueError(f"study {study.name}: {method.name} on {landscape} has not run, seed {seed}")
            rows.append(best_so_far(costs_s, study.trials, each=method.each))
        result[method] = np.stack(rows)
    return result


def _landscape(study: Study, name: str, curves: Curves, work: Path) -> dict[str, Any]:
    landscape = open_landscape(name, work)
    best_s = fastest_s(landscape)
    return {
        "name": landscape.name,
        "kind": landscape.kind,
        "configurations": len(landscape.costs_s),
        "best_gflops": rounded(landscape.flops / best_s / 1e9),
        "methods": [_method(method, found, landscape, best_s) for method, found in curves.items()],
        "comparisons": _comparisons(study, [(curves, best_s)]),
    }


def fastest_s(landscape: Landscape) -> float:
    """Seconds of the fastest configuration there is."""
    return float(np.nanmin(landscape.costs_s))


def _method(method: Method, best: Array, landscape: Landscape, best_s: float) -> dict[str, Any]:
    mean, low, high = band(landscape.flops / best / 1e9)
    high = np.minimum(high, landscape.flops / best_s / 1e9)  # nothing is faster than the fastest
    reached = [trials_to_reach(row, best_s / NEAR) for row in best]
    return {
        "name": method.name,
        "label": method.label,
        **rounded_band(mean, low, high),
        "share_of_best": interval(mean_interval((best_s / best[:, -1]).tolist())),
        "trials_to_near": None if None in reached else float(np.median(np.array(reached, dtype=np.float64))),
        "near_reached": sum(trial is not None for trial in reached),
    }


def _comparisons(study: Study, landscapes: Sequence[tuple[Curves, float]]) -> list[dict[str, Any]]:
    """Every pair: speed of the best after a quarter of the trials and after all, then trials to come near.

    landscapes: curves and the seconds of the fastest there is. Over several of them the geometric mean is
    taken, seed by seed. A search that does not come near the fastest counts with all of its trials.
    """
    found = []
    for method, other in study.pairs:
        names = {"method": method.label, "other": other.label}
        for trial in (study.trials // 4, study.trials):
            best = [
                _means([curves[item][:, trial - 1] for curves, _ in landscapes]) for item in (method, other)
            ]
            if np.isfinite(best).all():  # a seed without any program has no ratio
                found.append({**names, "of": "speed", "trial": trial, **_faster(*best)})
        needed = [
            _means([_needed(curves[item], best_s) for curves, best_s in landscapes])
            for item in (method, other)
        ]
        found.append({**names, "of": "trials", "trial": study.trials, **_faster(*needed)})
    return found


def _faster(mine: Array, theirs: Array) -> dict[str, Any]:
    """Two samples of which less is better, compared, as JSON-able data."""
    found = compare((1.0 / mine).tolist(), (1.0 / theirs).tolist())
    return {"ratio": interval(found.ratio), "pairs": found.pairs, "verdict": found.verdict}


def _means(values: Sequence[Array]) -> Array:
    """Geometric mean over landscapes, by seed."""
    return np.asarray(np.exp(np.mean(np.log(values), axis=0)))


def _needed(best: Array, best_s: float) -> Array:
    """Trials until each curve of [seeds, trials] is near the fastest; all where it never is."""
    reached = [trials_to_reach(row, best_s / NEAR) for row in best]
    return np.array([best.shape[1] if trial is None else trial for trial in reached], dtype=np.float64)


def interval(item: Interval) -> dict[str, float]:
    """An interval as JSON-able data."""
    return {"estimate": rounded(item.estimate), "low": rounded(item.low), "high": rounded(item.high)}


def rounded_band(mean: Array, low: Array, high: Array) -> dict[str, list[float]]:
    """A curve and its bounds as JSON-able data."""
    found = {"mean": mean, "low": low, "high": high}
    return {name: [rounded(value) for value in curve] for name, curve in found.items()}


def rounded(value: float) -> float:
    """Five significant digits."""
    return float(f"{value:.5g}")
