"""The part of the page about reuse: figures of the ETO paper redrawn from our runs, with theirs beside."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from benchmarks.experiments.bars import Bars, bars, bars_legend
from benchmarks.experiments.svg import COLOURS
from benchmarks.reuse.paper import SETS

Results = Mapping[str, Any]
MISSING: Final = "python -m benchmarks.reuse pairs"
MISSING_SETS: Final = "python -m benchmarks.reuse sets"
LABELS: Final = {
    "reuse-none": "reuse, no bridges",
    "reuse-one-hop": "reuse, one-hop bridges",
    "reuse-all": "reuse, all bridges",
    "rounds": "the rounds alone, around untuned programs",
    "selective": "Selective Tuning, top 3",
}


def pair_figures(pairs: Results) -> Iterable[str]:
    """Figures 7 and 8: throughput of reuse, and how much sooner it is done, by family; legend first."""
    families: Sequence[Results] = pairs["families"]
    names = [family["name"] for family in families]
    for number, (key, title, unit) in enumerate(
        (
            ("throughput", "Fig. 7: throughput of reuse, relative to searching", "times"),
            ("speedup", "Fig. 8: how much sooner reuse was done than the search had its best", "times"),
        )
    ):
        series = [_ours(families, key), _papers(families, key)]
        if number == 0:
            yield bars_legend(series)
        yield bars(title, unit, names, series, level=1.0)


def pair_rows(pairs: Results) -> tuple[list[str], list[list[Any]]]:
    """The same as a table: column names and rows."""
    columns = [
        "family", "pairs", "throughput", "speed-up to its best", "to 1 % of it", "trials of reuse",
        "of the search to its best", "to 1 % of it",
    ]  # fmt: skip
    rows = [
        [
            family["name"],
            family["pairs"],
            _shown(family["throughput"]),
            _shown(family["speedup"]),
            _shown(family["near_speedup"]),
            family["trials_reused"],
            family["trials_searched"],
            family["trials_near"],
        ]
        for family in [*pairs["families"], *([pairs["all"]] if pairs["all"] else [])]
    ]
    return columns, rows


def set_figures(outcomes: Sequence[Results]) -> Iterable[str]:
    """Figures 9 to 11: whole sets by every method, one bar for each number of bridges; legend first."""
    names = list(dict.fromkeys(item["name"] for item in outcomes))
    for number, (key, title) in enumerate(
        (
            ("throughput", "Fig. 9 and 11: speed of a set's programs, relative to searching every operator"),
            ("speedup", "Fig. 10 and 11: how many times sooner the set was tuned"),
        )
    ):
        series = [
            Bars(label, COLOURS[place], [_of_set(outcomes, name, method, key) for name in names])
            for place, (method, label) in enumerate(LABELS.items())
        ]
        stated = [getattr(SETS[name], key) if name in SETS else math.nan for name in names]
        series.append(Bars("the paper: P100, Ansor, one-hop bridges", COLOURS[len(LABELS)], stated))
        if number == 0:
            yield bars_legend(series)
        yield bars(title, "times", names, series, level=1.0)


def set_rows(outcomes: Sequence[Results]) -> tuple[list[str], list[list[Any]]]:
    """The same as a table: column names and rows."""
    columns = ["set", "operators", "method", "trials", "seconds", "of the search", "speed of the search"]
    rows = [
        [
            item["name"],
            item["operators"],
            LABELS.get(item["method"], item["method"]),
            item["trials"],
            item["seconds"],
            item["time"],
            item["speed"],
        ]
        for item in outcomes
    ]
    return columns, rows


def _of_set(outcomes: Sequence[Results], name: str, method: str, key: str) -> float:
    for item in outcomes:
        if (item["name"], item["method"]) == (name, method):
            return float(item["speed"]) if key == "throughput" else 1.0 / float(item["time"])
    return math.nan


def _ours(families: Sequence[Results], key: str) -> Bars:
    found = [family[key] for family in families]
    return Bars(
        "here: CPU, learned search",
        COLOURS[0],
        [item["estimate"] for item in found],
        [item["low"] for item in found],
        [item["high"] for item in found],
    )


def _papers(families: Sequence[Results], key: str) -> Bars:
    stated = [family["paper"][key] if family["paper"] else math.nan for family in families]
    return Bars("the paper: P100, Ansor", COLOURS[1], stated)


def _shown(value: Results) -> str:
    return f"{value['estimate']:.3f} ({value['low']:.3f} to {value['high']:.3f})"
