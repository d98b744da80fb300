"""The CPU variant in a bundle beside a GPU's: what the board runs when the GPU's driver is missing.

It is not tuned by this job: its kernels are the best that the records know for the board's CPU, and default
schedules where they know none. It is checked and timed on the board like the others.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from boards.description import Board
from boards.target import Target
from device_runtime.protocol import MeasureFailure
from toolkit.bundle.build import BuiltModel, build
from toolkit.bundle.pack import GOLDEN_RTOL, GoldenData
from toolkit.errors import VerificationError
from toolkit.measure.builder import Builder
from toolkit.model.tasks import TuningTask, tasks
from toolkit.model_job.confirm import Winner
from toolkit.model_job.context import Bench, stage
from toolkit.model_job.kernels import TunedTask, plan_model
from toolkit.model_job.latency import measure_model
from toolkit.model_job.options import FallbackReport
from toolkit.tuning.on_board import GIVE_WAY, open_job, shares_cores
from toolkit.tuning.operator_search import known_books


@dataclass(frozen=True, slots=True)
class Fallback:
    """The model compiled for the board's CPU."""

    built: BuiltModel
    report: FallbackReport


def fallback_target(board: Board, target: Target) -> Target | None:
    """The board's fastest CPU, beside a GPU; None beside a CPU, and where the board file has no CPU."""
    cpus = [other for other in board.targets if other.kind == "cpu"]
    if target.kind == "cpu" or not cpus:
        return None
    return max(cpus, key=lambda cpu: cpu.estimated_peak_gflops)


def build_fallback(bench: Bench, golden: GoldenData) -> Fallback | None:
    """The model for the board's CPU, checked there. Raises VerificationError, ToolkitError."""
    target = fallback_target(bench.board, bench.target)
    if target is None:
        return None
    with stage("fallback", bench.on_event) as running:
        chosen = [_from_records(bench, task, target) for task in tasks(bench.model)]
        nice = 0 if shares_cores(bench.board) else GIVE_WAY
        with Builder(target, workers=bench.options.workers, nice=nice) as builder:
            plan = plan_model(bench.model, chosen, builder, target)
        built = build(plan, target)
        tuned = sum(item.result.best is not None for item in chosen)
        expected_s = sum(item.task.count * (item.winner.seconds or 0.0) for item in chosen)
        exact = replace(golden, rtol=GOLDEN_RTOL[target.storage])
        latency = measure_model(built, exact, bench.session, expected_s=expected_s)
        if isinstance(latency, MeasureFailure):
            raise VerificationError(
                f"the model {plan.name!r} failed on board {bench.board.name} on target {target.name}, which "
                f"its bundle needs beside {bench.target.name}: {latency.kind}: {latency.text}; no bundle "
                f"was written, the records are kept; tune it with --target {target.name} first"
            )
        report = FallbackReport(target.name, tuned, len(chosen), latency)
        running.summary = f"{target.name}: {tuned} of {len(chosen)} operators tuned by the records"
    return Fallback(built, report)


def _from_records(bench: Bench, task: TuningTask, target: Target) -> TunedTask:
    """The best that the records know of a task on the CPU, or its default schedule."""
    options = bench.options
    job, programs = open_job(task.name, task.operator, bench.board, target, winograd=options.winograd)
    result = known_books(job, bench.records).result()
    space = programs.space
    best = space.parse(result.best.configuration) if result.best else space.default()
    winner = Winner(
        best,
        result.best.cost_s if result.best else None,
        result.default.cost_s if result.default else None,
    )
    return TunedTask(task, programs, result, winner)
