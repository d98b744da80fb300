"""The page: one HTML file with everything in it, from the results alone."""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping, Sequence
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
from benchmarks.experiments.statistics import NEAR
from benchmarks.experiments.svg import COLOURS, Line, chart, legend

Results = Mapping[str, Any]

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1320px; margin: 2em auto; padding: 1em; color: #222 }
h1 { font-size: 1.6em } h2 { margin-top: 2.2em; border-bottom: 1px solid #ccc } h3 { margin-bottom: .3em }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(360px, 1fr)); gap: .6em }
svg text { font: 11px system-ui, sans-serif; fill: #333 } svg .title { font-weight: 600; font-size: 12px }
.grid { stroke: #e5e5e5 } .axis { stroke: #555 } .best { stroke: #555; stroke-dasharray: 2 3 }
.legend span { margin-right: 1.4em; white-space: nowrap }
table { border-collapse: collapse; margin: .8em 0; font-size: .93em }
td, th { padding: .2em .8em; border-bottom: 1px solid #e0e0e0; text-align: left }
td.number { text-align: right; font-variant-numeric: tabular-nums }
.finding { background: #f2f6fa; border-left: 4px solid #0072B2; padding: .5em 1em }
.note { color: #8a4b00 } .question { font-style: italic }
"""


def page(results: Results) -> str:
    """The HTML of the results of results.json."""
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width">',
        f"<title>tune-for-board: the learner's studies</title><style>{_STYLE}</style></head><body>",
        "<h1>The learner, study by study</h1>",
        f"<p>{_text(results['about'])}</p>",
        *_goals(results["live"]),
        *_live(results["live"]),
        *(part for study in results["studies"] for part in _study(study)),
        *_zero_shot(results["zero_shot"]),
        *_reuse(results["reuse"]),
        "</body></html>",
    ]
    return "\n".join(parts) + "\n"


def _goals(live: Results) -> list[str]:
    if not live["goals"]:
        return [
            '<h2>Goals</h2><p class="note">Nothing was measured live: run '
            "<code>python -m benchmarks.experiments collect</code>.</p>"
        ]
    rows = []
    for goal in live["goals"]:
        value = goal["value"]
        met = {True: "yes", False: "no", None: ""}[goal["met"]]
        rows.append([goal["name"], goal["unit"], _interval(value), goal["goal"], met])
    parts = ["<h2>Goals</h2>", _table(["", "unit", "value (95 % interval)", "goal", "reached"], rows)]
    for goal in live["goals"]:
        if "rows" in goal:
            parts += [f"<h3>{_text(goal['name'])}</h3>", _table(goal["columns"], goal["rows"])]
    return parts


def _live(live: Results) -> list[str]:
    if not live["operators"]:
        return []
    trials, times = [], []
    for operator in live["operators"]:
        methods = operator["methods"]
        lines = [
            _line(place, method, range(1, len(method["mean"]) + 1)) for place, method in enumerate(methods)
        ]
        trials.append(chart(operator["name"], "trials", "GFLOP/s", lines))
        by_time = [
            Line(
                method["label"],
                COLOURS[place],
                method["seconds"],
                method["by_time"],
                method["by_time"],
                method["by_time"],
            )
            for place, method in enumerate(methods)
        ]
        times.append(chart(operator["name"], "seconds", "GFLOP/s", by_time))
    widest = max(live["operators"], key=lambda operator: len(operator["methods"]))["methods"]
    shared = legend([_line(place, method, ()) for place, method in enumerate(widest)])
    return [
        "<h2>Live: best found by trials</h2>",
        "<p>Tuning runs on one core of this machine; the untuned schedules, which every run measures first, "
        "are left out.</p>",
        shared,
        _charts(trials),
        "<h2>Live: best found by wall-clock time (Fig. 10a)</h2>",
        "<p>The same runs by the time since their first trial: search, compilation and measurement.</p>",
        shared,
        _charts(times),
    ]


def _study(study: Results) -> Iterable[str]:
    yield f"<h2>{_text(study['figure'])}: {_text(study['title'])}</h2>"
    yield f'<p class="question">{_text(study["question"])}</p>'
    yield f'<p class="finding">{_text(study["finding"])}</p>'
    if study["landscapes"]:
        x = range(1, study["trials"] + 1)
        drawn = [
            [_line(place, method, x) for place, method in enumerate(item["methods"])]
            for item in study["landscapes"]
        ]
        yield legend(drawn[0])
        yield _charts(
            chart(_named(item), "trials", "GFLOP/s", lines, best=item["best_gflops"])
            for item, lines in zip(study["landscapes"], drawn, strict=True)
        )
        yield (
            f"<p>Mean of {study['seeds']} seeds with its 95 % bootstrap band; dotted: the fastest program "
            "there is.</p>"
        )
        yield _methods(study)
        yield _compared(study)
    for note in study["notes"]:
        yield f'<p class="note">{_text(note)}</p>'


def _methods(study: Results) -> str:
    rows = []
    for item in study["landscapes"]:
        for method in item["methods"]:
            near = method["trials_to_near"]
            reached = f"{method['near_reached']} of {study['seeds']} seeds"
            rows.append(
                [
                    _named(item),
                    method["label"],
                    method["mean"][-1],
                    _interval(method["share_of_best"]),
                    f"not by all: {reached}" if near is None else near,
                ]
            )
    columns = ["operator", "method", f"GFLOP/s after {study['trials']} trials", "share of the fastest"]
    return _table([*columns, f"trials until {NEAR:.0%} of the fastest (median)"], rows)


def _compared(study: Results) -> str:
    rows = []
    everywhere = [("all", study["comparisons"])] if len(study["landscapes"]) > 1 else []
    for name, comparisons in [
        *((_named(item), item["comparisons"]) for item in study["landscapes"]),
        *everywhere,
    ]:
        rows += [[name, item["trial"], verdict(item), item["verdict"]] for item in comparisons]
    return _table(["operator", "trials", "by seed (95 % interval)", "verdict"], rows)


def _zero_shot(found: Results) -> list[str]:
    parts = ["<h2>Transfer before the first trial</h2>"]
    if found["rows"]:
        rows = [
            [
                f"{row['target']} ({row['kind']})",
                row["method"],
                row["rank_correlation"],
                row["top_recall"],
                row["by_chance"],
            ]
            for row in found["rows"]
        ]
        columns = [
            "target",
            "global model",
            "rank correlation",
            f"top-{found['top']} recall",
            "recall by chance",
        ]
        parts += [
            "<p>A global model of C1 to C6 orders the programs of an operator that it has not seen.</p>",
            _table(columns, rows),
        ]
    return parts + [f'<p class="note">{_text(note)}</p>' for note in found["notes"]]


def _reuse(found: Results) -> list[str]:
    return ["<h2>Reuse of tuned programs (ETO)</h2>", *_pairs(found["pairs"]), *_sets(found["sets"])]


def _pairs(pairs: Results) -> list[str]:
    if not pairs["families"]:
        return [f'<p class="note">No pair was measured: run <code>{MISSING}</code>.</p>']
    columns, rows = pair_rows(pairs)
    return [
        "<p>For each family random pairs of operators: one is searched with "
        f"{pairs['trials']} trials, and tuned again by reuse of the other's program. Mean over the pairs "
        "with its 95 % interval; the paper's figures are of another machine and another backend.</p>",
        *pair_figures(pairs),
        _table(columns, rows),
    ]


def _sets(outcomes: Sequence[Results]) -> list[str]:
    if not outcomes:
        return [f'<p class="note">No set was measured: run <code>{MISSING_SETS}</code>.</p>']
    columns, rows = set_rows(outcomes)
    return [
        "<p>Whole sets of operators, weighted by how often a network computes each. The winners of all "
        "methods were timed again in turn; bridges count in the time of the reuse.</p>",
        *set_figures(outcomes),
        _table(columns, rows),
    ]


def _named(landscape: Results) -> str:
    counted = f"{landscape['configurations']} programs"
    return f"{landscape['name']} ({'table' if landscape['kind'] == 'table' else 'pool'} of {counted})"


def _line(place: int, method: Results, x: Sequence[float]) -> Line:
    dashed = "×2" in method["label"]
    colour = COLOURS[place % len(COLOURS)]
    return Line(method["label"], colour, x, method["mean"], method["low"], method["high"], dashed)


def _charts(charts: Iterable[str]) -> str:
    return f'<div class="charts">{"".join(charts)}</div>'


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


def _text(value: str) -> str:
    return html.escape(value)
