"""Algorithm 1 over a replayed landscape: budget, resume, default first, events, failures, interruption."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from scipy.stats import spearmanr

from cross.errors import ScheduleError
from device_runtime.protocol import MeasureFailure
from tests.quick import others_slow
from tests.synthetic_space import TilingSpace, everything
from toolkit.errors import InputError, RecordsError, UnfitBoard
from toolkit.explore.annealing import AnnealingOptions
from toolkit.explore.baselines import GridProposer
from toolkit.explore.proposer import History
from toolkit.explore.search import SearchOptions
from toolkit.explore.space import Batch
from toolkit.measure.measurement import Measurement
from toolkit.measure.runner import ReplayRunner
from toolkit.records import RecordKey, Records, TuningRecord
from toolkit.records.lines import PREDICTED
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.allocation import AllocationOptions
from toolkit.tuning.convergence import ConvergenceRule, converged
from toolkit.tuning.operator_search import TuningOptions, batch_size
from toolkit.tuning.progress import Budget, Event, OperatorDone, OperatorStarted, TrialDone, TuningResult
from toolkit.tuning.task import Task
from toolkit.tuning.time_breakdown import TimeBreakdown

KEY = RecordKey("matmul", "host:cpu", "tiling/1", "0.1.0")


@dataclass(frozen=True)
class Point:
    indices: tuple[int, ...]


class DescribedSpace(TilingSpace):
    """The synthetic space with a default and configurations that can be written down."""

    def defaults(self) -> list[Point]:
        return [self.default()]

    def default(self) -> Point:
        return Point((0,) * len(self.shape))

    def configuration(self, row: np.ndarray) -> Point:
        return Point(tuple(row.tolist()))

    def batch(self, configurations: list[Point]) -> Batch:
        return np.array([point.indices for point in configurations], np.int64).reshape(-1, len(self.shape))

    def describe(self, configuration: Point) -> dict[str, object]:
        return {"choices": list(configuration.indices)}

    def parse(self, described: dict[str, list[int]]) -> Point:
        if described.keys() != {"choices"}:
            raise ScheduleError(f"unknown knobs {sorted(described)}")
        return Point(tuple(described["choices"]))


SPACE = DescribedSpace()
JOB = Task("matmul", 2_000_000, SPACE, SPACE.features, KEY)
OPTIONS = TuningOptions(batch=8, search=SearchOptions(annealing=AnnealingOptions(chains=64, steps=4)))


def tune_operator(task: Task, runner: Any, records: Records, budget: Budget, **settings: Any) -> TuningResult:
    (result,) = tune_all([(task, runner)], records, budget, **settings)
    return result


def measured(space: TilingSpace, fails: float = 0.0) -> dict[int, Measurement]:
    points = everything(space)
    rng = np.random.default_rng(0)
    table = {}
    for number, cost_s in zip(space.ids(points).tolist(), space.cost_s(points).tolist(), strict=True):
        table[number] = Measurement(seconds=(cost_s,) * 3, number=10, max_abs_error=0.0, device_s=0.01)
        if rng.random() < fails:
            table[number] = Measurement.failed(MeasureFailure("crash", "signal 11", 11))
    return table


TABLE = measured(SPACE)


def replay(table: dict[int, Measurement] = TABLE) -> ReplayRunner:
    return ReplayRunner(SPACE, table)


@pytest.fixture
def records(tmp_path: Path) -> Iterator[Records]:
    with Records(tmp_path / "records.db") as store:
        yield store


def test_the_budget_is_spent_and_everything_is_recorded_in_order(records: Records) -> None:
    result = tune_operator(JOB, replay(), records, Budget(30), options=OPTIONS)
    stored = records.for_key(KEY)
    assert [record.trial for record in stored] == list(range(30))
    assert len({str(record.configuration) for record in stored}) == 30
    assert (result.trials, result.measured, result.failures) == (30, 30, 0)
    assert result.best == records.best(KEY)
    assert result.accounts.device_s == pytest.approx(0.3)


@pytest.mark.parametrize("kind", ["link", "transport"])
def test_what_says_nothing_about_a_program_ends_the_run_and_is_no_record(records: Records, kind: str) -> None:
    tune_operator(JOB, replay(), records, Budget(9), options=OPTIONS)
    lost = Measurement.failed(MeasureFailure(kind, "the artifact cannot be loaded: wrong ELF class"))
    with pytest.raises(UnfitBoard, match=f"{kind}: the artifact cannot be loaded: wrong ELF class"):
        tune_operator(JOB, replay(dict.fromkeys(TABLE, lost)), records, Budget(30), options=OPTIONS)
    assert len(records.for_key(KEY)) == 9
    assert tune_operator(JOB, replay(), records, Budget(30), options=OPTIONS).failures == 0


def test_the_default_schedule_is_the_first_trial(records: Records) -> None:
    result = tune_operator(JOB, replay(), records, Budget(9), options=OPTIONS)
    first = records.for_key(KEY)[0]
    assert first.configuration == {"choices": [0, 0, 0, 0, 0]} and result.default == first
    assert result.best is not None and result.best.cost_s is not None and first.cost_s is not None
    assert result.best.cost_s < first.cost_s
    assert result.best_gflops == pytest.approx(2e-3 / result.best.cost_s)


def test_the_same_call_continues_and_a_spent_budget_measures_nothing(records: Records) -> None:
    tune_operator(JOB, replay(), records, Budget(12), options=OPTIONS)
    again = tune_operator(JOB, replay(), records, Budget(30), options=OPTIONS)
    assert (again.trials, again.measured) == (30, 18)
    assert len({str(record.configuration) for record in records}) == 30
    done = tune_operator(JOB, replay(), records, Budget(30), options=OPTIONS)
    assert (done.trials, done.measured) == (30, 0)
    assert done.best == again.best and done.default == again.default


@pytest.mark.parametrize("overlap", [False, True])
def test_records_say_what_the_cost_model_predicted(records: Records, overlap: bool) -> None:
    """From the first batch on that a fitted model chose; a higher score is a shorter time, by and large."""
    tune_operator(JOB, replay(), records, Budget(40), options=replace(OPTIONS, overlap=overlap))
    found = [(record.facts.get(PREDICTED), record.cost_s) for record in records]
    expected = [0, 1, 8, 16, 24] if overlap else [0, 8, 16, 24, 32]  # known at the time; 0: there is no model
    assert [said["fitted_to"] if said else 0 for said, _ in found[::8]] == expected
    scores, costs_s = zip(*((said["score"], cost_s) for said, cost_s in found[16:] if said), strict=True)
    assert spearmanr(scores, costs_s).statistic < -0.2


class InRounds(GridProposer):
    """Four rounds of six; each waits for the costs of the one before."""

    def __init__(self) -> None:
        super().__init__(SPACE)
        self.told = History(SPACE)
        self.given = 0

    def ask(self, n: int) -> Batch:
        waits = self.given % 6 == 0 and len(self.told) < self.given
        left = 0 if waits or self.given == 24 else 6 - self.given % 6
        rows = super().ask(min(n, left))
        self.given += len(rows)
        return rows

    def tell(self, batch: Batch, costs_s: np.ndarray) -> None:
        super().tell(batch, costs_s)
        self.told.told(batch, costs_s)
        self.given = max(self.given, len(self.told))


@pytest.mark.parametrize("overlap", [False, True])
def test_a_search_that_waits_for_costs_goes_on(records: Records, overlap: bool) -> None:
    events: list[Event] = []
    options = replace(OPTIONS, overlap=overlap)
    job = replace(JOB, rounds=InRounds, rounds_alone=True)
    result = tune_operator(job, replay(), records, Budget(400), options=options, on_event=events.append)
    assert result.trials == 24
    assert (
        isinstance(events[-1], OperatorDone) and sum(isinstance(item, OperatorDone) for item in events) == 1
    )


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize("tuner", [pytest.param("annealing", marks=pytest.mark.slow), "random"])
def test_what_ended_because_nothing_new_was_found_has_ended(records: Records, tuner: str, seed: int) -> None:
    """Most configurations make one program; those that make another one are hard to come by."""

    def programs(rows: Batch) -> np.ndarray:
        ids = SPACE.ids(rows)
        return np.where(ids % np.uint64(211) == 0, ids, np.uint64(1))

    job = replace(JOB, identify=programs)
    options = replace(OPTIONS, search=replace(OPTIONS.search, tuner=tuner), seed=seed)
    result = tune_operator(job, replay(), records, Budget(400), options=options)
    rare = sum(number % 211 == 0 for number in TABLE)
    assert 1 <= result.trials <= 1 + rare
    again = tune_operator(job, replay(), records, Budget(400), options=options)
    assert (again.trials, again.measured) == (result.trials, 0)


@pytest.mark.parametrize("overlap", others_slow([False, True], True))
def test_one_seed_one_course(tmp_path: Path, overlap: bool) -> None:
    states = []
    for run in range(2):
        with Records(tmp_path / f"{run}.db") as records:
            tune_operator(JOB, replay(), records, Budget(40), options=replace(OPTIONS, overlap=overlap))
            states.append([record.configuration for record in records])
    assert states[0] == states[1]
    assert len({str(configuration) for configuration in states[0]}) == 40


@pytest.mark.parametrize("tuner", ["annealing", "genetic", "random", "grid"])
@pytest.mark.parametrize("cost_model", ["gbt", "gbt-regression", "bootstrap-ei", "random"])
def test_every_search_by_name(records: Records, tuner: str, cost_model: str) -> None:
    search = SearchOptions(tuner, cost_model, AnnealingOptions(chains=64, steps=2))
    result = tune_operator(JOB, replay(), records, Budget(20), options=TuningOptions(search))
    assert result.trials == 20


@pytest.mark.parametrize(
    ("search", "said"),
    [
        (
            SearchOptions(tuner="magic"),
            "unknown tuner 'magic': expected one of annealing, genetic, random, grid",
        ),
        (SearchOptions(cost_model="x"), "unknown cost model 'x': expected one of gbt, gbt-regression"),
    ],
)
def test_unknown_names_are_refused(records: Records, search: SearchOptions, said: str) -> None:
    with pytest.raises(InputError, match=said):
        tune_operator(JOB, replay(), records, Budget(8), options=TuningOptions(search))


def test_failures_are_recorded_and_learnt_from(records: Records) -> None:
    result = tune_operator(JOB, replay(measured(SPACE, fails=0.4)), records, Budget(40), options=OPTIONS)
    failed = [record for record in records if record.error_kind]
    assert 0 < len(failed) == result.failures < 40
    assert {(record.error_kind, record.error_text) for record in failed} == {("crash", "signal 11")}
    assert result.best is not None


def test_only_failures_leave_no_best(records: Records) -> None:
    result = tune_operator(JOB, replay({}), records, Budget(16), options=OPTIONS)
    assert (result.best, result.default, result.failures, result.best_gflops) == (None, None, 16, 0.0)


def test_a_small_space_is_exhausted(records: Records) -> None:
    space = DescribedSpace((3, 4, 2), 2, 2, footprint=24.0)
    job = replace(JOB, space=space, features=space.features)
    points = len(everything(space))
    result = tune_operator(job, ReplayRunner(space, measured(space)), records, Budget(1000), options=OPTIONS)
    assert result.trials == points
    assert result.best is not None and result.best.cost_s == space.cost_s(everything(space)).min()


def test_events_tell_the_course(records: Records) -> None:
    tune_operator(JOB, replay(), records, Budget(5), options=OPTIONS)
    events: list[Event] = []
    ticks = iter(float(i) for i in range(1000))
    result = tune_operator(
        JOB, replay(), records, Budget(12), options=OPTIONS, on_event=events.append, clock=lambda: next(ticks)
    )
    assert events[0] == OperatorStarted("matmul", 5, 12)
    trials = [event for event in events if isinstance(event, TrialDone)]
    assert [event.trial for event in trials] == list(range(6, 13))
    assert trials[-1].time_left_s == 0.0 and trials[0].time_left_s > 0.0 and trials[0].trials_per_s > 0.0
    assert all(a.best_gflops <= b.best_gflops for a, b in itertools.pairwise(trials))
    assert isinstance(events[-1], OperatorDone) and events[-1].result.best == result.best
    assert len(events) == 2 + 7


def test_the_time_budget_ends_a_batch_early(records: Records) -> None:
    ticks = iter(float(i) for i in range(10_000))
    result = tune_operator(
        JOB, replay(), records, Budget(1000, seconds=50.0), options=OPTIONS, clock=lambda: next(ticks)
    )
    assert 0 < result.measured < 50
    assert len(records) == result.measured


class InterruptedRunner(ReplayRunner):
    """The user presses Ctrl-C while the candidate of number `at` is measured."""

    at = 11
    count = 0

    def prepare(self, batch: Batch) -> Iterator[Measurement]:
        for measurement in super().prepare(batch):
            if self.count == self.at:
                raise KeyboardInterrupt
            self.count += 1
            yield measurement


@pytest.mark.parametrize("overlap", [False, True])
def test_an_interrupt_keeps_everything_measured(records: Records, overlap: bool) -> None:
    options = replace(OPTIONS, overlap=overlap)
    with pytest.raises(KeyboardInterrupt):
        tune_operator(JOB, InterruptedRunner(SPACE, TABLE), records, Budget(30), options=options)
    assert len(records.for_key(KEY)) == 11
    assert tune_operator(JOB, replay(), records, Budget(30), options=options).measured == 19


def test_recorded_configurations_must_fit_the_space(records: Records) -> None:
    tune_operator(JOB, replay(), records, Budget(3), options=OPTIONS)
    bad = replace_record(records, {"tiles": [1]})
    records.add(bad)
    with pytest.raises(
        RecordsError, match="of trial 0 of matmul does not fit its schedule space: unknown knobs"
    ):
        tune_operator(JOB, replay(), records, Budget(30), options=OPTIONS)


def replace_record(records: Records, configuration: dict[str, object]) -> TuningRecord:
    return replace(records.for_key(KEY)[0], configuration=configuration)


def several(count: int = 3) -> list[tuple[Task, ReplayRunner]]:
    """Operators with the same landscape, the first one far heavier than the others."""
    slow = {number: replace(m, seconds=tuple(100 * s for s in m.seconds)) for number, m in TABLE.items()}
    jobs = []
    for position in range(count):
        job = replace(JOB, name=f"op{position}", key=replace(KEY, operator_key=f"op{position}"))
        jobs.append((job, replay(slow if position == 0 else TABLE)))
    return jobs


def counts(records: Records) -> dict[str, int]:
    return {key.operator_key: count for key, count in records.keys()}  # noqa: SIM118 - not a mapping


def test_every_operator_gets_its_trials(records: Records) -> None:
    results = tune_all(several(2), records, Budget(10), options=OPTIONS)
    assert [(result.operator, result.trials) for result in results] == [("op0", 10), ("op1", 10)]
    assert len(records) == 20


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_shared_trials_go_to_the_operator_that_matters(records: Records, overlap: bool) -> None:
    options = replace(OPTIONS, overlap=overlap)
    events: list[Event] = []
    results = tune_all(
        several(),
        records,
        Budget(total=100),
        options=options,
        on_event=events.append,
        clock=lambda: 0.0,  # trials of all operators count as equally long
    )
    found = counts(records)
    assert sum(found.values()) == 100 == sum(result.measured for result in results)
    assert found["op0"] > 60
    assert min(found.values()) >= 8
    for key, _ in records.keys():  # noqa: SIM118 - not a mapping
        assert [record.trial for record in records.for_key(key)] == list(range(found[key.operator_key]))
    assert [event.operator for event in events if isinstance(event, OperatorDone)] == ["op0", "op1", "op2"]
    assert sorted(e.operator for e in events if isinstance(e, OperatorStarted)) == ["op0", "op1", "op2"]


def test_few_shared_trials_reach_every_operator(records: Records) -> None:
    tune_all(several(5), records, Budget(total=12), options=OPTIONS)
    found = counts(records)
    assert sum(found.values()) == 12 and len(found) == 5


@pytest.mark.slow
@pytest.mark.parametrize("overlap", [False, True])
def test_one_seed_one_course_over_several_operators(tmp_path: Path, overlap: bool) -> None:
    states = []
    for run in range(2):
        ticks = itertools.count()
        with Records(tmp_path / f"{run}.db") as records:
            tune_all(
                several(),
                records,
                Budget(total=80),
                options=replace(OPTIONS, overlap=overlap),
                clock=lambda ticks=ticks: float(next(ticks)),
            )
            states.append([(record.operator_key, record.configuration) for record in records])
    assert states[0] == states[1]


@pytest.mark.slow
def test_a_run_in_two_parts_gives_trials_to_the_same_operators(tmp_path: Path) -> None:
    """What decides is in the records."""
    with Records(tmp_path / "whole.db") as records:
        tune_all(several(), records, Budget(total=96), options=OPTIONS, clock=itertools.count().__next__)
        whole = counts(records)
    with Records(tmp_path / "parts.db") as records:
        for total in (30, 55, 96):
            tune_all(
                several(), records, Budget(total=total), options=OPTIONS, clock=itertools.count().__next__
            )
        parts = counts(records)
        again = tune_all(several(), records, Budget(total=96), options=OPTIONS)
    assert sum(result.measured for result in again) == 0
    assert parts.keys() == whole.keys()
    assert all(abs(parts[name] - whole[name]) <= 16 for name in whole)


@pytest.mark.slow
def test_converged_operators_end_early_when_asked_to(records: Records) -> None:
    rule = ConvergenceRule(share=0.05, trials=16, patience=16)
    stopping = replace(OPTIONS, early_stop=True, allocation=AllocationOptions(rule=rule))
    results = tune_all(several(), records, Budget(400), options=stopping)
    assert all(16 <= result.trials < 400 for result in results)
    for key, _ in records.keys():  # noqa: SIM118 - not a mapping
        assert converged([record.cost_s or math.nan for record in records.for_key(key)], rule)
    kept = tune_all(several(), records, Budget(100), options=replace(stopping, early_stop=False))
    assert [result.trials for result in kept] == [max(100, result.trials) for result in results]


def test_the_accounts_of_the_operators_make_the_whole(records: Records) -> None:
    ticks = itertools.count()
    results = tune_all(several(), records, Budget(20), options=OPTIONS, clock=lambda: float(next(ticks)))
    whole = sum((result.accounts for result in results), TimeBreakdown())
    assert whole.wall_s <= next(ticks)
    assert whole.device_s == pytest.approx(0.6)
    assert min(whole.measure_s, whole.build_s, whole.propose_s) > 0.0
    assert whole.measure_s + whole.build_s + whole.propose_s <= whole.wall_s
    again = tune_all(several(), records, Budget(20), options=OPTIONS)
    assert [result.spent for result in again] == [result.accounts for result in results]
    assert all(result.accounts == TimeBreakdown() for result in again)


class SlowRunner(ReplayRunner):
    """Building a candidate takes 1 s and measuring one 1 s by the clock that is given."""

    clock: FakeClock

    def prepare(self, batch: Batch) -> Iterator[Measurement]:
        self.clock.now_s += len(batch)
        measurements = super().prepare(batch)
        return (self.clock.passed(measurement) for measurement in measurements)


class FakeClock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def passed(self, measurement: Measurement) -> Measurement:
        self.now_s += 1.0
        return measurement


@pytest.mark.parametrize("changing", [False, True])
@pytest.mark.parametrize("seconds", [40.0, 100.0, pytest.param(301.0, marks=pytest.mark.slow)])
def test_the_last_batch_fits_the_time(records: Records, seconds: float, changing: bool) -> None:
    """A batch of 8 takes 16 s here: one that would end too late is made smaller."""
    clock = FakeClock()
    jobs = several()
    slow = []
    for job, _ in jobs:
        runner = SlowRunner(SPACE, TABLE)
        runner.clock = clock
        slow.append((job, runner))
    later = 20.0 if changing else 0.0  # some of the time is found to be there after a while
    budget = Budget(seconds=lambda: seconds - later * (clock.now_s < 15.0))
    tune_all(slow, records, budget if changing else Budget(seconds=seconds), options=OPTIONS, clock=clock)
    assert seconds - 4.0 <= clock.now_s <= seconds + 1.0


@pytest.mark.parametrize(
    ("trials", "largest", "size"),
    [(0, 64, 8), (16, 64, 8), (60, 64, 30), (500, 64, 64), (500, 16, 16), (0, 1, 1)],
)
def test_batches_grow_with_what_is_known(trials: int, largest: int, size: int) -> None:
    assert batch_size(trials, TuningOptions(batch=largest)) == size
