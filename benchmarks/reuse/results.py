"""What the pairs of this benchmark found so far, read from their folder."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from benchmarks.experiments.results import interval
from benchmarks.harness import documents
from benchmarks.harness.statistics import mean_interval
from benchmarks.reuse.families import FAMILIES
from benchmarks.reuse.pairs import Outcome
from benchmarks.reuse.paper import PAIRS


class Kept(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a pair."""

    version: Literal[3] = 3
    outcome: Outcome


def keep(path: Path, outcome: Outcome) -> None:
    """Write an outcome where `kept` finds it."""
    documents.write(Kept(outcome=outcome), path)


def kept(path: Path) -> Outcome | None:
    """The outcome in a file; None without one, or for one of another version."""
    found = documents.kept(path, Kept)
    return None if found is None else found.outcome


def outcomes(work: Path, trials: int) -> list[Outcome]:
    """Every outcome of searches of so many trials in a folder, in order of families and seeds."""
    found = [kept(path) for family in FAMILIES for path in work.glob(f"{family}-*-{trials}.json")]
    order = list(FAMILIES)
    return sorted(filter(None, found), key=lambda outcome: (order.index(outcome.family), outcome.seed))


def pair_results(work: Path, trials: int) -> dict[str, Any]:
    """Single pairs by family, as plain data: ours, and the paper's where it has them."""
    made = outcomes(work, trials)
    named = [(name, [item for item in made if item.family == name]) for name in FAMILIES]
    return {
        "trials": trials,
        "families": [of_family(name, mine) for name, mine in named if mine],
        "all": of_family("all", made) if made else None,
    }


def of_family(name: str, mine: Sequence[Outcome]) -> dict[str, Any]:
    """Means over the pairs of a family, with their intervals, and what the paper says."""
    return {
        "name": name,
        "pairs": len(mine),
        **{
            figure: interval(mean_interval([getattr(item, figure) for item in mine]))
            for figure in ("throughput", "speedup", "near_speedup")
        },
        **{
            f"trials_{which}": float(np.mean([getattr(item, f"{which}_trials") for item in mine]))
            for which in ("reused", "searched", "near")
        },
        "paper": PAIRS[name]._asdict() if name in PAIRS else None,
    }
