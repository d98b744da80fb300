"""The page: one HTML file with everything in it, from the results alone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from benchmarks.experiments.reuse_section import (
    MISSING,
    MISSING_SETS,
    pair_figures,
    pair_rows,
    set_figures,
    set_rows,
)
from benchmarks.experiments.sentences import verdict
from benchmarks.harness.charts import Series, curves, svg
from benchmarks.harness.statistics import NEAR

Results = Mapping[str, Any]

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1320px; margin: 2em auto; padding: 1em; color: #222 }
h1 { font-size: 1.6em } h2 { margin-top: 2.2em; border-bottom: 1px solid #ccc } h3 { margin-bottom: .3em }
svg { max-width: 100%; height: auto }
table { border-collapse: collapse; margin: .8em 0; font-size: .93em }
td, th { padding: .2em .8em; border-bottom: 1px solid #e0e0e0; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.finding { background: #f2f6fa; border-left: 4px solid #0072B2; padding: .5em 1em }
.note { color: #8a4b00 } .question { font-style: italic }
"""


def page(results: Results) -> str:
    """The HTML of the results of results.json. Raises MissingExtra where charts cannot be drawn."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>tune-for-board: the learner's studies</title><style>{_STYLE}</style></head><body>",
        "<h1>The learner, study by study</h1>",
        _paragraph(results["about"]),
        *_goals(results["live"]["goals"]),
        *_live(results["live"]["operators"]),
        *(part for study in results["studies"] for part in _study(study)),
        *_zero_shot(results["zero_shot"]),
        *_reuse(results["reuse"]),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _goals(goals: Sequence[Results]) -> Iterator[str]:
    yield "<h2>Goals</h2>"
    if not goals:
        yield _note("Nothing was measured live: run python -m benchmarks.experiments collect.")
        return
    met = {True: "yes", False: "no", None: ""}
    rows = [
        [goal["name"], goal["unit"], _interval(goal["value"]), goal["goal"], met[goal["met"]]]
        for goal in goals
    ]
    yield _table(["", "unit", "value (95 % interval)", "goal", "reached"], rows)
    for goal in goals:
        if "rows" in goal:
            yield f"<h3>{_text(goal['name'])}</h3>"
            yield _table(goal["columns"], goal["rows"])


def _live(operators: Sequence[Results]) -> Iterator[str]:
    if not operators:
        return
    yield "<h2>Live: best found by trials</h2>"
    yield _paragraph(
        "Tuning runs on one core of this machine; the untuned schedules, which every run measures first, are "
        "left out."
    )
    yield svg(
        [curves(item["name"], "trials", "GFLOP/s", [*map(_line, item["methods"])]) for item in operators]
    )
    yield "<h2>Live: best found by wall-clock time (Fig. 10a)</h2>"
    yield _paragraph(
        "The same runs by the time since their first trial: search, compilation and measurement."
    )
    yield svg(
        [
            curves(
                item["name"],
                "seconds",
                "GFLOP/s",
                [Series(method["label"], method["seconds"], method["by_time"]) for method in item["methods"]],
            )
            for item in operators
        ]
    )


def _study(study: Results) -> Iterator[str]:
    yield f"<h2>{_text(study['figure'])}: {_text(study['title'])}</h2>"
    yield _paragraph(study["question"], "question")
    yield _paragraph(study["finding"], "finding")
    if found := study["landscapes"]:
        yield svg(
            [
                curves(
                    _named(item),
                    "trials",
                    "GFLOP/s",
                    [*map(_line, item["methods"])],
                    best=item["best_gflops"],
                )
                for item in found
            ]
        )
        yield _paragraph(
            f"Mean of {study['seeds']} seeds with its 95 % bootstrap band; dotted: the fastest there is."
        )
        yield _methods(study)
        yield _compared(study)
    yield from map(_note, study["notes"])


def _methods(study: Results) -> str:
    rows = []
    for item in study["landscapes"]:
        for method in item["methods"]:
            near = method["trials_to_near"]
            if near is None:
                near = f"not by all: {method['near_reached']} of {study['seeds']} seeds"
            share = _interval(method["share_of_best"])
            rows.append([_named(item), method["label"], method["mean"][-1], share, near])
    columns = ["operator", "method", f"GFLOP/s after {study['trials']} trials", "share of the fastest"]
    return _table([*columns, f"trials until {NEAR:.0%} of the fastest (median)"], rows)


def _compared(study: Results) -> str:
    groups = [(_named(item), item["comparisons"]) for item in study["landscapes"]]
    groups += [("all", study["comparisons"])] if len(groups) > 1 else []
    rows = [[name, item["trial"], verdict(item), item["verdict"]] for name, found in groups for item in found]
    return _table(["operator", "trials", "by seed (95 % interval)", "verdict"], rows)


def _zero_shot(found: Results) -> Iterator[str]:
    yield "<h2>Transfer before the first trial</h2>"
    if found["rows"]:
        yield _paragraph(
            "A global model of C1 to C6 orders the programs of an operator that it has not seen."
        )
        keys = ("method", "rank_correlation", "top_recall", "by_chance")
        yield _table(
            ["target", "global model", "rank correlation", f"top-{found['top']} recall", "recall by chance"],
            [[f"{row['target']} ({row['kind']})", *(row[key] for key in keys)] for row in found["rows"]],
        )
    yield from map(_note, found["notes"])


def _reuse(found: Results) -> Iterator[str]:
    yield "<h2>Reuse of tuned programs (ETO)</h2>"
    pairs, outcomes = found["pairs"], found["sets"]
    if pairs["families"]:
        yield _paragraph(
            "For each family random pairs of operators: one is searched with "
            f"{pairs['trials']} trials, and tuned again by reuse of the other's program. Mean over the pairs "
            "with its 95 % interval; the paper's figures are of another machine and another backend."
        )
        yield from (svg([chart]) for chart in pair_figures(pairs))
        yield _table(*pair_rows(pairs))
    else:
        yield _note(f"No pair was measured: run {MISSING}.")
    if outcomes:
        yield _paragraph(
            "Whole sets of operators, weighted by how often a network computes each. The winners of all "
            "methods were timed again in turn; bridges count in the time of the reuse."
        )
        yield from (svg([chart]) for chart in set_figures(outcomes))
        yield _table(*set_rows(outcomes))
    else:
        yield _note(f"No set was measured: run {MISSING_SETS}.")


def _named(landscape: Results) -> str:
    kind = "table" if landscape["kind"] == "table" else "pool"
    return f"{landscape['name']} ({kind} of {landscape['configurations']} programs)"


def _line(method: Results) -> Series:
    """A method's mean by trials with its band; those that measure two programs a trial are dashed."""
    x = range(1, len(method["mean"]) + 1)
    dashed = "×2" in method["label"]
    return Series(method["label"], x, method["mean"], method["low"], method["high"], dashed)


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    head = "".join(f"<th>{_text(name)}</th>" for name in columns)
    body = "".join(f"<tr>{''.join(_entry(value) for value in row)}</tr>" for row in rows)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _entry(value: Any) -> str:
    if isinstance(value, int | float):
        return f'<td class="number">{value:.4g}</td>'
    return f"<td>{_text(str(value))}</td>"


def _interval(value: Results) -> str:
    return f"{value['estimate']:.3g} ({value['low']:.3g} to {value['high']:.3g})"


def _paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{_text(text)}</p>' if kind else f"<p>{_text(text)}</p>"


def _note(text: str) -> str:
    return _paragraph(text, "note")


def _text(value: str) -> str:
    return html.escape(value)
