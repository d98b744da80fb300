"""Tables as plain text: aligned columns that read the same on a terminal, in a file and in a mail."""

from __future__ import annotations

from collections.abc import Sequence

from toolkit.measure.comparison import CONFIDENCE
from toolkit.model_job.options import FallbackReport, Latency, OperatorReport, TuneReport
from toolkit.model_job.tuning_plan import TuningPlan
from toolkit.report.columns import named, table
from toolkit.report.failures import failure_text
from toolkit.tuning.time_breakdown import TimeBreakdown

EMULATED = "emulated"
NO_GPU = "OpenCL on this machine's CPU, the times say nothing about a GPU"
NOTHING = "-"
RUNS, GFLOPS = 1, 5  # columns of the table of operators
ABOVE_PEAK = (
    "Above the peak: GFLOP/s count the operations of the operator's definition. Winograd's algorithm does "
    "fewer, and products of bytes have a higher peak than float32."
)


def operator_table(
    operators: Sequence[OperatorReport],
    *,
    emulated: bool,
    peak_gflops: float | None = None,
    width: int = 0,
) -> str:
    """One line for each distinct operator: times before and after tuning, throughput, trials.

    `width` here and below: columns of the terminal, 0 for no limit.
    """
    mark = f" ({EMULATED})" if emulated else ""
    headers = [
        "operator",
        "runs",
        f"before{mark}",
        f"after{mark}",
        "faster",
        f"GFLOP/s{mark}",
    ]
    headers += ["% of peak"] if peak_gflops else []
    headers += ["trials", "failed"]
    rows = []
    for item in operators:
        row = [item.name, str(item.count), time_text(item.default_s)]
        row += [time_text(item.best_s), _times(item.speedup), _number(item.gflops)]
        if peak_gflops:
            row.append(_number(100 * item.gflops / peak_gflops if item.gflops else None))
        rows.append([*row, str(item.trials), str(item.failures)])
    least_wanted = [len(headers) - 1, len(headers) - 2, *range(len(headers) - 3, GFLOPS - 1, -1), RUNS]
    text = table(headers, rows, width=width, optional=least_wanted)
    if peak_gflops and any((item.gflops or 0.0) > peak_gflops for item in operators):
        text += f"\n{ABOVE_PEAK}"
    failed = [failure_text(item.name, item.trials, item.reasons, width) for item in operators if item.reasons]
    return "\n\n".join([text, *failed])


def tune_table(report: TuneReport, width: int = 0) -> str:
    """The operators, then the model as a whole."""
    mark = f" ({EMULATED})" if report.emulated else ""
    before, after = report.default_latency, report.tuned_latency
    rate = report.measured / report.tuning_s if report.tuning_s else 0.0
    peak = f"{report.peak_gflops:.1f} GFLOP/s float32" if report.peak_gflops else "not measured"
    facts = [
        (
            f"end to end before{mark}",
            _latency_text(before) if before else f"failed: {report.default_failure}",
        ),
        (f"end to end after{mark}", _latency_text(after)),
        *_verdict(report),
        ("largest relative error", f"{report.tuned_latency.max_relative_error:.1e}"),
        ("trials", f"{report.measured} now, {report.trials} in all, {rate:.1f} a second"),
        *_accounts(report.accounts),
        (f"peak of target {report.target}{mark}", peak),
        *_fallback(report.fallback, mark),
        *([("in floats", report.precision.text)] if report.precision else []),
        *([("bridges", f"{report.bridges} tuned to be reused")] if report.bridges else []),
        ("records", str(report.records)),
        ("bundle", f"{report.bundle} ({report.bundle_id})"),
        *([("page", str(report.page))] if report.page else []),
    ]
    title = f"{report.model} on {report.board}"
    if report.emulated:
        title += f": {EMULATED}, the times say nothing about a chip"
    elif report.pocl:
        title += f": {NO_GPU}"
    return "\n".join([
        title, "",
        operator_table(
            report.operators, emulated=report.emulated, peak_gflops=report.peak_gflops, width=width
        ), "",
        *named(facts),
    ])  # fmt: skip


def _fallback(fallback: FallbackReport | None, mark: str) -> list[tuple[str, str]]:
    """What the bundle holds for a board whose GPU cannot be used."""
    if fallback is None:
        return []
    kernels = f"{fallback.tuned} of {fallback.operators} operators tuned"
    name = f"CPU variant {fallback.target}{mark}"
    return [(name, f"{_latency_text(fallback.latency)}; {kernels}")]


def plan_table(plan: TuningPlan, width: int = 0) -> str:
    """What a job is going to do: each operator's trials and minutes, then the stages."""
    reuses = any(item.reuses for item in plan.operators)
    headers = ["operator", *["begins with the program of"] * reuses, "runs", "recorded", "trials", "time"]
    rows = [
        [
            item.name,
            *[item.reuses] * reuses,
            "bridge" if item.bridge else str(item.count),
            str(item.recorded),
            str(item.trials),
            duration(item.seconds),
        ]
        for item in plan.operators
    ]
    budget = "" if plan.budget_s is None else f", of {duration(plan.budget_s)} given"
    facts = [
        ("prepared", duration(plan.prepared_s)),
        ("tuning", f"{duration(plan.tuning_s)}, about {plan.trials} trials"),
        ("confirming", f"{duration(plan.confirm_s)}, the fastest of each operator once more"),
        ("finishing", f"{duration(plan.finish_s)}, to compile, measure and pack the model"),
        ("in all", f"{duration(plan.total_s)}{budget}"),
    ]
    return "\n".join([table(headers, rows, 1 + reuses, width=width), "", *named(facts)])


def accounts_text(accounts: TimeBreakdown) -> str:
    """Where the time of tuning went."""
    return "\n".join(named(_accounts(accounts)))


def _accounts(accounts: TimeBreakdown) -> list[tuple[str, str]]:
    return [
        (
            "board busy",
            f"{accounts.busy_share:.0%} of {duration(accounts.wall_s)}, idle {accounts.idle_share:.0%}",
        ),
        ("waiting for the compiler", f"{accounts.compile_share:.0%}"),
        ("search overhead", f"{accounts.overhead_share:.0%}, what neither board nor compiler did"),
    ]


def _verdict(report: TuneReport) -> list[tuple[str, str]]:
    """What the times of both models allow to say, and what disturbed them."""
    facts, found = [], report.comparison
    if found is not None:
        verdict: str = found.verdict
        if found.high is not None:
            interval = f"{CONFIDENCE:.0%} interval {found.low:.2f} to {found.high:.2f}"
            verdict += f": {_times(found.ratio)} as fast, {interval}, of {found.pairs} pairs measured in turn"
        facts.append(("verdict", verdict))
    if report.packed == "untuned":
        facts.append(("bundled", "the untuned schedules, because no tuned model was found to be faster"))
    return facts + [("disturbed by", text) for text in report.disturbed]


def _latency_text(latency: Latency) -> str:
    """Median, two percentiles and the first run; a single run is all that there is to say."""
    if len(latency.seconds) == 1:
        return f"{time_text(latency.median_s)}, one run"
    high = ", ".join(f"p{percent} {time_text(latency.percentile_s(percent))}" for percent in (90, 99))
    first = f"; the first run {time_text(min(latency.first_s))}" if latency.first_s else ""
    return f"{time_text(latency.median_s)}, the median of {len(latency.seconds)} runs ({high}){first}"


def time_text(seconds: float | None) -> str:
    """`1.234 ms`, below a tenth of that `12.34 µs`, or a dash."""
    if seconds is None:
        return NOTHING
    return f"{seconds * 1e3:.3f} ms" if seconds >= 1e-4 else f"{seconds * 1e6:.2f} µs"


def mebibytes(count: int) -> str:
    """`1.25 MiB`."""
    return f"{count / 2**20:.2f} MiB"


def duration(seconds: float) -> str:
    """`1:02:03` or `2:03`."""
    whole = round(seconds)
    hours, minutes = whole // 3600, whole // 60 % 60
    return f"{hours}:{minutes:02d}:{whole % 60:02d}" if hours else f"{minutes}:{whole % 60:02d}"


def _number(value: float | None) -> str:
    if value is None:
        return NOTHING
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def _times(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}x"
