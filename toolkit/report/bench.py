"""What `toolkit bench` says: a table, comma-separated values, data, and its progress on a terminal."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator
from typing import Final, TextIO

from toolkit.measure.comparison import CONFIDENCE
from toolkit.model_job.bench import BenchReport
from toolkit.model_job.options import Latency
from toolkit.report.columns import named, table
from toolkit.report.flash_display import LineDisplay
from toolkit.report.tables import EMULATED, NO_GPU, mebibytes, time_text

PERCENTILES: Final = (50, 90, 99)
SLOWEST: Final = 10  # layers in the text; the data have all


def bench_text(report: BenchReport, width: int = 0) -> str:
    """One line for each number of threads and for the other model, then the verdict and memory."""
    mark = f" ({EMULATED})" if report.emulated else ""
    headers = [
        "model",
        "threads",
        "runs",
        *(f"{name}{mark}" for name in ("median", "p90", "p99", "first run")),
    ]
    rows = [
        [name, str(threads), str(len(latency.seconds)),
         *(time_text(latency.percentile_s(percent)) for percent in PERCENTILES),
         time_text(min(latency.first_s, default=None))]
        for name, threads, latency in _timed(report)
    ]  # fmt: skip
    memory = report.memory
    facts = [
        ("bundle", f"{report.bundle} ({report.bundle_id}){', installed' if report.installed else ''}"),
        ("target", f"{report.target} of board {report.board}"),
        ("times", "emulated: they say nothing about a chip" if report.emulated else "measured"),
        ("memory", f"{mebibytes(memory.code)} code and weights, {mebibytes(memory.workspace)} workspace"),
        *([("note", NO_GPU)] if report.pocl else []),
        *_verdict(report),
        *(("disturbed by", text) for text in report.disturbed),
    ]
    layers = [_layers_text(report, mark, width), ""] if report.layers else []
    return "\n".join([table(headers, rows, width=width, optional=(6, 2)), "", *layers, *named(facts)])


def _layers_text(report: BenchReport, mark: str, width: int) -> str:
    """The slowest layers with their share of the whole."""
    whole_s = sum(item.seconds for item in report.layers)
    slowest = sorted(report.layers, key=lambda item: -item.seconds)[:SLOWEST]
    rows = [
        [
            item.layer or "copy",
            item.operator or "copy",
            time_text(item.seconds),
            f"{item.seconds / whole_s:.1%}",
        ]
        for item in slowest
    ]
    return table(["slowest layers", "operator", f"median{mark}", "share"], rows, left=2, width=width)


def bench_csv(report: BenchReport) -> str:
    """The lines of the table, in seconds."""
    out = io.StringIO()
    lines = csv.writer(out, lineterminator="\n")
    lines.writerow(["model", "threads", "runs", "median_s", "p90_s", "p99_s", "first_s", "times"])
    for name, threads, latency in _timed(report):
        figures = [latency.percentile_s(percent) for percent in PERCENTILES]
        first_s = min(latency.first_s, default=None)
        times = EMULATED if report.emulated else "measured"
        lines.writerow([name, threads, len(latency.seconds), *figures, first_s, times])
    return out.getvalue()


def bench_content(report: BenchReport) -> dict[str, object]:
    """The same as data, for `documents.document`, with the seconds of every run."""
    return {
        "bundle": report.bundle,
        "installed": report.installed,
        "bundle_id": report.bundle_id,
        "board": report.board,
        "target": report.target,
        "emulated": report.emulated,
        "memory_bytes": report.memory,
        "models": [
            {
                "model": name,
                "threads": threads,
                **{f"p{percent}_s": latency.percentile_s(percent) for percent in PERCENTILES},
                "first_s": latency.first_s,
                "max_relative_error": latency.max_relative_error,
                "seconds": latency.seconds,
            }
            for name, threads, latency in _timed(report)
        ],
        "layers": report.layers,
        "against": report.against or None,
        "comparison": report.comparison,
        "disturbed": report.disturbed,
    }


def bench_trace(report: BenchReport) -> str:
    """One run, layer by layer, in the trace event format that Perfetto and Chrome's tracing read.

    Each layer takes its median time; the layers follow each other without a gap.
    """
    times = EMULATED if report.emulated else "measured"
    names = {"process_name": f"{report.model} on {report.board} ({times})", "thread_name": report.target}
    events: list[dict[str, object]] = [
        {"name": what, "ph": "M", "pid": 1, "tid": 1, "args": {"name": name}} for what, name in names.items()
    ]
    begun_s = 0.0
    for item in report.layers:
        events.append({
            "name": item.layer, "cat": "layer", "ph": "X", "pid": 1, "tid": 1,
            "ts": 1e6 * begun_s, "dur": 1e6 * item.seconds, "args": {"operator": item.operator},
        })  # fmt: skip
        begun_s += item.seconds
    other = {"bundle_id": report.bundle_id, "times": times}
    return json.dumps({"traceEvents": events, "displayTimeUnit": "ms", "otherData": other}, indent=1)


class BenchDisplay(LineDisplay):
    """A listener for `bench` and `quantize`: how much of it is done."""

    def __init__(
        self, stream: TextIO | None = None, doing: str = "measuring", unit: str = "blocks of runs"
    ) -> None:
        super().__init__(stream)
        self._doing, self._unit = doing, unit

    def __call__(self, done: int, total: int) -> None:
        if self._drawn:
            share = 20 * done // max(1, total)
            bar = "#" * share + "." * (20 - share)
            self._write(f"\r\033[K{self._doing} [{bar}] {done}/{total}" + ("\n" if done == total else ""))
        elif done in (0, total):
            self._write(f"{self._doing} {total} {self._unit} ... " if not done else "done\n")


def _timed(report: BenchReport) -> Iterator[tuple[str, int, Latency]]:
    for item in report.timed:
        yield report.model, item.threads, item.latency
    if report.other is not None:
        yield report.against, report.timed[0].threads, report.other


def _verdict(report: BenchReport) -> list[tuple[str, str]]:
    found = report.comparison
    if found is None:
        return []
    interval = (
        f"{CONFIDENCE:.0%} interval {found.low:.3f} to {found.high:.3f}" if found.low else "no interval"
    )
    text = (
        f"{found.verdict}: {found.ratio:.3f}x as fast as {report.against}, {interval}, of {found.pairs} pairs"
    )
    return [("verdict", text)]
