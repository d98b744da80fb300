"""The door: a model and a board in, a signed bundle and a report out.

    report = tune("squeezenet.onnx", load("rpi3b@192.168.1.7"), TuneOptions(trials=64))

Everything that is measured is in the records before the next candidate runs: the same call continues where
an interrupted one stopped; a finished one only measures its finalists and the whole model again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile

import numpy as np

from boards.description import Board
from boards.target import Target
from cross.loopnest.program import Programs
from toolkit.accounts import Accounts
from toolkit.bundle.library import build as build_library
from toolkit.bundle.pack import BundleContents, GoldenData, pack, write
from toolkit.bundle.plan import ModelPlan
from toolkit.bundle.sign import key_file, open_key
from toolkit.bundle.verify import open_bundle
from toolkit.errors import CoverageError, InputError, OutputError
from toolkit.jobs import open_job, shares_cores
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.session import Session, open_session
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.tasks import TuningTask, tasks
from toolkit.model_job.confirm import FINALISTS, confirm, confirming, finalists
from toolkit.model_job.kernels import TunedTask, best_choice, default_choice, plan_model, report_operator
from toolkit.model_job.latency import golden_data, joined, measure_model
from toolkit.model_job.options import (
    JobListener,
    Latency,
    OperatorReport,
    StageDone,
    StageName,
    StageStarted,
    TuneOptions,
    TuneReport,
    TuningPlanned,
)
from toolkit.progress import Budget, TuningResult
from toolkit.records import Records
from toolkit.tuning import TuningJob, tune_all
from toolkit.version import TOOL_VERSION


def tune(
    model: Path | str,
    board: Board,
    options: TuneOptions | None = None,
    on_event: JobListener = lambda _: None,
) -> TuneReport:
    """Tune every operator of `model` on `board` and write a signed bundle.

    Raises ModelError, InputError (nothing to tune for), OutputError (the bundle or the records cannot be
    written), RecordsError, BoardUnreachable, BoardBusy, CoverageError, VerificationError (the whole model
    computes something wrong). Whatever is raised, KeyboardInterrupt included, what was measured is kept.
    """
    started_s = time.monotonic()
    options = options or TuneOptions()
    model = Path(model)
    target = cpu_target(board, options.target)
    output = Path(options.output or default_output(model, board))
    check_writable(output)
    open_key(key_file(options.config_dir))
    with _stage("import", on_event) as stage:
        graph = load_model(model, options.shapes)
        found = tasks(graph)
        stage.summary = f"{len(graph.groups)} operators, {len(found)} distinct"
    with Records(options.records) as records, Builder(target, workers=options.workers) as builder:
        with _stage("connect", on_event) as stage:
            session = open_session(board, cache_dir=options.cache_dir, wait_s=options.wait_s)
            stage.summary = f"{board.name}, {session.hello.machine}, Python {session.hello.python}"
        with session:
            bench = _Bench(board, target, session, builder, records, options, on_event)
            tuned = _confirmed(bench, _searched(bench, found))
            reports = tuple(report_operator(item.task, item.result, item.winner) for item in tuned)
            _check_coverage(reports, options)
            plans = _plans(bench, graph, tuned)
            golden = _golden(bench, graph)
            latencies = _latencies(
                bench, plans, golden, sum(item.count * (item.best_s or 0.0) for item in reports)
            )
    finished = _Finished(model.stem, board, target, tuned, latencies)
    report = _report(finished, reports, options, output)
    with _stage("pack", on_event) as stage:
        identity = _packed(report, plans[1], golden, target, options)
        stage.summary = str(output)
    return replace(report, bundle_id=identity, wall_s=time.monotonic() - started_s)


def default_output(model: Path, board: Board) -> Path:
    """Where the bundle goes unless the user says otherwise."""
    return Path(f"{model.stem}-{board.name}.tfb")


def check_writable(output: Path) -> None:
    """OutputError now rather than after an hour of tuning."""
    try:
        if output.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        with TemporaryFile(dir=output.absolute().parent):
            pass
    except OSError as error:
        raise OutputError(
            f"the bundle cannot be written to {output}: {error.strerror}; "
            "expected a file name in an existing folder that you may write to: name one with -o"
        ) from error


def cpu_target(board: Board, name: str) -> Target:
    """The target to tune for. Raises UnknownTarget, InputError when it is not a CPU."""
    cpus = [target for target in board.targets if target.kind == "cpu"]
    if name:
        target = board.target(name)
        if target.kind != "cpu":
            raise InputError(
                f"target {name!r} of board {board.name} is {target.kind}: models are tuned for CPU targets "
                f"so far; choose one with --target: {', '.join(cpu.name for cpu in cpus) or 'it has none'}"
            )
        return target
    if not cpus:
        kinds = ", ".join(sorted({target.kind for target in board.targets}))
        raise InputError(
            f"board {board.name} has only {kinds} targets: models are tuned for CPU targets so far; "
            "choose another board (toolkit boards list)"
        )
    return max(cpus, key=lambda target: target.estimated_peak_gflops)


# ------------------------------------------------------------------------------------------------ stages


@dataclass(frozen=True, slots=True)
class _Bench:
    """Everything that the stages work with."""

    board: Board
    target: Target
    session: Session
    builder: Builder
    records: Records
    options: TuneOptions
    on_event: JobListener


@dataclass(frozen=True, slots=True)
class _Searched:
    """A task, and what the search found."""

    task: TuningTask
    job: TuningJob
    programs: Programs
    result: TuningResult


@dataclass(frozen=True, slots=True)
class _Finished:
    """Everything that was found out."""

    model: str
    board: Board
    target: Target
    tuned: Sequence[TunedTask]
    latencies: tuple[Latency, Latency]


@dataclass(slots=True)
class _Stage:
    summary: str = ""


@contextmanager
def _stage(name: StageName, on_event: JobListener) -> Iterator[_Stage]:
    started_s = time.monotonic()
    on_event(StageStarted(name))
    stage = _Stage()
    yield stage
    on_event(StageDone(name, time.monotonic() - started_s, stage.summary))


def _searched(bench: _Bench, found: Sequence[TuningTask]) -> list[_Searched]:
    """Algorithm 1 for all tasks together."""
    with _stage("tune", bench.on_event) as stage:
        winograd, search = bench.options.winograd, bench.options.tuning.search
        opened = [
            open_job(
                task.name,
                task.operator,
                bench.board,
                bench.target,
                winograd=winograd,
                weight=task.count,
                search=search,
            )
            for task in found
        ]
        bench.on_event(_planned(bench, [job for job, _ in opened]))
        timing = RunnerOptions.of(bench.board.measure)
        tuning = bench.options.tuning
        results = tune_all(
            [(job, _searching(bench, job, programs, timing)) for job, programs in opened],
            bench.records,
            Budget(bench.options.trials, bench.options.seconds),
            options=replace(tuning, overlap=tuning.overlap or not shares_cores(bench.board)),
            on_event=bench.on_event,
        )
        measured = sum(result.measured for result in results)
        failures = sum(result.failures for result in results)
        trials = sum(result.trials for result in results)
        stage.summary = f"{measured} trials now, {trials} in all, {failures} of them failed"
    return [
        _Searched(task, job, programs, result)
        for task, (job, programs), result in zip(found, opened, results, strict=True)
    ]


def _searching(bench: _Bench, job: TuningJob, programs: Programs, timing: RunnerOptions) -> LiveRunner:
    """A runner that knows what earlier runs measured."""
    recorded = [record.measurement for record in bench.records.for_key(job.key)]
    seed = bench.options.tuning.seed
    return LiveRunner(programs, bench.builder, bench.session, timing, seed=seed, recorded=recorded)


def _runner(bench: _Bench, programs: Programs, timing: RunnerOptions) -> LiveRunner:
    return LiveRunner(programs, bench.builder, bench.session, timing, seed=bench.options.tuning.seed)


def _confirmed(bench: _Bench, searched: Sequence[_Searched]) -> list[TunedTask]:
    """The winner of each task, from its finalists."""
    timing = confirming(bench.board)
    results = []
    with _stage("confirm", bench.on_event) as stage:
        for item in searched:
            space = item.programs.space
            count = 1 if bench.board.emulated else FINALISTS
            contenders = finalists(space, bench.records, item.job.key, count)
            winner = confirm(space, contenders, functools.partial(_runner, bench, item.programs, timing))
            results.append(TunedTask(item.task, item.programs, item.result, winner))
        changed = sum(item.winner.configuration != default_choice(item) for item in results)
        stage.summary = f"{changed} of {len(results)} operators end with another schedule than the default"
    return results


def _planned(bench: _Bench, jobs: Sequence[TuningJob]) -> TuningPlanned:
    limit = bench.options.trials
    counts = [len(bench.records.for_key(job.key)) for job in jobs]
    return TuningPlanned(
        operators=tuple(job.name for job in jobs),
        trials=None if limit is None else limit * len(jobs),
        seconds=bench.options.seconds,
        recorded=sum(counts) if limit is None else sum(min(limit, count) for count in counts),
        emulated=bench.board.emulated,
    )


def _plans(bench: _Bench, graph: Graph, tuned: Sequence[TunedTask]) -> tuple[ModelPlan, ModelPlan]:
    """The model with default schedules, and the tuned one."""
    with _stage("build", bench.on_event) as stage:
        default = plan_model(graph, tuned, default_choice, bench.builder, bench.target)
        best = plan_model(graph, tuned, best_choice, bench.builder, bench.target)
        stage.summary = f"{len(best.kernels)} kernels, {best.workspace_bytes / 2**20:.1f} MiB of workspace"
    return default, best


def _golden(bench: _Bench, graph: Graph) -> GoldenData:
    with _stage("reference", bench.on_event) as stage:
        golden = golden_data(graph, np.random.default_rng(bench.options.tuning.seed))
        stage.summary = f"{len(golden.inputs)} inputs, {len(golden.outputs)} outputs by numpy"
    return golden


def _latencies(
    bench: _Bench, plans: tuple[ModelPlan, ModelPlan], golden: GoldenData, expected_s: float
) -> tuple[Latency, Latency]:
    """Of the default and of the tuned model, measured in turn."""
    with _stage("measure", bench.on_event) as stage:
        libraries = [build_library(plan, bench.target) for plan in plans]
        found: list[list[Latency]] = [[], []]
        for number in (0, 1) if bench.board.emulated else (0, 1, 1, 0):
            found[number].append(
                measure_model(libraries[number], plans[number], golden, bench.session, expected_s=expected_s)
            )
        default, tuned = (joined(several) for several in found)
        stage.summary = f"relative error {tuned.max_relative_error:.1e}"
    return default, tuned


def _report(
    found: _Finished, reports: tuple[OperatorReport, ...], options: TuneOptions, output: Path
) -> TuneReport:
    """Everything but what the bundle's bytes decide."""
    results = [item.result for item in found.tuned]
    return TuneReport(
        model=found.model,
        board=found.board.name,
        target=found.target.name,
        emulated=found.board.emulated,
        peak_gflops=found.target.peak_gflops,
        operators=reports,
        default_latency=found.latencies[0],
        tuned_latency=found.latencies[1],
        trials=sum(result.trials for result in results),
        measured=sum(result.measured for result in results),
        tuning_s=sum(result.wall_s for result in results),
        device_s=sum(result.device_s for result in results),
        accounts=sum((result.accounts for result in results), Accounts()),
        wall_s=0.0,
        records=Path(options.records),
        bundle=output,
        bundle_id="",
    )


def _check_coverage(reports: Sequence[OperatorReport], options: TuneOptions) -> None:
    missing = [report.name for report in reports if not report.tuned]
    share = 1.0 - len(missing) / max(1, len(reports))
    if share < options.coverage:
        raise CoverageError(
            f"{share:.0%} of the operators have a measured kernel, {options.coverage:.0%} were requested; "
            f"none for {', '.join(missing)}; measure more with --trials or --budget, or ask for less "
            "with --coverage; the records are kept"
        )


def _packed(
    report: TuneReport, plan: ModelPlan, golden: GoldenData, target: Target, options: TuneOptions
) -> str:
    """Write the bundle; its id."""
    contents = BundleContents(
        name=report.model,
        tool_version=TOOL_VERSION,
        boards=(report.board,),
        plans=((target, plan),),
        golden=golden,
        notes={
            "seed": options.tuning.seed,
            "tuner": options.tuning.search.tuner,
            "emulated": report.emulated,
            "default_seconds": report.default_latency.best_s,
            "seconds": report.tuned_latency.best_s,
        },
    )
    key = open_key(key_file(options.config_dir))
    write(pack(contents, key), report.bundle)
    return open_bundle(report.bundle, [key.public]).id
