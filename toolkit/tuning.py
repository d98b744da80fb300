"""Algorithm 1 of AutoTVM: propose a batch, build it, measure it, learn from it; until the budget is spent.

`tune_operator` is the door. Everything it measures is in the records before the next candidate runs, so
that the same call continues where an interrupted one stopped, wherever that was. `tune_all` tunes several
operators in turn.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cross.errors import ScheduleError
from toolkit.errors import RecordsError
from toolkit.explore.annealing import Features
from toolkit.explore.first import DefaultFirst
from toolkit.explore.proposer import Proposer
from toolkit.explore.search import SearchOptions, make_proposer
from toolkit.explore.space import Batch, SearchSpace
from toolkit.measure.measurement import Measurement
from toolkit.measure.runner import Runner
from toolkit.progress import (
    Budget,
    Clock,
    Listener,
    OperatorDone,
    OperatorStarted,
    Progress,
    TuningResult,
    silent,
)
from toolkit.records import RecordKey, Records, TuningRecord

SMALLEST_BATCH = 8


class TunableSpace(SearchSpace, Protocol):
    """What tuning needs of a schedule space beyond what the search does."""

    def default(self) -> Any:
        """The configuration to use when nothing was measured."""
        ...

    def defaults(self) -> list[Any]:
        """That one, and the untuned configurations of the other algorithms, to be measured first."""
        ...

    def configuration(self, row: NDArray[np.int64]) -> Any:
        """One row of a batch."""
        ...

    def batch(self, configurations: list[Any]) -> Batch:
        """Configurations as rows."""
        ...

    def describe(self, configuration: Any) -> dict[str, Any]:
        """A configuration as JSON-able data."""
        ...

    def parse(self, described: dict[str, Any]) -> Any:
        """The configuration that `describe` wrote. Raises ScheduleError."""
        ...


@dataclass(frozen=True, slots=True)
class TuningJob:
    """One operator to tune: its name for messages, its schedule space, and the key of its records."""

    name: str
    flops: int
    space: TunableSpace
    features: Features
    key: RecordKey


@dataclass(frozen=True, slots=True)
class TuningOptions:
    """How to search. `overlap`: propose and build the next batch while the board measures; leave it off where
    the board is this machine, because a compiler beside a kernel disturbs its times."""

    search: SearchOptions = field(default_factory=SearchOptions)
    batch: int = 64
    seed: int = 0
    overlap: bool = False


def tune_operator(
    job: TuningJob,
    runner: Runner,
    records: Records,
    budget: Budget,
    *,
    options: TuningOptions = TuningOptions(),
    on_event: Listener = silent,
    clock: Clock = time.monotonic,
) -> TuningResult:
    """Measure configurations until the budget is spent or the space is exhausted.

    Raises RecordsError when recorded configurations do not fit the space, BoardUnreachable when the board is
    lost; records up to then are kept, as they are after KeyboardInterrupt.
    """
    space = job.space
    progress = Progress(job.name, job.flops, budget, untuned=space.describe(space.default()), clock=clock)
    known = records.for_key(job.key)
    for record in known:
        progress.note(record)
    on_event(OperatorStarted(job.name, len(known), budget.trials))
    rng = np.random.default_rng([options.seed, len(known)])
    search = make_proposer(space, job.features, rng, options.search)
    proposer: Proposer = search
    for row in space.batch(space.defaults())[::-1]:
        proposer = DefaultFirst(space, row, proposer)
    proposer.tell(_configurations(job, known), _costs(known))
    for batch in _batches(proposer, runner, job, progress, options):
        for row, measurement in zip(batch.rows, batch.measurements, strict=False):
            record = _record(job, row, measurement, seed=options.seed, trial=progress.trials)
            records.add(record)
            batch.costs_s.append(measurement.cost_s)
            on_event(progress.done(record, measurement.device_s))
            if progress.out_of_time:
                break
    on_event(OperatorDone(job.name, progress.result()))
    return progress.result()


def tune_all(
    jobs: Iterable[tuple[TuningJob, Runner]],
    records: Records,
    budget: Budget,
    *,
    options: TuningOptions = TuningOptions(),
    on_event: Listener = silent,
    clock: Clock = time.monotonic,
) -> list[TuningResult]:
    """Tune operators in turn, each with the whole budget; `jobs` may be made as they are needed."""
    return [
        tune_operator(job, runner, records, budget, options=options, on_event=on_event, clock=clock)
        for job, runner in jobs
    ]


def batch_size(trials: int, options: TuningOptions) -> int:
    """Candidates in the batch after `trials`: half as many, from SMALLEST_BATCH up to `options.batch`.

    The first ones teach most, and a short budget should not be spent before there is anything to learn from.
    """
    return max(1, min(options.batch, max(SMALLEST_BATCH, trials // 2)))


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A batch that is built: its rows [N, K], the measurements to come, and the costs of those that came."""

    rows: Batch
    measurements: Iterator[Measurement]
    costs_s: list[float]


def _batches(
    proposer: Proposer, runner: Runner, job: TuningJob, progress: Progress, options: TuningOptions
) -> Iterator[_Prepared]:
    """Prepared batches until the budget is spent or nothing is proposed; the proposer is told of each one.

    With `overlap` the next batch is prepared in a thread while the caller measures the one just yielded.
    """
    planned = progress.trials

    def prepare() -> _Prepared | None:
        nonlocal planned
        rows = proposer.ask(min(batch_size(planned, options), progress.budget.trials - planned))
        planned += len(rows)
        return _Prepared(rows, runner.prepare(rows), []) if len(rows) else None

    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="prepare") as thread:
        batch = prepare()
        while batch is not None and not progress.out_of_time:
            ahead = thread.submit(prepare) if options.overlap else None
            yield batch
            following = ahead.result() if ahead is not None else None
            proposer.tell(batch.rows[: len(batch.costs_s)], np.array(batch.costs_s))
            batch = following if options.overlap else prepare()


def _configurations(job: TuningJob, known: list[TuningRecord]) -> Batch:
    """Recorded configurations as a batch [N, K]. Raises RecordsError for one that the space cannot read."""
    found = []
    for record in known:
        try:
            found.append(job.space.parse(record.configuration))
        except ScheduleError as error:
            raise RecordsError(
                f"the recorded configuration of trial {record.trial} of {job.name} does not fit its schedule "
                f"space: {error}; tune with a new records file"
            ) from error
    return job.space.batch(found)


def _costs(known: list[TuningRecord]) -> NDArray[np.float64]:
    return np.array(
        [np.nan if record.cost_s is None else record.cost_s for record in known], dtype=np.float64
    )


def _record(
    job: TuningJob, row: NDArray[np.int64], measurement: Measurement, *, seed: int, trial: int
) -> TuningRecord:
    error = measurement.error
    return TuningRecord(
        operator_key=job.key.operator_key,
        target_key=job.key.target_key,
        space_key=job.key.space_key,
        tool_version=job.key.tool_version,
        configuration=job.space.describe(job.space.configuration(row)),
        seconds=measurement.seconds,
        number=measurement.number,
        error_kind=error.kind if error else "",
        error_text=error.text if error else "",
        max_abs_error=measurement.max_abs_error,
        facts=measurement.facts,
        timestamp_s=time.time(),
        seed=seed,
        trial=trial,
    )
