"""The report as text: one table a suite and thread count, what limits what falls short, then the goals."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from statistics import geometric_mean, median

from benchmarks.harness.text import aligned, thread_count
from benchmarks.kernels.goals import GOALS, findings, summary
from benchmarks.kernels.inference import SUITE as NETWORKS
from benchmarks.kernels.limits import limit
from benchmarks.kernels.random_shapes import SUITE
from benchmarks.kernels.ratios import Ratio, Standing, by_suite, launch_us, named, ratio, standing, wrong
from benchmarks.kernels.results import BEFORE, MACHINE, OWN, Case, Report, Series

NOTES = """\
GFLOP/s: median over the rounds, the library's best way of calling it; networks: milliseconds, median over
the rounds (fastest to slowest). ratio: ours over the best whole call of any library, median over the rounds
(middle half of the rounds). by: the algorithm of our winner. direct: our best without Winograd's algorithms,
where those are a choice, and its ratio. peak: part of the FMA rate measured in the same rounds; above 1 by
algorithms that multiply less. roof: part of what that rate and one pass over the operands allow, and which of
the two is the limit. error: largest error over largest value, against float64 (networks: against numpy). ~:
too few undisturbed rounds, so all count. untuned: our schedule that needs no measurement, which stands for us
where nothing was tuned."""


def text(report: Report) -> str:
    """Everything that a report says."""
    lines = [f"{report.started}  {report.machine.get('model', '')}, load {report.machine.get('load', '?')}"]
    for library, facts in report.libraries.items():
        lines.append(f"  {library}: " + ", ".join(f"{name} {value}" for name, value in facts.items()))
    for threads, suite, cases in by_suite(report.cases):
        lines += ["", f"{suite}, {thread_count(threads)}", *_table(suite, cases)]
        lines += [*_verdict(cases), *_launch(cases), *_limits(suite, cases), *_against_before(cases)]
    if not report.complete:
        lines += ["", "interrupted: the same command measures what is missing"]
    lines += ["", NOTES, *_without_figures(report.cases), "", *summary(findings(report.cases))]
    return "\n".join(lines)


def headline(case: Case) -> str:
    """One line on one operator, for those who wait."""
    found = standing(case)
    if found is None or found.against is None or found.best is None:
        return f"{case.workload}: nothing to compare"
    ratio = " ".join(_ratio_columns(found)[:2])
    ours = _milliseconds(found.ours) + " ms" if case.suite == NETWORKS else f"{found.ours.gflops:.1f} GFLOP/s"
    return f"{case.workload}: {ours}, {ratio} of {found.best.name}"


def _table(suite: str, cases: Sequence[Case]) -> Iterator[str]:
    libraries = list(dict.fromkeys(
        series.library for case in cases for series in case.series if series.library not in (OWN, MACHINE)
    ))  # fmt: skip
    if suite == NETWORKS:
        head = ["", "ours", *libraries, "ratio", "", "to", "peak", "error"]
        return aligned([head, *(_network_row(case, libraries) for case in cases)])
    head = ["", "ours", "by", "direct", "ratio", "untuned"]
    head += [*libraries, "ratio", "", "to", "peak", "roof", "", "error"]
    rows = [_row(case, libraries) for case in cases]
    if not any(row[3] for row in rows):  # no operator has a choice of algorithms
        head[2:5] = ["", "", ""]
        rows = [[*row[:2], "", *row[3:]] for row in rows]
    return aligned([head, *rows])


def _row(case: Case, libraries: Sequence[str]) -> list[str]:
    columns = [f"{series.gflops:.1f}" if (series := _best(case, library)) else "-" for library in libraries]
    found, name = standing(case), f"{case.workload} {case.shape}" if case.suite == SUITE else case.workload
    if found is None:
        return [name, "-", "", "", "", "-", *columns, "-", "", "", "-", "-", "", "-"]
    tuned, untuned = found.ours.variant == "tuned", named(case, OWN, "default")
    own_direct = found.direct_ours is not None and found.direct_ours.variant == "direct"
    return [
        name,
        f"{found.ours.gflops:.1f}" if tuned else "-",
        str(found.ours.facts.get("algorithm", "")),
        f"{found.direct_ours.gflops:.1f}" if own_direct and found.direct_ours else "",
        _median(found.direct) if own_direct else "",
        f"{untuned.gflops:.1f}" if untuned else "-",
        *columns,
        *_ratio_columns(found),
        _median(found.peak),
        _median(found.roof),
        found.bound,
        _error(found.ours),
    ]


def _network_row(case: Case, libraries: Sequence[str]) -> list[str]:
    columns = [_milliseconds(series) if (series := _best(case, library)) else "-" for library in libraries]
    found = standing(case)
    if found is None:
        return [case.workload, "-", *columns, "-", "", "", "-", "-"]
    row = [case.workload, _milliseconds(found.ours), *columns, *_ratio_columns(found)]
    return [*row, _median(found.peak), _error(found.ours)]


def _best(case: Case, library: str) -> Series | None:
    """The library's fastest series that is right."""
    right = [item for item in case.series if item.library == library and not wrong(item) and item.gflops]
    return max(right, key=lambda item: item.gflops, default=None)


def _ratio_columns(found: Standing) -> list[str]:
    """Median, quartiles and the rival's name."""
    if found.against is None or found.best is None:
        return ["-", "", ""]
    spread = f"({found.against.low:.2f}-{found.against.high:.2f})"
    return [_median(found.against), spread, found.best.name]


def _milliseconds(series: Series) -> str:
    times_ms = [1e3 * turn.seconds for turn in series.rounds if turn is not None]
    return f"{median(times_ms):.2f} ({min(times_ms):.2f}-{max(times_ms):.2f})"


def _error(series: Series) -> str:
    return f"{series.error:.0e}" if series.error is not None else "-"


def _median(ratio: Ratio | None) -> str:
    return "-" if ratio is None else f"{'' if ratio.clean else '~'}{ratio.median:.2f}"


def _verdict(cases: Iterable[Case]) -> Iterator[str]:
    """Means over a suite: against the best library, and of the peak."""
    standings = [found for case in cases if (found := standing(case)) is not None]
    ratios = [found.against.median for found in standings if found.against]
    if ratios:
        yield f"  ours / best library, geometric mean of {len(ratios)}: {geometric_mean(ratios):.2f}"
    direct = [found.direct.median for found in standings if found.direct]
    if any(found.direct_ours is not found.ours for found in standings) and direct:
        yield f"  without Winograd, geometric mean of {len(direct)}: {geometric_mean(direct):.2f}"
    own = [found.peak.median for found in standings if found.peak]
    rates = [series.gflops for found in standings if (series := named(found.case, MACHINE, "fma"))]
    if own:
        peak = f"{median(rates):.0f} GFLOP/s ({min(rates):.0f} to {max(rates):.0f})"
        yield f"  FMA peak: {peak}; our part of it, geometric mean: {geometric_mean(own):.2f}"


def _limits(suite: str, cases: Iterable[Case]) -> Iterator[str]:
    """What limits each operator that stays below its suite's mean goal."""
    goal = GOALS.get(suite)
    for case in cases:
        found = standing(case)
        if goal is None or found is None or found.against is None or found.against.median >= goal.mean:
            continue
        if reason := limit(found):
            yield f"  {case.workload} falls short with {_median(found.against)}: {reason}"


def _against_before(cases: Iterable[Case]) -> Iterator[str]:
    """Each of our kernels over the same one of the other checkout, untuned and tuned, where one is measured.

    Kernels of equal code differ too, by where their operands happen to lie: another run places them anew.
    """
    found = {
        (series.variant, case.workload): compared
        for case in cases
        for series in case.series
        if series.library == OWN and (other := named(case, BEFORE, series.variant)) is not None
        if (compared := ratio(series, other)) is not None
    }
    for variant in dict.fromkeys(variant for variant, _ in found):
        ratios = {name: compared for (of, name), compared in found.items() if of == variant}
        mean = geometric_mean([compared.median for compared in ratios.values()])
        yield f"  {variant}, ours / before, geometric mean of {len(ratios)}: {mean:.3f}"
        for name, compared in ratios.items():
            yield f"    {name} {compared.median:.3f} ({compared.low:.3f}-{compared.high:.3f})"


def _launch(cases: Iterable[Case]) -> Iterator[str]:
    """What a parallel loop costs by itself."""
    if times_us := launch_us(cases):
        middle, least, most = median(times_us), min(times_us), max(times_us)
        yield f"  an empty parallel loop: median {middle:.2f} us ({least:.2f} to {most:.2f})"


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
