"""The part of the page about reuse: figures of the ETO paper redrawn from our runs, with theirs beside."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from benchmarks.reuse.paper import SETS
from toolkit.report.charts import Series, Spec, bars

Results = Mapping[str, Any]
Table = tuple[list[str], list[list[Any]]]
MISSING: Final = "python -m benchmarks.reuse pairs"
MISSING_SETS: Final = "python -m benchmarks.reuse sets"
BOUNDS: Final = ("estimate", "low", "high")
PAPER: Final = "the paper: P100, Ansor"
LABELS: Final = {
    "reuse-none": "reuse, no bridges",
    "reuse-one-hop": "reuse, one-hop bridges",
    "reuse-all": "reuse, all bridges",
    "rounds": "the rounds alone, around untuned programs",
    "selective": "Selective Tuning, top 3",
}
PAIR_FIGURES: Final = {
    "throughput": "Fig. 7: throughput of reuse, relative to searching",
    "speedup": "Fig. 8: how much sooner reuse was done than the search had its best",
}
SET_FIGURES: Final = {
    "throughput": "Fig. 9 and 11: speed of a set's programs, relative to searching every operator",
    "speedup": "Fig. 10 and 11: how many times sooner the set was tuned",
}


def pair_figures(pairs: Results) -> list[Spec]:
    """Figures 7 and 8: throughput of reuse, and how much sooner it is done, by family."""
    families: Sequence[Results] = pairs["families"]
    names = [family["name"] for family in families]
    charts = []
    for key, title in PAIR_FIGURES.items():
        mean, low, high = ([family[key][bound] for family in families] for bound in BOUNDS)
        stated = [family["paper"][key] if family["paper"] else math.nan for family in families]
        series = [Series("here: CPU, learned search", names, mean, low, high), Series(PAPER, names, stated)]
        charts.append(bars(title, "times", series, level=1.0))
    return charts


def pair_rows(pairs: Results) -> Table:
    """The same as a table: column names and rows."""
    columns = [
        "family", "pairs", "throughput", "speed-up to its best", "to 1 % of it", "trials of reuse",
        "of the search to its best", "to 1 % of it",
    ]  # fmt: skip
    rows = [
        [
            family["name"],
            family["pairs"],
            *(_shown(family[key]) for key in ("throughput", "speedup", "near_speedup")),
            *(family[f"trials_{which}"] for which in ("reused", "searched", "near")),
        ]
        for family in [*pairs["families"], *([pairs["all"]] if pairs["all"] else [])]
    ]
    return columns, rows


def set_figures(outcomes: Sequence[Results]) -> list[Spec]:
    """Figures 9 to 11: whole sets by every method, one bar for each number of bridges."""
    names = list(dict.fromkeys(item["name"] for item in outcomes))
    found = {(item["name"], item["method"]): item for item in outcomes}
    charts = []
    for key, title in SET_FIGURES.items():
        series = [
            Series(label, names, [_of_set(found.get((name, method)), key) for name in names])
            for method, label in LABELS.items()
        ]
        stated = [getattr(SETS[name], key) if name in SETS else math.nan for name in names]
        series.append(Series(f"{PAPER}, one-hop bridges", names, stated))
        charts.append(bars(title, "times", series, level=1.0))
    return charts


def set_rows(outcomes: Sequence[Results]) -> Table:
    """The same as a table: column names and rows."""
    columns = ["set", "operators", "method", "trials", "seconds", "of the search", "speed of the search"]
    keys = ("name", "operators", "method", "trials", "seconds", "time", "speed")
    rows = [[item[key] for key in keys] for item in outcomes]
    return columns, [[*row[:2], LABELS.get(row[2], row[2]), *row[3:]] for row in rows]


def _of_set(outcome: Results | None, key: str) -> float:
    if outcome is None:
        return math.nan
    return float(outcome["speed"]) if key == "throughput" else 1.0 / float(outcome["time"])


def _shown(value: Results) -> str:
    return f"{value['estimate']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
