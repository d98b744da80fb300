"""The page of the studies: one HTML file with everything in it, from the results alone."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from benchmarks.experiments.reuse_section import (
    MISSING,
    MISSING_SETS,
    pair_figures,
    pair_rows,
    set_figures,
    set_rows,
)
from benchmarks.experiments.sentences import verdict
from benchmarks.harness.statistics import NEAR
from toolkit.report.charts import Series, Spec, curves
from toolkit.report.page import Block, Chart, Heading, Table, Text
from toolkit.report.page import page as html_page

Results = Mapping[str, Any]


def page(results: Results) -> str:
    """The HTML of the results of results.json."""
    blocks = [
        replace(block, name=f"chart-{number}") if isinstance(block, Chart) else block
        for number, block in enumerate(_blocks(results))
    ]
    return html_page("tune-for-board: the learner, study by study", blocks)


def _blocks(results: Results) -> Iterator[Block]:
    yield Text(results["about"])
    yield from _goals(results["live"]["goals"])
    yield from _live(results["live"]["operators"])
    for study in results["studies"]:
        yield from _study(study)
    yield from _zero_shot(results["zero_shot"])
    yield from _reuse(results["reuse"])


def _drawn(spec: Spec) -> Chart:
    return Chart("", spec["description"], spec)


def _goals(goals: Sequence[Results]) -> Iterator[Block]:
    yield Heading("Goals")
    if not goals:
        yield _note("Nothing was measured live: run python -m benchmarks.experiments collect.")
        return
    met = {True: "yes", False: "no", None: ""}
    rows = [
        [goal["name"], goal["unit"], _interval(goal["value"]), goal["goal"], met[goal["met"]]]
        for goal in goals
    ]
    yield Table("Goals", ["name", "unit", "value (95 % interval)", "goal", "reached"], rows)
    for goal in goals:
        if "rows" in goal:
            yield Table(goal["name"], goal["columns"], goal["rows"])


def _live(operators: Sequence[Results]) -> Iterator[Block]:
    if not operators:
        return
    yield Heading("Live: best found by trials")
    yield Text(
        "Tuning runs on one core of this machine; the untuned schedules, which every run measures first, are "
        "left out."
    )
    for item in operators:
        yield _drawn(curves(item["name"], "trials", "GFLOP/s", [*map(_line, item["methods"])]))
    yield Heading("Live: best found by wall-clock time (Fig. 10a)")
    yield Text("The same runs by the time since their first trial: search, compilation and measurement.")
    for item in operators:
        lines = [Series(method["label"], method["seconds"], method["by_time"]) for method in item["methods"]]
        yield _drawn(curves(item["name"], "seconds", "GFLOP/s", lines))


def _study(study: Results) -> Iterator[Block]:
    yield Heading(f"{study['figure']}: {study['title']}")
    yield Text(study["question"], "question")
    yield Text(study["finding"], "finding")
    if found := study["landscapes"]:
        for item in found:
            lines = [*map(_line, item["methods"])]
            yield _drawn(curves(_named(item), "trials", "GFLOP/s", lines, best=item["best_gflops"]))
        yield Text(
            f"Mean of {study['seeds']} seeds with its 95 % bootstrap band; dotted: the fastest there is."
        )
        yield _methods(study)
        yield _compared(study)
    yield from map(_note, study["notes"])


def _methods(study: Results) -> Table:
    rows = []
    for item in study["landscapes"]:
        for method in item["methods"]:
            near = method["trials_to_near"]
            if near is None:
                near = f"not by all: {method['near_reached']} of {study['seeds']} seeds"
            share = _interval(method["share_of_best"])
            rows.append([_named(item), method["label"], method["mean"][-1], share, near])
    columns = ["operator", "method", f"GFLOP/s after {study['trials']} trials", "share of the fastest"]
    return Table("Methods", [*columns, f"trials until {NEAR:.0%} of the fastest (median)"], rows)


def _compared(study: Results) -> Table:
    groups = [(_named(item), item["comparisons"]) for item in study["landscapes"]]
    groups += [("all", study["comparisons"])] if len(groups) > 1 else []
    rows = [[name, item["trial"], verdict(item), item["verdict"]] for name, found in groups for item in found]
    return Table("Compared", ["operator", "trials", "by seed (95 % interval)", "verdict"], rows)


def _zero_shot(found: Results) -> Iterator[Block]:
    yield Heading("Transfer before the first trial")
    if found["rows"]:
        yield Text("A global model of C1 to C6 orders the programs of an operator that it has not seen.")
        keys = ("method", "rank_correlation", "top_recall", "by_chance")
        yield Table(
            "Ranking of programs that were not seen",
            ["target", "global model", "rank correlation", f"top-{found['top']} recall", "recall by chance"],
            [[f"{row['target']} ({row['kind']})", *(row[key] for key in keys)] for row in found["rows"]],
        )
    yield from map(_note, found["notes"])


def _reuse(found: Results) -> Iterator[Block]:
    yield Heading("Reuse of tuned programs (ETO)")
    pairs, outcomes = found["pairs"], found["sets"]
    if pairs["families"]:
        yield Text(
            "For each family random pairs of operators: one is searched with "
            f"{pairs['trials']} trials, and tuned again by reuse of the other's program. Mean over the pairs "
            "with its 95 % interval; the paper's figures are of another machine and another backend."
        )
        yield from map(_drawn, pair_figures(pairs))
        yield Table("Families", *pair_rows(pairs))
    else:
        yield _note(f"No pair was measured: run {MISSING}.")
    if outcomes:
        yield Text(
            "Whole sets of operators, weighted by how often a network computes each. The winners of all "
            "methods were timed again in turn; bridges count in the time of the reuse."
        )
        yield from map(_drawn, set_figures(outcomes))
        yield Table("Sets", *set_rows(outcomes))
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


def _interval(value: Results) -> str:
    return f"{value['estimate']:.3g} ({value['low']:.3g} to {value['high']:.3g})"


def _note(text: str) -> Text:
    return Text(text, "note")
