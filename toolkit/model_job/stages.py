"""The stages of a job in their order: prepare, plan, tune, confirm, build, measure."""

from __future__ import annotations

import functools
import math
import time
from collections import deque
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from toolkit.bundle.build import BuiltModel
from toolkit.bundle.build import build as build_code
from toolkit.bundle.pack import GoldenData
from toolkit.measure.live import short_repeats
from toolkit.model_job.confirm import FINALISTS, Winner, confirm, confirming, finalists
from toolkit.model_job.context import JobContext, stage
from toolkit.model_job.fallback import Fallback, build_fallback
from toolkit.model_job.in_network import ROUNDS, build_network, chooses_in_network, chosen_in_network
from toolkit.model_job.kernels import TunedOperator, plan_model
from toolkit.model_job.latency import (
    LoadedModel,
    golden_data,
    golden_rtol,
    measure_model,
)
from toolkit.model_job.options import DEFAULT_TRIALS, JobListener, TuningPlanned
from toolkit.model_job.reuse import ModelReuse, plan_model_reuse, tune_by_reuse
from toolkit.model_job.settle import changed, pairs_of
from toolkit.model_job.tuning_plan import (
    COMPARE_SHARE,
    CONFIRM_SHARE,
    Costs,
    Demand,
    TuningPlan,
    plan_reuses,
    plan_seconds,
    plan_trials,
)
from toolkit.reuse.plan.reuse_plan import ReuseOptions
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.operator_search import recorded_statistics
from toolkit.tuning.progress import Budget, Event, OperatorStatistics, TrialDone, TuningResult
from toolkit.tuning.time_breakdown import trial_time

CALIBRATED = 3  # operators whose trials are timed before a plan is made, when the records know no times
CALIBRATION_TRIALS = 4  # of each
TUNED_KERNELS = 1.3
"""How much longer tuned kernels take to compile than untuned ones, which are timed: an estimate for the
plan of a budget. Too low, a job with a budget ends late; too high, it stops tuning early."""
PACKED_BYTES_PER_S = 2e8  # to hash, sign and write a bundle: an estimate for the plan of a budget
CONFIRM_ROUNDS = 2
RECENT_TRIALS = 64  # whose mean says how long the board takes to answer now


class Baseline(msgspec.Struct, frozen=True):
    """The model with default schedules, compiled and on the board; `fallback`: the CPU model beside a GPU's.

    `kernels_s`, `library_s` and `put_s` are the seconds that compiling, linking and uploading took: as many
    are set aside for the tuned model.
    """

    built: BuiltModel
    golden: GoldenData
    kernels_s: float
    library_s: float
    put_s: float
    fallback: Fallback | None

    @property
    def loaded(self) -> LoadedModel:
        return LoadedModel(self.built.code, self.built.variant, self.golden)


def prepare(job: JobContext) -> Baseline:
    """The untuned model, ready to be measured, and the data that both models are checked with."""
    with stage("compile", job.on_event) as running:
        untuned = [
            TunedOperator(item.task, statistics.result(), Winner(item.task.space.default(), None, None))
            for item, statistics in zip(job.tasks, _statistics(job), strict=True)
        ]
        times_s = [time.monotonic()]
        plan = plan_model(job.graph, untuned, job.builder, job.target)
        times_s.append(time.monotonic())
        host = next((target for target in job.board.targets if target.kind == "cpu"), None)
        built = build_code(plan, job.target, host)
        times_s.append(time.monotonic())
        job.session.put(built.code)
        times_s.append(time.monotonic())
        running.summary = f"{len(plan.kernels)} kernels with default schedules"
    with stage("reference", job.on_event) as running:
        golden = golden_data(job.model, np.random.default_rng(job.options.tuning.seed))
        golden = replace(golden, rtol=golden_rtol(job.model, job.target, golden))
        running.summary = f"{len(golden.inputs)} inputs, {len(golden.outputs)} outputs by numpy"
    kernels_s, library_s, put_s = np.diff(times_s).tolist()
    fallback = build_fallback(job, golden)
    return Baseline(built, golden, kernels_s, library_s, put_s, fallback)


# ---------------------------------------------------------------------------------------------- the plan


def make_plan(job: JobContext, baseline: Baseline) -> tuple[TuningPlan, ModelReuse | None]:
    """What the job will do, and with reuse the plan of it that `tune_tasks` carries out.

    Seconds per trial come from the records; where there are none, a few trials are run now and recorded.
    Raises InputError when the budget is too small.
    """
    with stage("plan", job.on_event) as running:
        measured = _calibrate(job)
        demands = _demands(job)
        costs = _costs(job, baseline, _model_round_s(job, baseline, demands))
        options, reuse = job.options, None
        if options.reuse:
            searched = options.trials or DEFAULT_TRIALS  # of an operator that reuses nothing
            reuse = plan_model_reuse(job, ReuseOptions(searched, bridges=options.bridges))
            usual_s = sum(demand.trial_s for demand in demands) / max(1, len(demands))
            bridges = [Demand(name, 0, 0, 0, math.nan, usual_s) for name in reuse.bridges]
            plan = plan_reuses(demands, costs, reuse.named_steps, options.seconds, bridges)
        elif options.seconds is not None:
            plan = plan_seconds(demands, costs, options.seconds)
        else:
            plan = plan_trials(demands, costs, each=options.trials, total=options.total)
        source = f"{measured} trials now" if measured else "the records"
        running.summary = f"by the times of {source}"
    return plan, reuse


def _calibrate(job: JobContext) -> int:
    """Run a few trials of operators with much, medium and little work, unless some trial times are recorded.

    Returns the number of trials that were run.
    """
    if any(statistics.trial_s for statistics in _statistics(job)):
        return 0
    by_work = sorted(job.tasks, key=lambda item: item.task.flops)
    chosen = {len(by_work) * part // (2 * CALIBRATED) for part in range(1, 2 * CALIBRATED, 2)}
    tasks = [by_work[position] for position in sorted(chosen)]
    known = max(len(job.records.for_key(item.task.key)) for item in tasks)
    results = tune_all(tasks, job.records, Budget(known + CALIBRATION_TRIALS), options=job.tuning)
    return sum(result.measured for result in results)


def _demands(job: JobContext) -> list[Demand]:
    """What is known about the operators; an unknown time of a trial is the mean of the others'."""
    statistics = _statistics(job)
    timed_s = [item.trial_s for item in statistics if item.trial_s]
    usual_s = sum(timed_s) / max(1, len(timed_s))
    return [
        Demand(
            name=item.task.name,
            count=round(item.task.weight),
            flops=item.task.flops,
            recorded=known.trials,
            run_s=(known.best.cost_s if known.best else None) or math.nan,
            trial_s=known.trial_s or usual_s,
        )
        for item, known in zip(job.tasks, statistics, strict=True)
    ]


def _model_round_s(job: JobContext, baseline: Baseline, demands: Sequence[Demand]) -> float:
    """Seconds that one measurement of the whole untuned model takes, whether it succeeds or fails."""
    known_s = [demand.run_s for demand in demands if math.isfinite(demand.run_s)]
    expected_s = sum(demand.count for demand in demands) * sum(known_s) / max(1, len(known_s))
    started_s = time.monotonic()
    measure_model(baseline.loaded, job.session, expected_s=expected_s)
    return time.monotonic() - started_s


def after_tuning_s(job: JobContext, results: Sequence[TuningResult]) -> tuple[float, float]:
    """Seconds for the finalists and for the whole models where no budget says how many.

    They are shares of the job, judged by what the search took, now or in the jobs that recorded its trials.
    """
    searched_s = max(job.passed_s, sum(result.spent.wall_s for result in results))
    whole_s = searched_s / (1.0 - CONFIRM_SHARE - COMPARE_SHARE)
    return CONFIRM_SHARE * whole_s, COMPARE_SHARE * whole_s


def _costs(job: JobContext, baseline: Baseline, round_s: float) -> Costs:
    """Seconds of everything but tuning; those of the tuned model are estimated from the untuned one."""
    answers_s = [statistics.answer_s for statistics in _statistics(job) if statistics.answer_s]
    answer_s = sum(answers_s) / max(1, len(answers_s))
    packed_s = len(baseline.built.code) / PACKED_BYTES_PER_S
    built_s = TUNED_KERNELS * baseline.kernels_s + baseline.library_s + baseline.put_s
    return Costs(
        prepared_s=job.passed_s,
        confirm_s=_networks_s(baseline, round_s)
        if chooses_in_network(job)
        else _apart_s(job, baseline, answer_s),
        finish_s=built_s + 2 * round_s + packed_s,
        compare_s=2 * (pairs_of(job) - 1) * round_s,
    )


def _networks_s(baseline: Baseline, round_s: float) -> float:
    """Seconds for building and timing networks of finalists, when a block of runs takes `round_s`."""
    built_s = TUNED_KERNELS * baseline.kernels_s + baseline.library_s + baseline.put_s
    return FINALISTS * built_s + ROUNDS * (FINALISTS + 1) * round_s


def _apart_s(job: JobContext, baseline: Baseline, answer_s: float) -> float:
    """Seconds for the finalists by themselves, when the board answers a trial in `answer_s`."""
    timing = short_repeats(confirming(job.board).timing, 0.0)
    timed_s = timing.repeat * (timing.min_repeat_ms * 1e-3 + timing.cooldown_s)
    kernel_s = baseline.kernels_s / max(1, len(baseline.built.plan.kernels))
    contenders = _finalist_count(job) + 1
    return len(job.tasks) * contenders * (kernel_s + CONFIRM_ROUNDS * (answer_s + timed_s))


def announce(job: JobContext, plan: TuningPlan | None) -> None:
    """Tell the listener what is about to be tuned."""
    options = job.options
    counts = [len(job.records.for_key(item.task.key)) for item in job.tasks]
    trials, recorded = options.total, sum(counts)
    if trials is None and options.trials is not None:
        trials = options.trials * len(counts)
        recorded = sum(min(options.trials, count) for count in counts)
    job.on_event(
        TuningPlanned(
            operators=tuple(item.task.name for item in job.tasks),
            trials=recorded + plan.trials if plan and options.reuse else trials,
            seconds=plan.tuning_s if plan and options.seconds is not None else None,
            recorded=recorded,
            emulated=job.board.emulated,
            plan=plan,
        )
    )


# ------------------------------------------------------------------------------------------------ tuning


class _Answers:
    """A listener that measures how long the board takes to answer a trial; it passes the events on."""

    def __init__(self, listener: JobListener) -> None:
        self._listener = listener
        self._answers_s: deque[float] = deque(maxlen=RECENT_TRIALS)

    @property
    def mean_s(self) -> float:
        """Mean seconds of the last RECENT_TRIALS trials; 0 before the first."""
        return sum(self._answers_s) / max(1, len(self._answers_s))

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrialDone):
            self._answers_s.append(trial_time(event.record).measure_s)
        self._listener(event)


def tune_tasks(
    job: JobContext, baseline: Baseline, plan: TuningPlan | None, reuse: ModelReuse | None
) -> tuple[list[TuningResult], list[TuningResult]]:
    """Tune all tasks together; the results of the tasks, and of bridges that were tuned to be reused.

    With a budget in seconds, tuning ends when confirming and finishing need the rest of it; the time of
    confirming kernels by themselves is estimated again and again from the last trials.
    """
    options, begun_s, answers = job.options, job.passed_s, _Answers(job.on_event)

    def allowed_s() -> float:
        assert plan is not None
        confirm_s = plan.confirm_s
        if answers.mean_s and not chooses_in_network(job):
            confirm_s = min(_apart_s(job, baseline, answers.mean_s), CONFIRM_SHARE * plan.total_s)
        return plan.total_s - plan.finish_s - confirm_s - begun_s

    with stage("tune", job.on_event) as running:
        seconds = allowed_s if options.seconds is not None else None
        bridges: list[TuningResult] = []
        if reuse is not None:
            results, bridges = tune_by_reuse(job, reuse, seconds, answers)
        else:
            results = tune_all(
                job.tasks,
                job.records,
                Budget(options.trials, seconds, options.total),
                options=job.tuning,
                on_event=answers,
            )
        both = [*results, *bridges]
        measured = sum(result.measured for result in both)
        failures = sum(result.failures for result in both)
        trials = sum(result.trials for result in both)
        running.summary = f"{measured} trials now, {trials} in all, {failures} of them failed"
    return results, bridges


def confirm_tasks(
    job: JobContext, baseline: Baseline, results: Sequence[TuningResult], until_s: float
) -> list[TunedOperator]:
    """The winner of each task from its finalists: by its time in the network on a CPU, by itself elsewhere.

    After `until_s` on the job's clock nothing more is measured.
    """
    with stage("confirm", job.on_event) as running:
        if chooses_in_network(job) and job.passed_s < until_s:
            winners = chosen_in_network(job, baseline.built, baseline.golden, results, until_s)
        else:
            winners = _confirmed_apart(job, results, until_s)
        tuned = [
            TunedOperator(item.task, result, winner)
            for item, result, winner in zip(job.tasks, results, winners, strict=True)
        ]
        running.summary = (
            f"{changed(tuned)} of {len(tuned)} operators end with another schedule than the default"
        )
    return tuned


def _confirmed_apart(job: JobContext, results: Sequence[TuningResult], until_s: float) -> list[Winner]:
    """The winner of each task, measured by itself; first come the tasks that take most of a model's run."""
    timing = confirming(job.board)
    winners: dict[int, Winner] = {}
    for position in sorted(range(len(results)), key=lambda item: -_spent_in(job, results, item)):
        item = job.tasks[position]
        winners[position] = confirm(
            item.task.space,
            finalists(item.task.space, job.records, item.task.key, _finalist_count(job)),
            functools.partial(item.runner.afresh, timing),
            rounds=CONFIRM_ROUNDS if job.passed_s < until_s else 0,
        )
    return [winners[position] for position in range(len(results))]


def _spent_in(job: JobContext, results: Sequence[TuningResult], position: int) -> float:
    """Seconds of a model's run that an operator takes; 0 where it has no time."""
    best = results[position].best
    return job.tasks[position].task.weight * ((best.cost_s if best else None) or 0.0)


def _finalist_count(job: JobContext) -> int:
    return 1 if job.board.emulated else FINALISTS


# ---------------------------------------------------------------------------------------------- the model


def build(job: JobContext, tuned: Sequence[TunedOperator]) -> BuiltModel:
    """The tuned model, compiled and on the board."""
    with stage("build", job.on_event) as running:
        built = build_network(job, [item.result for item in tuned], [item.winner for item in tuned])
        plan = built.plan
        running.summary = f"{len(plan.kernels)} kernels, {plan.workspace_bytes / 2**20:.1f} MiB of workspace"
    return built


def _statistics(job: JobContext) -> list[OperatorStatistics]:
    return [recorded_statistics(item.task, job.records) for item in job.tasks]
