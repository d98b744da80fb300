"""The page of a job: how the model became faster, what limits it now, and what the search cost."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from boards.files import write_file
from cross.link import DEFAULT_CACHE_DIR
from toolkit.errors import writing
from toolkit.measure.comparison import CONFIDENCE
from toolkit.model_job.job_file import JobFile
from toolkit.model_job.options import Latency, TuneReport
from toolkit.records import Records
from toolkit.report.charts import line, rectangles, roofline, scatter, shares, steps, ticks
from toolkit.report.job_data import JobData, OperatorData, Step, job_data
from toolkit.report.page import Block, Cell, Chart, Choice, Code, Facts, Heading, Row, Table, Text, page
from toolkit.report.tables import ABOVE_PEAK, EMULATED, NO_GPU, duration, mebibytes, time_text

WHOLE: Final = "the whole model (sum of its operators)"
ALL: Final = "all operators"
MILLISECONDS: Final = 1e3
STATES: Final = {
    "running": "is running",
    "done": "is done",
    "failed": "failed",
    "interrupted": "was interrupted",
    "recorded": "not a job: what the records know",
}


def note(text: str) -> Text:
    """What a reader should know of the block beside it."""
    return Text(text, "note")


def page_beside(bundle: Path | str) -> Path:
    """Where the page of a bundle is written."""
    return Path(bundle).with_suffix(".html")


def write_job_page(job: JobFile, path: Path | str) -> Path:
    """Write the page of a job from its file and its records. Raises RecordsError, OutputError."""
    path = Path(path)
    with Records(job.records, read_only=True) as records:
        text = job_page(job_data(job, records))
    with writing("the page", path, "name a file in a folder that you may write to"):
        write_file(path, text.encode())
    return path


def job_page(data: JobData, *, cache_dir: Path | str = DEFAULT_CACHE_DIR) -> str:
    """The HTML of a job's page."""
    return page(job_title(data.job), job_blocks(data), cache_dir=Path(cache_dir))


def job_title(job: JobFile) -> str:
    """What the page is called."""
    return f"{job.model} on {job.board}"


def job_state(job: JobFile) -> str:
    """What became of a job, and why; a process that is gone was interrupted."""
    state = job.state if job.state != "running" or job.is_running else "interrupted"
    return f"{STATES[state]}: {job.reason}" if job.reason else STATES[state]


def job_blocks(data: JobData) -> list[Block]:
    """Everything that the page shows below its title."""
    return [
        *_summary(data),
        *_progress(data),
        *_layers(data),
        *_roof(data),
        *_end_to_end(data.job.report, measured_word(data.job)),
        *_predicted(data),
        *_failures(data),
        *_time(data),
        *_memory(data),
        *_climate(data),
        *_provenance(data.job),
    ]


def measured_word(job: JobFile) -> str:
    """What stands beside every time of the board."""
    return EMULATED if job.emulated else "measured"


def _summary(data: JobData) -> Iterator[Block]:
    job, report = data.job, data.job.report
    if job.emulated:
        yield Text(f"Every time here is {EMULATED}: it says nothing about a chip.", "finding")
    elif job.pocl:
        yield Text(f"{NO_GPU[0].upper()}{NO_GPU[1:]}.", "finding")
    trials = sum(item.trials for item in data.operators)
    failed = sum(reason.count for item in data.operators for reason in item.reasons)
    facts = [
        ("job", job_state(job)),
        ("board", f"{job.board}, target {job.target}"),
        (
            "operators",
            f"{sum(item.operator.count for item in data.operators)}, {len(data.operators)} distinct",
        ),
        ("trials", f"{trials}, {failed} of them failed"),
        ("time of tuning", duration(data.spent.wall_s)),
    ]
    if data.whole:
        word = measured_word(job)
        facts.append((f"sum of operator times now ({word})", time_text(data.whole[-1].best_s)))
    if report is not None:
        facts += _verdict(report, measured_word(job))
    yield Facts(facts)


def _verdict(report: TuneReport, word: str) -> list[tuple[str, str]]:
    before, after, found = report.default_latency, report.tuned_latency, report.comparison
    facts = [
        (f"end to end before ({word})", time_text(before.median_s) if before else report.default_failure)
    ]
    facts.append((f"end to end after ({word})", time_text(after.median_s)))
    if found is not None:
        verdict: str = found.verdict
        if found.high is not None:
            interval = f"{CONFIDENCE:.0%} interval {found.low:.2f} to {found.high:.2f}"
            verdict += f", {found.ratio:.2f}x as fast ({interval})"
        facts.append(("verdict", verdict))
    return facts + [("disturbed by", text) for text in report.disturbed]


def _progress(data: JobData) -> Iterator[Block]:
    yield Heading("Best time while tuning")
    names = numbered(data.operators)
    found = [
        (WHOLE, data.whole),
        *((name, item.steps) for name, item in zip(names, data.operators, strict=True)),
    ]
    rows = [row for name, of in found for row in _step_rows(name, of, measured_word(data.job))]
    if not rows:
        yield note("No trial has succeeded yet.")
        return
    yield note(
        "The whole model is the sum of its operators' best times; until one is tried it counts with its "
        "first time, and one that never succeeded is left out. No run of the model was measured for it."
    )
    yield Choice("Show", [name for name, of in found if of], ["by-trials", "by-seconds"])
    y, first = f"ms ({measured_word(data.job)})", next(name for name, of in found if of)
    for by in ("trials", "seconds"):
        title = f"Best time by {by}"
        yield Chart(f"by-{by}", title, steps(title, rows, by, y, first))


def _step_rows(name: str, of: Sequence[Step], word: str) -> list[dict[str, object]]:
    return [
        {"of": name, "trials": s.trials, "seconds": round(s.seconds, 3), f"ms ({word})": _ms(s.best_s)}
        for s in of
    ]


def _layers(data: JobData) -> Iterator[Block]:
    job, word = data.job, measured_word(data.job)
    before_s = sum((item.before_s or 0.0) * item.operator.count for item in data.operators)
    after_s = sum(item.model_s or 0.0 for item in data.operators)
    columns = [
        "no.", "operator", "runs", f"before ({word})", f"share before ({word})", f"after ({word})",
        f"share after ({word})", "faster", f"GFLOP/s ({word})", f"of its roof ({_peak_word(job)} peak)",
        "trials", "failed", "layers",
    ]  # fmt: skip
    rows: list[Row] = []
    for number, item in enumerate(data.operators, 1):
        operator, roof = item.operator, _roof_share(job, item)
        rows.append([
            float(number), operator.name, float(operator.count), _time_cell(item.before_s),
            _share((item.before_s or 0.0) * operator.count, before_s), _time_cell(item.after_s),
            _share(item.model_s or 0.0, after_s),
            _times(item.before_s / item.after_s) if item.before_s and item.after_s else None,
            operator.flops / item.after_s / 1e9 if item.after_s and operator.flops else None,
            None if roof is None else Cell(f"{roof:.0%}", roof), float(item.trials),
            float(sum(reason.count for reason in item.reasons)), ", ".join(operator.layers),
        ])  # fmt: skip
    yield Heading("Layers before and after")
    yield note("Times are of one call, the fastest repeat; shares are of all calls in a run of the model.")
    yield Table("Operators of the model", columns, rows)
    if any((_roof_share(job, item) or 0.0) > 1.0 for item in data.operators):
        yield note(ABOVE_PEAK)


def _roof(data: JobData) -> Iterator[Block]:
    job, word = data.job, measured_word(data.job)
    x, y = "operations per byte", f"GFLOP/s ({word})"
    points = [
        {
            "of": f"{when} ({word})", "operator": item.operator.name,
            x: item.operator.flops / item.operator.moved_bytes,
            y: item.operator.flops / seconds / 1e9, "label": str(number) if when == "after" else "",
        }
        for number, item in enumerate(data.operators, 1)
        for when, seconds in (("before", item.before_s), ("after", item.after_s))
        if seconds and item.operator.flops
    ]  # fmt: skip
    yield Heading("Roofline")
    if not points:
        yield note("No operator that computes anything has a time yet.")
        return
    low = min(float(str(point[x])) for point in points) / 2
    high = max(float(str(point[x])) for point in points) * 2
    peak, bandwidth = job.peak_gflops, job.bandwidth_gbs
    name = f"float32 peak ({_peak_word(job)})"
    knee = max(low, min(high, peak / bandwidth)) if bandwidth else low
    roofs = [{"of": name, x: knee, y: peak}, {"of": name, x: high, y: peak}]
    if bandwidth:
        word = "measured" if job.bandwidth_measured else "by specification"
        of = f"main memory, {bandwidth:.1f} GB/s ({word})"
        roofs += [{"of": of, x: low, y: low * bandwidth}, {"of": of, x: knee, y: knee * bandwidth}]
    else:
        yield note(
            "How fast the main memory is was not measured (`toolkit boards probe`): only the peak is drawn."
        )
    yield note(
        "Operations by the operator's definition; bytes when each operand moves once; numbers as above."
    )
    yield Chart(
        "roofline",
        "What the operators reach, and what the board allows",
        roofline("Roofline", roofs, points, x, y),
    )


def _end_to_end(report: TuneReport | None, word: str) -> Iterator[Block]:
    if report is None:
        return
    models = (("before", report.default_latency), ("after", report.tuned_latency))
    unit = f"ms ({word})"
    rows = [
        {"of": name, unit: _ms(seconds)} for name, latency in models if latency for seconds in latency.seconds
    ]
    yield Heading("The whole model")
    yield Chart("runs", "Single runs before and after", ticks("Single runs before and after", rows, unit))
    yield Table(
        f"Time of a run ({word})",
        ["model", "median", "90th percentile", "99th percentile", "first run", "runs"],
        [_latency_row(name, latency) for name, latency in models if latency],
    )


def _latency_row(name: str, latency: Latency) -> Row:
    times = (
        latency.median_s,
        latency.percentile_s(90),
        latency.percentile_s(99),
        min(latency.first_s, default=None),
    )
    return [name, *map(_time_cell, times), float(len(latency.seconds))]


def _predicted(data: JobData) -> Iterator[Block]:
    yield Heading("Predicted against measured")
    if not data.predictions:
        yield note("No recorded trial was chosen by a cost model's prediction.")
        return
    names = numbered(data.operators)
    x, y = "predicted rank (0 is fastest)", "measured rank (0 is fastest)"
    rows = [
        {"of": of, x: round(item.predicted, 4), y: round(item.measured, 4)}
        for item in data.predictions
        for of in (ALL, names[item.operator])
    ]
    shown = [names[number] for number in sorted({item.operator for item in data.predictions})]
    yield note(
        "The rank of each trial in its batch, as the cost model predicted it and as it was measured; "
        "failures are last. A batch is chosen among the best of thousands, whose differences are small."
    )
    yield Choice("Show", [ALL, *shown], ["predicted"])
    yield Chart(
        "predicted", "Predicted and measured rank", scatter("Predicted and measured rank", rows, x, y, ALL)
    )
    yield Table(
        "Rank correlation of predicted and measured times (Spearman, mean over batches)",
        ["no.", "operator", "rank correlation"],
        [
            [float(number), item.operator.name, item.rank_correlation]
            for number, item in enumerate(data.operators, 1)
        ],
    )


def _failures(data: JobData) -> Iterator[Block]:
    yield Heading("Failures")
    rows: list[Row] = [
        [item.operator.name, reason.kind, float(reason.count), reason.text, str(reason.configuration)]
        for item in data.operators
        for reason in item.reasons
    ]
    if rows:
        yield Table("Trials that failed", ["operator", "kind", "count", "first message", "with"], rows)
    else:
        yield Text("No trial failed.")


def _time(data: JobData) -> Iterator[Block]:
    spent = data.spent
    parts = {
        "board measures": spent.device_s,
        "board is asked": spent.measure_s - spent.device_s,
        "compiler": spent.build_s,
        "search": spent.propose_s,
        "everything else": spent.wall_s - spent.measure_s - spent.build_s - spent.propose_s,
    }
    yield Heading("Where the time of tuning went")
    rows = [{"of": name, "seconds": round(max(0.0, seconds), 3)} for name, seconds in parts.items()]
    yield Chart(
        "spent", "Seconds of all recorded trials, by kind", shares("Seconds by kind", rows, "seconds")
    )
    if stages := data.job.stages:
        rows = [{"of": stage.stage, "seconds": round(stage.seconds, 3)} for stage in stages]
        yield Chart(
            "stages", "Seconds of the stages of this job", shares("Seconds of stages", rows, "seconds")
        )


def _memory(data: JobData) -> Iterator[Block]:
    memory = data.job.memory
    yield Heading("Where memory goes")
    least = f"at least {mebibytes(memory.least_bytes)} by theory"
    yield Facts([
        ("intermediate results", f"{mebibytes(memory.arena_bytes)}, {least}"),
        ("weights and other constants", mebibytes(memory.constants_bytes)),
        ("steps of a run", str(memory.steps)),
    ])  # fmt: skip
    if not memory.places:
        yield note("No value lives from one step to another.")
        return
    rows = [
        {
            "of": number % 7, "x": place.first_step, "x2": place.last_step + 1,
            "y": place.offset_bytes / 2**20, "y2": (place.offset_bytes + place.size_bytes) / 2**20,
            "value": place.value, "size": mebibytes(place.size_bytes),
            "steps": f"{place.first_step} to {place.last_step}",
        }
        for number, place in enumerate(memory.places)
    ]  # fmt: skip
    title = "The plan: which value has which bytes of the arena, in which steps"
    yield Chart("memory", title, rectangles(title, rows, "step of the model", "MiB"))


def _climate(data: JobData) -> Iterator[Block]:
    yield Heading("Temperature and clock")
    if data.job.emulated:
        yield note("An emulated board has neither.")
        return
    warm = [{"seconds": s.seconds, "°C (measured)": s.celsius} for s in data.samples if s.celsius is not None]
    fast = [{"seconds": s.seconds, "MHz (measured)": s.clock_hz / 1e6} for s in data.samples if s.clock_hz]
    if warm:
        yield Chart("heat", "Temperature", line("Temperature while tuning", warm, "seconds", "°C (measured)"))
    if fast:
        yield Chart("clock", "Clock", line("Clock while tuning", fast, "seconds", "MHz (measured)"))
    missing = [name for name, rows in (("temperature", warm), ("clock", fast)) if not rows]
    if missing:
        yield note(f"The board does not expose its {' or its '.join(missing)}.")


def _provenance(job: JobFile) -> Iterator[Block]:
    yield Heading("Where this comes from")
    facts = [
        ("model", job.model_file),
        ("target", job.target_key),
        ("records", job.records),
        ("tool", f"tune-for-board {job.tool_version}"),
    ]
    if job.started_unix_s:
        facts += [("begun", moment(job.started_unix_s)), ("tuner, seed", f"{job.tuner}, {job.seed}")]
    if job.report is not None:
        facts.append(("bundle", f"{job.report.bundle} ({job.report.bundle_id})"))
    yield Facts(facts)
    if job.command:
        yield Text("The command that makes it again:")
        yield Code(shlex.join(job.command))
    yield Text("This page from the records:")
    yield Code(
        shlex.join(
            ["toolkit", "report", job.model_file, "--board", job.board, "--records", job.records, "--html"]
        )
    )


def numbered(operators: Sequence[OperatorData]) -> list[str]:
    """What to call operators where one is chosen: names may repeat, numbers do not."""
    return [f"{number}. {item.operator.name}" for number, item in enumerate(operators, 1)]


def _roof_share(job: JobFile, item: OperatorData) -> float | None:
    """Part of the roof that an operator reaches, as `toolkit inspect` says it."""
    if not item.after_s:
        return None
    least_s = item.operator.flops / (1e9 * job.peak_gflops)
    if job.bandwidth_gbs:
        least_s = max(least_s, item.operator.moved_bytes / (1e9 * job.bandwidth_gbs))
    return least_s / item.after_s


def _peak_word(job: JobFile) -> str:
    return "measured" if job.peak_measured else "estimated"


def _time_cell(seconds: float | None) -> Cell | None:
    return None if seconds is None else Cell(time_text(seconds), seconds)


def _share(part: float, whole: float) -> Cell | None:
    return Cell(f"{part / whole:.1%}", part / whole) if whole else None


def _times(ratio: float) -> Cell:
    return Cell(f"{ratio:.2f}x", ratio)


def _ms(seconds: float) -> float:
    return float(f"{seconds * MILLISECONDS:.6g}")


def moment(unix_s: float) -> str:
    """A time of day, for people."""
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(unix_s))
