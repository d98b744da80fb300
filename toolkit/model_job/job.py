"""The door: a model and a board in, a signed bundle and a report out.

    report = tune("squeezenet.onnx", load("rpi3b@192.168.1.7"), TuneOptions(trials=64))

Everything that is measured is in the records before the answer for the next candidate is taken: the same
call continues where an interrupted one stopped; a finished one only measures its finalists and the whole
model again.
`plan_tuning` says how long all that would take.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryFile

from msgspec.structs import replace

from boards.description import Board
from boards.target import Target
from device_runtime.protocol import MeasureFailure
from toolkit.bundle.build import BuiltModel
from toolkit.bundle.pack import BundleContents, GoldenData, pack, write
from toolkit.bundle.sign import key_file, open_key
from toolkit.bundle.verify import open_bundle
from toolkit.errors import CoverageError, OutputError, writing
from toolkit.model.distinct import distinct_operators
from toolkit.model_job import stages
from toolkit.model_job.context import JobContext, open_job, stage
from toolkit.model_job.job_file import JobLog, job_of
from toolkit.model_job.kernels import TunedOperator, report_operator, with_default_times
from toolkit.model_job.options import JobListener, Latency, OperatorReport, TuneOptions, TuneReport
from toolkit.model_job.precision import fastest_layers
from toolkit.model_job.settle import Settled, measure
from toolkit.model_job.tuning_plan import TuningPlan
from toolkit.tuning.progress import TuningResult
from toolkit.tuning.time_breakdown import TimeBreakdown
from toolkit.version import TOOL_VERSION


def tune(
    model: Path | str,
    board: Board,
    options: TuneOptions | None = None,
    on_event: JobListener = lambda _: None,
) -> TuneReport:
    """Tune every operator of `model` on `board` and write a signed bundle.

    With `options.seconds` the call takes that long. Raises ModelError, UnknownTarget, InputError (a
    budget that is too small), OutputError (the bundle or the records cannot be written), RecordsError,
    UnfitBoard, BoardUnreachable, BoardBusy, TimedOut, CoverageError, VerificationError (the whole model
    computes something wrong). Whatever is raised, KeyboardInterrupt included, what was measured is kept.
    """
    started_s = time.monotonic()
    options = options or TuneOptions()
    model = Path(model)
    target = board.target(options.target or None)
    output = Path(options.output or default_output(model, board))
    check_writable(output, model)
    open_key(key_file(options.config_dir))
    options, precision = replace(options, output=output), None
    if options.precision == "fastest":
        precision = fastest_layers(model, board, target, options, on_event)
        options = replace(options, floats=frozenset(precision.layers))
    with JobLog(options, on_event) as log:
        report = replace(_tuned(model, board, target, options, log), precision=precision)
        report = replace(report, wall_s=time.monotonic() - started_s, job=log.path)
        log.done(report)
    return report


def _tuned(model: Path, board: Board, target: Target, options: TuneOptions, log: JobLog) -> TuneReport:
    """The stages of `tune` in their order."""
    with open_job(model, board, target, options, log) as job:
        layers = {item.operator.key: item.groups for item in distinct_operators(job.graph)}
        tasks = [(item.task, layers[item.task.operator.key]) for item in job.tasks]
        log.begin(job_of(board, job.target, job.graph, tasks, model=model, records=job.records.path))
        baseline = stages.prepare(job)
        fallback = baseline.fallback
        timed = options.seconds is not None
        planned = timed or options.reuse
        plan, reuse = stages.make_plan(job, baseline) if planned else (None, None)
        stages.announce(job, plan)
        results, bridges = stages.tune_tasks(job, baseline, plan, reuse)
        confirm_s, compare_s = stages.after_tuning_s(job, results)
        until_s = plan.total_s - plan.finish_s if plan and timed else job.passed_s + confirm_s
        tuned = stages.confirm_tasks(job, baseline, results, until_s)
        _check_coverage(_operators(tuned, layers), options)
        built = stages.build(job, tuned)
        until_s = options.seconds if options.seconds is not None else job.passed_s + compare_s
        settled = measure(job, baseline.built, baseline.golden, tuned, built, until_s)
        operators = _operators(settled.tuned, layers)
        report = _report(job, [*results, *bridges], operators, settled, model.stem)
        report = replace(report, fallback=fallback.report if fallback else None, bridges=len(bridges))
    with stage("pack", log) as running:
        packed = settled.built if settled.faster else with_default_times(baseline.built, operators)
        models = (packed, fallback.built) if fallback else (packed,)
        identity = _packed(report, models, baseline.golden, options)
        running.summary = str(report.bundle)
    return replace(report, bundle_id=identity)


def plan_tuning(
    model: Path | str,
    board: Board,
    options: TuneOptions | None = None,
    on_event: JobListener = lambda _: None,
) -> TuningPlan:
    """What `tune` would do and how long it would take; nothing is tuned and no bundle written.

    The seconds per trial are the records' or, when they know none, those of a few trials that are run, and
    recorded, now. Raises what `tune` raises.
    """
    options = options or TuneOptions()
    target = board.target(options.target or None)
    with open_job(Path(model), board, target, options, on_event) as job:
        plan, _ = stages.make_plan(job, stages.prepare(job))
        return plan


def default_output(model: Path, board: Board) -> Path:
    """Where the bundle goes unless the user says otherwise."""
    return Path(f"{model.stem}-{board.name}.tfb")


def check_writable(output: Path, model: Path) -> None:
    """OutputError now rather than after an hour of tuning, and where the bundle would replace the model."""
    if output.exists() and model.exists() and output.samefile(model):
        raise OutputError(f"the bundle would replace the model {model}: name another file with -o")
    remedy = "expected a file name in an existing folder that you may write to: name one with -o"
    with writing("the bundle", output, remedy):
        if output.is_dir():
            raise IsADirectoryError(21, "it is a folder")
        with TemporaryFile(dir=output.absolute().parent):
            pass


def _report(
    job: JobContext,
    results: Sequence[TuningResult],
    operators: tuple[OperatorReport, ...],
    settled: Settled,
    name: str,
) -> TuneReport:
    """The report of a job, without the bundle's id and the job's total time."""
    measured = settled.measured
    default = measured.first
    accounts = sum((result.accounts for result in results), TimeBreakdown())
    return TuneReport(
        model=name,
        board=job.board.name,
        target=job.target.name,
        emulated=job.board.emulated,
        peak_gflops=job.target.peak_gflops,
        operators=operators,
        default_latency=default if isinstance(default, Latency) else None,
        default_failure=f"{default.kind}: {default.text}" if isinstance(default, MeasureFailure) else "",
        tuned_latency=measured.second,
        comparison=measured.comparison,
        packed="tuned" if settled.faster else "untuned",
        disturbed=measured.disturbed,
        trials=sum(result.trials for result in results),
        measured=sum(result.measured for result in results),
        tuning_s=accounts.wall_s,
        device_s=accounts.device_s,
        accounts=accounts,
        wall_s=0.0,
        records=job.records.path,
        bundle=Path(job.options.output or ""),
        bundle_id="",
        kind=job.target.kind,
        pocl=job.target.is_pocl,
    )


def _operators(
    tuned: Sequence[TunedOperator], layers: Mapping[str, tuple[str, ...]]
) -> tuple[OperatorReport, ...]:
    return tuple(
        report_operator(item.task, item.result, layers[item.task.operator.key], item.winner) for item in tuned
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
    report: TuneReport, models: tuple[BuiltModel, ...], golden: GoldenData, options: TuneOptions
) -> str:
    """Write the bundle, whose variants a board tries in the order of the models; its id."""
    contents = BundleContents(
        name=report.model,
        tool_version=TOOL_VERSION,
        boards=(report.board,),
        models=models,
        golden=golden,
        counter=round(time.time()) if options.counter is None else options.counter,
        notes={
            "seed": options.tuning.seed,
            "tuner": options.tuning.search.tuner,
            "emulated": report.emulated,
            "pocl": report.pocl,
            "default_seconds": report.default_latency.best_s if report.default_latency else None,
            "seconds": report.tuned_latency.best_s,
            "packed": report.packed,
        },
    )
    key = open_key(key_file(options.config_dir))
    write(pack(contents, key), report.bundle)
    return open_bundle(report.bundle, [key.public]).id
