"""Algorithm 1 over a replayed landscape: budget, resume, default first, events, failures, interruption."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cross.errors import ScheduleError
from device_runtime.protocol import MeasureFailure
from tests.synthetic_space import TilingSpace, everything
from toolkit.errors import InputError, RecordsError
from toolkit.explore.annealing import AnnealingOptions
from toolkit.explore.search import SearchOptions
from toolkit.explore.space import Batch
from toolkit.measure.measurement import Measurement
from toolkit.measure.runner import ReplayRunner
from toolkit.progress import Budget, Event, OperatorDone, OperatorStarted, TrialDone
from toolkit.records import RecordKey, Records, TuningRecord
from toolkit.tuning import TuningJob, TuningOptions, batch_size, tune_all, tune_operator

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
JOB = TuningJob("matmul", 2_000_000, SPACE, SPACE.features, KEY)
OPTIONS = TuningOptions(batch=8, search=SearchOptions(annealing=AnnealingOptions(chains=64, steps=4)))


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
    assert result.device_s == pytest.approx(0.3)


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
def test_one_seed_one_course(tmp_path: Path, overlap: bool) -> None:
    courses = []
    for run in range(2):
        with Records(tmp_path / f"{run}.db") as records:
            tune_operator(JOB, replay(), records, Budget(40), options=replace(OPTIONS, overlap=overlap))
            courses.append([record.configuration for record in records])
    assert courses[0] == courses[1]
    assert len({str(configuration) for configuration in courses[0]}) == 40


@pytest.mark.parametrize("tuner", ["annealing", "genetic", "random", "grid"])
@pytest.mark.parametrize("cost_model", ["rank", "regression", "random"])
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
        (SearchOptions(cost_model="x"), "unknown cost model 'x': expected one of rank, regression, random"),
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
    return msgspec.structs.replace(records.for_key(KEY)[0], configuration=configuration)


def test_several_operators_in_turn(records: Records) -> None:
    other = replace(JOB, name="other", key=replace(KEY, operator_key="other"))
    results = tune_all([(JOB, replay()), (other, replay())], records, Budget(10), options=OPTIONS)
    assert [(result.operator, result.trials) for result in results] == [("matmul", 10), ("other", 10)]
    assert len(records) == 20


@pytest.mark.parametrize(
    ("trials", "largest", "size"),
    [(0, 64, 8), (16, 64, 8), (60, 64, 30), (500, 64, 64), (500, 16, 16), (0, 1, 1)],
)
def test_batches_grow_with_what_is_known(trials: int, largest: int, size: int) -> None:
    assert batch_size(trials, TuningOptions(batch=largest)) == size
