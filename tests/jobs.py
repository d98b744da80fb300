"""A job in a file and its records in a store, with texts that attack whoever shows them."""

from __future__ import annotations

from pathlib import Path

import msgspec

from toolkit.measure.comparison import Comparison
from toolkit.model.memory import Placement
from toolkit.model_job.job_file import JobFile, JobMemory, JobOperator
from toolkit.model_job.options import Latency, OperatorReport, StageDone, TuneReport
from toolkit.records import Records, TuningRecord
from toolkit.tuning.time_breakdown import TimeBreakdown

HOSTILE = "</script><script>window.hacked=1</script><img src=x onerror=window.hacked=1>\"'&{{datum}}"
UNTUNED, TUNED = {"tile": [1]}, {"tile": [8]}
SPENT = TimeBreakdown(1.0, 0.4, 0.5, 0.3, 0.1)


def operator(number: int, board: str, name: str = "conv 3x3 16x16 8->8", count: int = 1) -> JobOperator:
    """An operator of 4.6 million operations, with keys of its own."""
    return JobOperator(
        name=name, operator="conv ...", layers=(f"layer{number}",), count=count, flops=4_600_000,
        moved_bytes=100_000 * (number + 1), operator_key=f"o{number}", target_key=f"{board}:t", space_key="s",
        tool_version="1", untuned=UNTUNED,
    )  # fmt: skip


def record(of: JobOperator, trial: int, ms: float | None, *, score: float | None = None) -> TuningRecord:
    """A trial of an operator, a second after the one before; None: it failed. `score`: what was predicted."""
    facts: dict[str, object] = {"spent_s": SPENT.plain(), "temperature_c": 40.0 + trial, "clock_hz": 1e9}
    if score is not None:
        facts["predicted"] = {"score": score, "fitted_to": 1}
    return TuningRecord(
        operator_key=of.operator_key, target_key=of.target_key, space_key=of.space_key, tool_version="1",
        configuration=TUNED if trial else UNTUNED, seconds=() if ms is None else (ms / 1e3,),
        error_kind="" if ms is not None else "timeout", error_text="" if ms is not None else HOSTILE,
        facts=facts, timestamp_s=1000.0 + trial, seed=0, trial=trial,
    )  # fmt: skip


def job_in(folder: Path, *, name: str = "small", board: str = "host", emulated: bool = False) -> JobFile:
    """A running job of two operators, the second of which a model computes twice; nothing is recorded yet."""
    return JobFile(
        state="running", model=name, model_file=f"{name}.onnx", board=board, target="cpu", target_key="cpu/x",
        kind="cpu", emulated=emulated, pocl=False, peak_gflops=100.0, peak_measured=True, bandwidth_gbs=10.0,
        records=str(folder / "r.db"), operators=(operator(0, board), operator(1, board, HOSTILE, 2)),
        memory=JobMemory(
            arena_bytes=3 << 20, least_bytes=2 << 20, constants_bytes=1 << 20, steps=3,
            places=(Placement(HOSTILE, 0, 2 << 20, 0, 1), Placement("b", 2 << 20, 1 << 20, 1, 2)),
        ),
        command=("toolkit", "tune", HOSTILE), tuner="annealing", process=1, started_unix_s=1e9,
        stages=(StageDone("import", 0.5, "2 operators"),),
    )  # fmt: skip


TRIALS = [(4.0, None), (None, None), (2.0, -1.0), (3.0, -2.0), (1.0, 0.5), (2.5, -3.0)]
"""Milliseconds of the trials of either operator in order, and the scores that were predicted for some."""


def recorded(job: JobFile, trials: int = len(TRIALS)) -> JobFile:
    """The job with so many trials of each operator in its records."""
    with Records(job.records) as records:
        for of in job.operators:
            records.add(*(record(of, n, ms, score=s) for n, (ms, s) in enumerate(TRIALS[:trials])))
    return job


def finished(job: JobFile, folder: Path) -> JobFile:
    """The job with a report: the second operator got slower when its finalists were measured again."""
    operators = tuple(
        OperatorReport(
            item.name, item.operator, item.operator_key, item.count, item.flops, 4e-3, after_s, 6, 1, True
        )
        for item, after_s in zip(job.operators, (1e-3, 1.5e-3), strict=True)
    )
    report = TuneReport(
        model=job.model, board=job.board, target="cpu", emulated=job.emulated, peak_gflops=100.0,
        operators=operators, default_latency=Latency((0.013, 0.0125), 1e-6, (0.02,)),
        tuned_latency=Latency((0.0045, 0.004), 1e-6), trials=12, measured=12, tuning_s=12.0, device_s=5.0,
        accounts=SPENT, wall_s=15.0, records=Path(job.records), bundle=folder / "small.tfb", bundle_id="ab",
        comparison=Comparison(3.0, 2.9, 3.1, 12, "faster"), disturbed=("heat: 80 °C",),
    )  # fmt: skip
    return msgspec.structs.replace(job, state="done", report=report)
