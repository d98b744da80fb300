"""One operator in a tuning run: its search, its runner and its statistics. algorithm.py calls it in order."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import asdict
from numpy.typing import NDArray

from cross.errors import ScheduleError
from toolkit.errors import RecordsError
from toolkit.explore.distinct import DistinctPrograms
from toolkit.explore.in_turn import InTurn
from toolkit.explore.proposer import Proposer
from toolkit.explore.search import SearchOptions, make_proposer
from toolkit.explore.space import Batch
from toolkit.measure.measurement import Measurement
from toolkit.measure.runner import Runner
from toolkit.records import OperatorLine, Records, TuningRecord
from toolkit.records.lines import BRIDGE, PREDICTED, REUSED, SPENT
from toolkit.tuning.allocation import AllocationOptions, AllocationState
from toolkit.tuning.convergence import converged
from toolkit.tuning.progress import Budget, OperatorStatistics
from toolkit.tuning.task import Task
from toolkit.tuning.time_breakdown import TimeBreakdown

SMALLEST_BATCH = 8  # an estimate: of fewer new measurements a cost model learns too little for a fit


class TuningOptions(msgspec.Struct, frozen=True):
    """How to search, and how trials are shared out.

    `overlap`: propose and build the next batch while the board measures; leave it off where the board is this
    machine, because a compiler beside a kernel disturbs its times. `early_stop`: operators that have
    converged (`allocation.rule`) get no more trials, and the run ends when all have; the budget is an upper
    limit then.
    """

    search: SearchOptions = msgspec.field(default_factory=SearchOptions)
    batch: int = 64
    seed: int = 0
    overlap: bool = False
    early_stop: bool = False
    allocation: AllocationOptions = msgspec.field(default_factory=AllocationOptions)


class OperatorSearch:
    """The search, the runner and the statistics of one operator, begun with what is recorded of it.

    Raises RecordsError when recorded configurations do not fit the space.
    """

    def __init__(self, task: Task, runner: Runner, records: Records, options: TuningOptions) -> None:
        self.task = task
        self.runner = runner
        self.statistics = recorded_statistics(task, records)
        self._options = options
        if task.description:
            key = task.key.operator_key
            records.describe(OperatorLine(operator_key=key, description=task.description))
        known = records.for_key(task.key)
        self.resumed = self._planned = len(known)
        self._exhausted = False
        self.started = self.ended = False  # whether the listener was told
        self._told = _configurations(task, known)
        self._proposer = self._begun()
        self._predicted: dict[bytes, tuple[float, int]] = {}  # of what was asked for and is not measured yet

    def _begun(self) -> Proposer:
        """The search, told what was measured; the same for the same records."""
        task, options = self.task, self._options
        self._begun_with = len(self._told)
        rng = np.random.default_rng([options.seed, self._begun_with])
        proposers = [task.rounds()] if task.rounds else []
        if not task.rounds_alone:
            proposers.append(make_proposer(task.space, task.features, rng, options.search))
        untuned = task.space.batch(task.space.defaults())
        proposer: Proposer = InTurn(task.space, untuned, proposers)
        if task.identify is not None:
            drawing = np.random.default_rng([options.seed, self._begun_with, 1])
            proposer = DistinctPrograms(task.space, proposer, task.identify, drawing)
        proposer.tell(self._told, np.array(self.statistics.costs_s[: self._begun_with], np.float64))
        return proposer

    @property
    def planned(self) -> int:
        """Trials that are recorded, measured or asked for."""
        return self._planned

    def ask(self, n: int) -> Batch:
        """At most n configurations to measure, int64 [M, K]; none when the space is exhausted.

        A search that finds nothing more is begun again once, from the records, as a later run would begin it:
        so both runs end at the same point.
        """
        rows = self._proposer.ask(n)
        if not len(rows) and self._begun_with < len(self._told) == self._planned:
            self._proposer = self._begun()
            rows = self._proposer.ask(n)
        if (found := self._proposer.predicted(rows)) is not None:
            scores = zip(rows, found.scores.tolist(), strict=True)
            self._predicted |= {row.tobytes(): (score, found.fitted_to) for row, score in scores}
        self._planned += len(rows)
        self._exhausted = not len(rows)
        return rows

    def tell(self, rows: Batch, costs_s: list[float]) -> None:
        """Tell the search what the rows cost: seconds per call, NaN for failures."""
        self._exhausted = self._exhausted and not len(rows)
        self._told = np.concatenate([self._told, rows])
        self._proposer.tell(rows, np.array(costs_s, np.float64))

    def allocation_state(self, limit: int | None, most: int) -> AllocationState:
        """What the allocation needs, for at most `limit` trials in all and `most` in the next batch."""
        statistics, options = self.statistics, self._options
        left = most if limit is None else min(most, limit - self._planned)
        stopped = options.early_stop and converged(statistics.costs_s, options.allocation.rule)
        return AllocationState(
            weight=self.task.weight,
            flops=self.task.flops,
            kind=self.task.kind,
            costs_s=statistics.costs_s,
            pending=self._planned - statistics.trials,
            trial_s=statistics.trial_s,
            batch=0 if self._exhausted or stopped else max(0, min(left, batch_size(self._planned, options))),
        )

    def record(self, row: NDArray[np.int64], measurement: Measurement, spent: TimeBreakdown) -> TuningRecord:
        """A measured configuration as a record, counted in the statistics."""
        error, space = measurement.error, self.task.space
        predicted = self._predicted.pop(row.tobytes(), None)
        record = TuningRecord(
            **asdict(self.task.key),
            configuration=space.describe(space.configuration(row)),
            seconds=measurement.seconds,
            number=measurement.number,
            error_kind=error.kind if error else "",
            error_text=error.text if error else "",
            max_abs_error=measurement.max_abs_error,
            facts={
                **measurement.facts,
                SPENT: spent.plain(),
                **(
                    {PREDICTED: dict(zip(("score", "fitted_to"), predicted, strict=True))}
                    if predicted
                    else {}
                ),
                **({REUSED: self.task.reused} if self.task.reused else {}),
                **({BRIDGE: True} if self.task.bridge else {}),
            },
            timestamp_s=time.time(),
            seed=self._options.seed,
            trial=self.statistics.trials,
        )
        self.statistics.done(record)
        return record


def recorded_statistics(task: Task, records: Records) -> OperatorStatistics:
    """The statistics of an operator's records."""
    statistics = OperatorStatistics(task.name, task.flops, untuned=task.space.describe(task.space.default()))
    for record in records.for_key(task.key):
        statistics.note(record)
    return statistics


def batch_size(trials: int, options: TuningOptions) -> int:
    """Candidates in the batch after `trials`: half as many, from SMALLEST_BATCH up to `options.batch`.

    The first ones teach most, and a short budget should not be spent before there is anything to learn from.
    """
    return max(1, min(options.batch, max(SMALLEST_BATCH, trials // 2)))


def trials_left(searches: Sequence[OperatorSearch], budget: Budget) -> float:
    """Trials that the budget still allows; infinite where it limits none."""
    left = math.inf
    if budget.total is not None:
        left = budget.total - sum(search.statistics.trials for search in searches)
    if budget.trials is not None:
        left = min(left, sum(max(0, budget.trials - search.statistics.trials) for search in searches))
    return max(0.0, left)


def _configurations(task: Task, known: list[TuningRecord]) -> Batch:
    """Recorded configurations as a batch [N, K]. Raises RecordsError for one that the space cannot read."""
    found = []
    for record in known:
        try:
            found.append(task.space.parse(record.configuration))
        except ScheduleError as error:
            raise RecordsError(
                f"the recorded configuration of trial {record.trial} of {task.name} does not fit its "
                f"schedule space: {error}; tune with a new records file"
            ) from error
    return task.space.batch(found)
