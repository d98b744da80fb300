"""What the runs of this benchmark found so far, read from their folder."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiments.results import interval
from benchmarks.experiments.statistics import mean_interval
from benchmarks.reuse.families import FAMILIES
from benchmarks.reuse.pairs import Outcome
from benchmarks.reuse.paper import PAIRS

RESULTS_VERSION: Final = 3


def keep(path: Path, outcome: Outcome) -> None:
    """Write an outcome where `kept` finds it."""
    path.write_text(json.dumps({"version": RESULTS_VERSION, "outcome": asdict(outcome)}, indent=1))


def kept(path: Path) -> Outcome | None:
    """The outcome in a file; None without one, or for one of another version."""
    if not path.is_file():
        return None
    content = json.loads(path.read_text())
    return Outcome(**content["outcome"]) if content.get("version") == RESULTS_VERSION else None


def outcomes(work: Path, trials: int) -> list[Outcome]:
    """Every outcome of searches of so many trials in a folder, in order of families and seeds."""
    return [outcome for family in FAMILIES for outcome in _of_family(work, family, trials)]


def _of_family(work: Path, family: str, trials: int) -> Iterator[Outcome]:
    paths = work.glob(f"{family}-*-{trials}.json")
    found = [outcome for path in paths if (outcome := kept(path)) is not None]
    yield from sorted(found, key=lambda outcome: outcome.seed)


def pair_results(work: Path, trials: int) -> dict[str, Any]:
    """Single pairs by family, as plain data: ours, and the paper's where it has them."""
    made = outcomes(work, trials)
    named = [(name, [item for item in made if item.family == name]) for name in FAMILIES]
    return {
        "trials": trials,
        "families": [_family(name, mine) for name, mine in named if mine],
        "all": _family("all", made) if made else None,
    }


def _family(name: str, mine: Sequence[Outcome]) -> dict[str, Any]:
    paper = PAIRS.get(name)
    return {
        "name": name,
        "pairs": len(mine),
        "throughput": interval(mean_interval([item.throughput for item in mine])),
        "speedup": interval(mean_interval([item.speedup for item in mine])),
        "near_speedup": interval(mean_interval([item.near_speedup for item in mine])),
        "trials_reused": float(np.mean([item.reused_trials for item in mine])),
        "trials_searched": float(np.mean([item.searched_trials for item in mine])),
        "trials_near": float(np.mean([item.near_trials for item in mine])),
        "paper": None if paper is None else {"throughput": paper.throughput, "speedup": paper.speedup},
    }
