"""The report as text: one table a suite and thread count, then what the suites had to reach."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import geometric_mean, median

from benchmarks.kernels.random_shapes import SUITE
from benchmarks.kernels.ratios import (
    AUTOTVM_GOAL,
    GOALS,
    Ratio,
    against_autotvm,
    named,
    standing,
    wrong,
)
from benchmarks.kernels.results import MACHINE, OWN, Case, Report

NOTES = """\
GFLOP/s: median over the rounds, the library's best way of calling it. ratio: ours over the best whole call of
any library, median over the rounds (middle half of the rounds). peak: part of the FMA rate measured in the
same rounds. roof: part of what that rate and one pass over the operands allow, and which of the two is the
limit. error: largest error over largest value, against float64. ~: too few undisturbed rounds, so all count.
untuned: our schedule that needs no measurement, which stands for us where nothing was tuned."""


def text(report: Report) -> str:
    """Everything that a report says."""
    lines = [f"{report.started}  {report.machine.get('model', '')}, load {report.machine.get('load', '?')}"]
    for library, facts in report.libraries.items():
        lines.append(f"  {library}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    for threads in sorted({case.threads for case in report.cases}):
        for suite in dict.fromkeys(case.suite for case in report.cases):
            cases = [case for case in report.cases if (case.threads, case.suite) == (threads, suite)]
            if cases:
                lines += ["", f"{suite}, {threads} thread{'s' * (threads > 1)}", *_table(cases)]
                lines += [*_verdict(suite, cases), *_launch(cases)]
    lines += ["", NOTES, *_without_figures(report.cases)]
    return "\n".join(lines)


def headline(case: Case) -> str:
    """One line on one operator, for those who wait."""
    found = standing(case)
    if found is None or found.against is None or found.best is None:
        return f"{case.workload}: nothing to compare"
    ratio = f"{_median(found.against)} ({found.against.low:.2f}-{found.against.high:.2f})"
    return f"{case.workload}: {found.ours.gflops:.1f} GFLOP/s, {ratio} of {found.best.name}"


def _table(cases: Sequence[Case]) -> Iterator[str]:
    libraries = list(dict.fromkeys(
        series.library for case in cases for series in case.series if series.library not in (OWN, MACHINE)
    ))  # fmt: skip
    head = ["", "ours", "untuned", *libraries, "ratio", "", "to", "peak", "roof", "", "error"]
    return _aligned([head, *(_row(case, libraries) for case in cases)])


def _row(case: Case, libraries: Sequence[str]) -> list[str]:
    right = [series for series in case.series if not wrong(series)]
    rates = [
        max((series.gflops for series in right if series.library == library), default=0.0)
        for library in libraries
    ]
    columns = [f"{rate:.1f}" if rate else "-" for rate in rates]
    found, name = standing(case), f"{case.workload} {case.shape}" if case.suite == SUITE else case.workload
    if found is None:
        return [name, "-", "-", *columns, "-", "", "", "-", "-", "", "-"]
    tuned, untuned = found.ours.variant == "tuned", named(case, OWN, "default")
    return [
        name,
        f"{found.ours.gflops:.1f}" if tuned else "-",
        f"{untuned.gflops:.1f}" if untuned else "-",
        *columns,
        _median(found.against),
        f"({found.against.low:.2f}-{found.against.high:.2f})" if found.against else "",
        found.best.name if found.best else "",
        _median(found.peak),
        _median(found.roof),
        found.bound,
        f"{found.ours.error:.0e}" if found.ours.error is not None else "-",
    ]


def _median(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{'' if ratio.clean else '~'}{ratio.median:.2f}"


def _verdict(suite: str, cases: Iterable[Case]) -> Iterator[str]:
    """Mean and worst against the suite's goal, and the comparison with AutoTVM."""
    standings = [found for case in cases if (found := standing(case)) is not None]
    ratios = {found.case.workload: found.against.median for found in standings if found.against}
    if ratios:
        goal, worst = GOALS[suite], min(ratios, key=lambda name: ratios[name])
        yield _goal(f"geometric mean of {len(ratios)}", geometric_mean(ratios.values()), goal.mean)
        yield _goal(f"worst ({worst})", ratios[worst], goal.worst)
        if goal.worst is not None and ratios[worst] < goal.worst:
            below = [name for name, value in ratios.items() if value < goal.worst]
            yield f"  {len(below)} of {len(ratios)} below {goal.worst:.2f}: {', '.join(below)}"
    own = [found.peak.median for found in standings if found.peak]
    if own:
        yield f"  part of the FMA peak, geometric mean: {geometric_mean(own):.2f}"
    autotvm = {found.case.workload: value for found in standings if (value := against_autotvm(found))}
    for name, value in autotvm.items():
        yield _goal(f"{name} against AutoTVM, fractions of the peak", value, AUTOTVM_GOAL)


def _launch(cases: Iterable[Case]) -> Iterator[str]:
    """What a parallel loop costs by itself."""
    found = [series for case in cases if (series := named(case, MACHINE, "launch")) is not None]
    times_us = [1e6 * turn.seconds for series in found for turn in series.rounds if turn is not None]
    if times_us:
        middle, least, most = median(times_us), min(times_us), max(times_us)
        yield f"  an empty parallel loop: median {middle:.2f} us ({least:.2f} to {most:.2f})"


def _goal(what: str, value: float, goal: float | None) -> str:
    if goal is None:
        return f"  {what}: {value:.2f}"
    return f"  {what}: {value:.2f}, goal {goal:.2f}: {'reached' if value >= goal else 'NOT reached'}"


def _without_figures(cases: Sequence[Case]) -> Iterator[str]:
    """What is missing from the tables, and why."""
    for case in cases:
        for series in case.series:
            if wrong(series):
                yield f"WRONG: {series.name} on {case.workload}, relative error {series.error:.1e}"
    missing: dict[tuple[str, str], list[str]] = {}
    for case in cases:
        for library, why in case.not_measured.items():
            reason = (library, why.splitlines()[0])
            missing.setdefault(reason, []).append(f"{case.workload} ({case.threads})")
    for (library, why), where in missing.items():
        yield f"not measured: {library}: {why}; on (threads) {', '.join(where)}"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Rows in columns, the first and textual ones to the left."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = [
            cell.ljust(width) if not cell[:1].isdigit() and cell[:1] not in "~-*" else cell.rjust(width)
            for cell, width in zip(row, widths, strict=True)
        ]
        yield ("  " + "  ".join(cells)).rstrip()
