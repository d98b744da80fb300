"""The stages of a job in their order: prepare, plan, tune, confirm, build, measure."""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from device_runtime.protocol import MeasureFailure
from toolkit.bundle.build import BuiltModel
from toolkit.bundle.build import build as build_code
from toolkit.bundle.pack import GOLDEN_RTOL, GoldenData
from toolkit.errors import VerificationError
from toolkit.measure.live import short_repeats
from toolkit.model_job.confirm import FINALISTS, Winner, confirm, confirming, finalists
from toolkit.model_job.context import Bench, stage
from toolkit.model_job.fallback import Fallback, build_fallback
from toolkit.model_job.kernels import TunedTask, plan_model
from toolkit.model_job.latency import golden_data, joined, measure_model
from toolkit.model_job.options import DEFAULT_TRIALS, JobListener, Latency, TuningPlanned
from toolkit.model_job.reuse import ModelReuse, plan_model_reuse, tune_by_reuse
from toolkit.model_job.tuning_plan import (
    CONFIRM_SHARE,
    Costs,
    Demand,
    TuningPlan,
    plan_reuses,
    plan_seconds,
    plan_trials,
)
from toolkit.records.lines import SPENT
from toolkit.reuse.plan.reuse_plan import ReuseOptions
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.operator_search import known_books
from toolkit.tuning.progress import Books, Budget, Event, TrialDone, TuningResult
from toolkit.tuning.time_breakdown import Accounts

CALIBRATED = 3  # operators whose trials are timed before a plan is made, when the records know no times
CALIBRATION_TRIALS = 4  # of each
TUNED_KERNELS = 1.3  # compiling tuned kernels against compiling default ones
PACKED_BYTES_PER_S = 2e8
MODEL_ROUNDS = 4  # times that a model is measured, twice the untuned and twice the tuned one
CONFIRM_ROUNDS = 2
LATELY = 64  # trials


@dataclass(frozen=True, slots=True)
class Baseline:
    """The model with default schedules, compiled and on the board, and the seconds that each step took;
    `fallback` is the CPU's model beside a GPU's.

    The tuned model will need the same steps: their seconds are what is set aside for it.
    """

    built: BuiltModel
    golden: GoldenData
    kernels_s: float
    library_s: float
    put_s: float
    fallback: Fallback | None


def prepare(bench: Bench) -> Baseline:
    """The untuned model, ready to be measured, and the data that both models are checked with."""
    with stage("compile", bench.on_event) as running:
        untuned = [
            TunedTask(
                item.task, item.programs, books.result(), Winner(item.programs.space.default(), None, None)
            )
            for item, books in zip(bench.tasks, _books(bench), strict=True)
        ]
        times_s = [time.monotonic()]
        plan = plan_model(bench.graph, untuned, bench.builder, bench.target)
        times_s.append(time.monotonic())
        built = build_code(plan, bench.target)
        times_s.append(time.monotonic())
        bench.session.put(built.code)
        times_s.append(time.monotonic())
        running.summary = f"{len(plan.kernels)} kernels with default schedules"
    with stage("reference", bench.on_event) as running:
        golden = golden_data(bench.model, np.random.default_rng(bench.options.tuning.seed))
        golden = replace(golden, rtol=GOLDEN_RTOL[bench.target.storage])
        running.summary = f"{len(golden.inputs)} inputs, {len(golden.outputs)} outputs by numpy"
    kernels_s, library_s, put_s = np.diff(times_s).tolist()
    fallback = build_fallback(bench, golden)
    return Baseline(built, golden, kernels_s, library_s, put_s, fallback)


# ---------------------------------------------------------------------------------------------- the plan


def make_plan(bench: Bench, baseline: Baseline) -> TuningPlan:
    """What the job will do, from measured seconds per trial: the records', or those of a few trials now.

    Those trials are records like all others. Raises InputError when the budget is too small.
    """
    with stage("plan", bench.on_event) as running:
        measured = _calibrate(bench)
        demands = _demands(bench)
        costs = _costs(bench, baseline, _model_round_s(bench, baseline, demands))
        options = bench.options
        if options.reuse:
            found = plan_model_reuse(bench, reuse_options(bench))
            bridges = _bridge_demands(found, demands)
            plan = plan_reuses(demands, costs, _reuse_steps(found), options.seconds, bridges)
        elif options.seconds is not None:
            plan = plan_seconds(demands, costs, options.seconds)
        else:
            plan = plan_trials(demands, costs, each=options.trials, total=options.total)
        source = f"{measured} trials now" if measured else "the records"
        running.summary = f"by the times of {source}"
    return plan


def _reuse_steps(found: ModelReuse) -> dict[str, tuple[int, str]]:
    """Expected trials of every operator that is to be tuned, and whose program it begins with."""
    return {
        found.candidates[step.position].name: (round(step.trials), found.source_name(step))
        for step in found.plan.steps
    }


def _bridge_demands(found: ModelReuse, demands: Sequence[Demand]) -> list[Demand]:
    """The bridges that the plan tunes; a trial of one takes what others take."""
    usual_s = sum(demand.trial_s for demand in demands) / max(1, len(demands))
    chosen = (found.candidates[step.position] for step in found.plan.steps)
    return [Demand(item.name, 0, 0, 0, math.nan, usual_s) for item in chosen if item.bridge]


def reuse_options(bench: Bench) -> ReuseOptions:
    """How many trials an operator gets that reuses nothing: with a time for the whole job, as by default."""
    return ReuseOptions(bench.options.trials or DEFAULT_TRIALS, bridges=bench.options.bridges)


def _calibrate(bench: Bench) -> int:
    """A few trials of operators with much, middling and little work, unless the times of some are known."""
    if any(books.trial_s for books in _books(bench)):
        return 0
    by_work = sorted(bench.tasks, key=lambda item: item.task.flops)
    chosen = {len(by_work) * part // (2 * CALIBRATED) for part in range(1, 2 * CALIBRATED, 2)}
    jobs = [(by_work[position].job, by_work[position].runner) for position in sorted(chosen)]
    known = max(len(bench.records.for_key(job.key)) for job, _ in jobs)
    results = tune_all(jobs, bench.records, Budget(known + CALIBRATION_TRIALS), options=bench.tuning)
    return sum(result.measured for result in results)


def _demands(bench: Bench) -> list[Demand]:
    """What is known about the operators; one that was never timed takes what the others take."""
    books = _books(bench)
    timed_s = [item.trial_s for item in books if item.trial_s]
    usual_s = sum(timed_s) / max(1, len(timed_s))
    return [
        Demand(
            name=item.task.name,
            count=item.task.count,
            flops=item.task.flops,
            recorded=known.trials,
            run_s=(known.best.cost_s if known.best else None) or math.nan,
            trial_s=known.trial_s or usual_s,
        )
        for item, known in zip(bench.tasks, books, strict=True)
    ]


def _model_round_s(bench: Bench, baseline: Baseline, demands: Sequence[Demand]) -> float:
    """Seconds that measuring the whole model once takes, here the untuned one, even if it fails."""
    known_s = [demand.run_s for demand in demands if math.isfinite(demand.run_s)]
    expected_s = sum(demand.count for demand in demands) * sum(known_s) / max(1, len(known_s))
    started_s = time.monotonic()
    measure_model(baseline.built, baseline.golden, bench.session, expected_s=expected_s)
    return time.monotonic() - started_s


def _costs(bench: Bench, baseline: Baseline, round_s: float) -> Costs:
    """The seconds beside tuning: the tuned model takes what the untuned one took."""
    answers_s = [books.answer_s for books in _books(bench) if books.answer_s]
    answer_s = sum(answers_s) / max(1, len(answers_s))
    packed_s = len(baseline.built.code) / PACKED_BYTES_PER_S
    built_s = TUNED_KERNELS * baseline.kernels_s + baseline.library_s + baseline.put_s
    return Costs(
        prepared_s=bench.passed_s,
        confirm_s=_confirm_s(bench, baseline, answer_s),
        finish_s=built_s + (2 if bench.board.emulated else MODEL_ROUNDS) * round_s + packed_s,
    )


def _confirm_s(bench: Bench, baseline: Baseline, answer_s: float) -> float:
    """Seconds for the finalists of all operators, when the board answers a trial in `answer_s`."""
    timing = short_repeats(confirming(bench.board).timing, 0.0)
    timed_s = timing.repeat * (timing.min_repeat_ms * 1e-3 + timing.cooldown_s)
    kernel_s = baseline.kernels_s / max(1, len(baseline.built.plan.kernels))
    contenders = _finalist_count(bench) + 1
    return len(bench.tasks) * contenders * (kernel_s + CONFIRM_ROUNDS * (answer_s + timed_s))


def announce(bench: Bench, plan: TuningPlan | None) -> None:
    """Tell the listener what is about to be tuned."""
    options = bench.options
    counts = [len(bench.records.for_key(item.job.key)) for item in bench.tasks]
    trials, recorded = options.total, sum(counts)
    if trials is None and options.trials is not None:
        trials = options.trials * len(counts)
        recorded = sum(min(options.trials, count) for count in counts)
    bench.on_event(
        TuningPlanned(
            operators=tuple(item.job.name for item in bench.tasks),
            trials=recorded + plan.trials if plan and options.reuse else trials,
            seconds=plan.tuning_s if plan and options.seconds is not None else None,
            recorded=recorded,
            emulated=bench.board.emulated,
            plan=plan,
        )
    )


# ------------------------------------------------------------------------------------------------ tuning


class _Answers:
    """A listener that knows how long the board takes to answer, of late; it passes the events on."""

    def __init__(self, listener: JobListener) -> None:
        self._listener = listener
        self._answers_s: deque[float] = deque(maxlen=LATELY)

    @property
    def mean_s(self) -> float:
        """Seconds of one trial; 0 before the first."""
        return sum(self._answers_s) / max(1, len(self._answers_s))

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrialDone):
            self._answers_s.append(Accounts.of(event.record.facts.get(SPENT, {})).measure_s)
        self._listener(event)


def tune_tasks(
    bench: Bench, baseline: Baseline, plan: TuningPlan | None
) -> tuple[list[TuningResult], list[TuningResult]]:
    """Algorithm 1 for all tasks together: what came of them, and of bridges that were tuned beside them.

    With a plan, tuning ends when what follows needs the rest of the budget, by the board's pace of late.
    """
    options, begun_s, answers = bench.options, bench.passed_s, _Answers(bench.on_event)

    def allowed_s() -> float:
        assert plan is not None
        confirm_s = _confirm_s(bench, baseline, answers.mean_s) if answers.mean_s else plan.confirm_s
        confirm_s = min(confirm_s, CONFIRM_SHARE * plan.total_s)
        return plan.total_s - plan.finish_s - confirm_s - begun_s

    with stage("tune", bench.on_event) as running:
        seconds = allowed_s if options.seconds is not None else None
        bridges: list[TuningResult] = []
        if options.reuse:
            results, bridges = tune_by_reuse(bench, reuse_options(bench), seconds, answers)
        else:
            results = tune_all(
                [(item.job, item.runner) for item in bench.tasks],
                bench.records,
                Budget(options.trials, seconds, options.total),
                options=bench.tuning,
                on_event=answers,
            )
        both = [*results, *bridges]
        measured = sum(result.measured for result in both)
        failures = sum(result.failures for result in both)
        trials = sum(result.trials for result in both)
        running.summary = f"{measured} trials now, {trials} in all, {failures} of them failed"
    return results, bridges


def confirm_tasks(bench: Bench, results: Sequence[TuningResult], deadline_s: float | None) -> list[TunedTask]:
    """The winner of each task from its finalists, those that the model spends most time in first.

    After `deadline_s` on the job's clock the records decide.
    """
    timing = confirming(bench.board)
    count = _finalist_count(bench)
    winners: dict[int, Winner] = {}
    confirmed = 0
    with stage("confirm", bench.on_event) as running:
        for position in sorted(range(len(results)), key=lambda item: -_spent_in(bench, results, item)):
            item = bench.tasks[position]
            contenders = finalists(item.job.space, bench.records, item.job.key, count)
            late = deadline_s is not None and bench.passed_s >= deadline_s
            confirmed += not late
            winners[position] = confirm(
                item.job.space,
                contenders,
                functools.partial(item.runner.afresh, timing),
                rounds=0 if late else CONFIRM_ROUNDS,
            )
        tuned = [
            TunedTask(item.task, item.programs, result, winners[position])
            for position, (item, result) in enumerate(zip(bench.tasks, results, strict=True))
        ]
        changed = sum(item.winner.configuration != item.programs.space.default() for item in tuned)
        running.summary = f"{changed} of {len(tuned)} operators end with another schedule than the default"
        if confirmed < len(tuned):
            running.summary += f"; time for {confirmed} of them"
    return tuned


def _spent_in(bench: Bench, results: Sequence[TuningResult], position: int) -> float:
    """Seconds of a model's run that an operator takes; those without a time come last."""
    best = results[position].best
    return bench.tasks[position].task.count * ((best.cost_s if best else None) or 0.0)


def _finalist_count(bench: Bench) -> int:
    return 1 if bench.board.emulated else FINALISTS


# ---------------------------------------------------------------------------------------------- the model


def build(bench: Bench, tuned: Sequence[TunedTask]) -> BuiltModel:
    """The tuned model, compiled and on the board."""
    with stage("build", bench.on_event) as running:
        plan = plan_model(bench.graph, tuned, bench.builder, bench.target)
        built = build_code(plan, bench.target)
        bench.session.put(built.code)
        running.summary = f"{len(plan.kernels)} kernels, {plan.workspace_bytes / 2**20:.1f} MiB of workspace"
    return built


def measure(
    bench: Bench,
    baseline: Baseline,
    built: BuiltModel,
    expected_s: float,
    unchecked: Sequence[str] = (),
) -> tuple[Latency | MeasureFailure, Latency]:
    """Seconds of the default and of the tuned model, measured in turn; or why there are none of the default.

    `unchecked`: the operators whose kernel never ran by itself. Raises VerificationError when the tuned model
    fails.
    """
    with stage("measure", bench.on_event) as running:
        models = (baseline.built, built)
        found: list[list[Latency]] = [[], []]
        failure: MeasureFailure | None = None
        for number in (0, 1) if bench.board.emulated else (0, 1, 1, 0):
            late = bench.options.seconds is not None and bench.passed_s >= bench.options.seconds
            if found[number] and late:
                break
            if number == 0 and failure is not None:
                continue
            latency = measure_model(models[number], baseline.golden, bench.session, expected_s=expected_s)
            if isinstance(latency, Latency):
                found[number].append(latency)
            elif number == 0:
                failure = latency
            else:
                raise _wrong_model(bench, built.plan.name, latency, unchecked)
        tuned = joined(found[1])
        running.summary = f"relative error {tuned.max_relative_error:.1e}"
        if failure is not None:
            running.summary += f"; the untuned model failed: {failure.kind}: {failure.text}"
    return failure or joined(found[0]), tuned


def _wrong_model(
    bench: Bench, name: str, failure: MeasureFailure, unchecked: Sequence[str]
) -> VerificationError:
    """What to raise for a tuned model that fails, with what is known of its kernels."""
    known = "although each of its kernels was checked by itself"
    if unchecked:
        known = f"which has kernels of which no trial succeeded, those of {', '.join(unchecked)}"
    return VerificationError(
        f"the tuned model {name!r}, {known}, failed as a whole on board {bench.board.name}: {failure.kind}: "
        f"{failure.text}; no bundle was written, the records are kept"
    )


def _books(bench: Bench) -> list[Books]:
    return [known_books(item.job, bench.records) for item in bench.tasks]
