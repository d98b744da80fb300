"""The CPU variant in a bundle beside a GPU's: what the board runs when the GPU's driver is missing.

It is not tuned by this job: its kernels are the best that the records know for the board's CPU, and default
schedules where they know none. It is checked and timed on the board like the others.
"""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from boards.description import Board
from boards.target import Target
from device_runtime.protocol import MeasureFailure
from toolkit.bundle.build import BuiltModel, build
from toolkit.bundle.pack import GoldenData
from toolkit.errors import VerificationError
from toolkit.model.distinct import DistinctOperator, distinct_operators
from toolkit.model.load import adapted
from toolkit.model_job.confirm import Winner
from toolkit.model_job.context import JobContext, stage
from toolkit.model_job.kernels import TunedOperator, plan_model
from toolkit.model_job.latency import LoadedModel, golden_rtol, measure_model
from toolkit.model_job.options import FallbackReport
from toolkit.tuning.on_board import builder_for, open_task
from toolkit.tuning.operator_search import recorded_statistics


class Fallback(msgspec.Struct, frozen=True):
    """The model compiled for the board's CPU."""

    built: BuiltModel
    report: FallbackReport


def fallback_target(board: Board, target: Target) -> Target | None:
    """The board's fastest CPU, beside a GPU; None beside a CPU, and where the board file has no CPU."""
    cpus = [other for other in board.targets if other.kind == "cpu"]
    if target.kind == "cpu" or not cpus:
        return None
    return max(cpus, key=lambda cpu: cpu.estimated_peak_gflops)


def build_fallback(job: JobContext, golden: GoldenData) -> Fallback | None:
    """The model for the board's CPU, checked there. Raises VerificationError, ToolkitError."""
    target = fallback_target(job.board, job.target)
    if target is None:
        return None
    with stage("fallback", job.on_event) as running:
        graph = adapted(job.model, target)  # as a job for the CPU had it, whose records are looked for
        chosen = [_from_records(job, item, target) for item in distinct_operators(graph)]
        with builder_for(target, job.options.workers, job.tuning) as builder:
            plan = plan_model(graph, chosen, builder, target)
        built = build(plan, target)
        tuned = sum(item.result.best is not None for item in chosen)
        expected_s = sum(item.task.weight * (item.winner.seconds or 0.0) for item in chosen)
        exact = replace(golden, rtol=golden_rtol(graph, target, golden))
        model = LoadedModel(built.code, built.variant, exact)
        latency = measure_model(model, job.session, expected_s=expected_s)
        if isinstance(latency, MeasureFailure):
            raise VerificationError(
                f"the model {plan.name!r} failed on board {job.board.name} on target {target.name}, which "
                f"its bundle needs beside {job.target.name}: {latency.kind}: {latency.text}; no bundle "
                f"was written, the records are kept; tune it with --target {target.name} first"
            )
        report = FallbackReport(target.name, tuned, len(chosen), latency)
        running.summary = f"{target.name}: {tuned} of {len(chosen)} operators tuned by the records"
    return Fallback(built, report)


def _from_records(job: JobContext, item: DistinctOperator, target: Target) -> TunedOperator:
    """The best that the records know of an operator on the CPU, or its default schedule."""
    task = open_task(item.name, item.operator, job.board, target, winograd=job.winograd, weight=item.count)
    result = recorded_statistics(task, job.records).result()
    best = result.best
    return TunedOperator(
        task,
        result,
        Winner(
            task.space.parse(best.configuration) if best else task.space.default(),
            best.cost_s if best else None,
            result.default.cost_s if result.default else None,
        ),
    )
