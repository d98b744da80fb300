"""The steps of Algorithm 1 over several operators: whose turn it is, propose, build, measure, learn.

algorithm.py puts them in order. Everything that decides whose turn it is comes from the records, so that a
run that is started again goes on as it would have gone on.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from device_runtime.protocol import MeasureFailure
from toolkit.errors import UnfitBoard
from toolkit.explore.space import Batch
from toolkit.measure.measurement import Measurement
from toolkit.records import Records, TuningRecord
from toolkit.tuning.allocation import choose, fitting, shared
from toolkit.tuning.operator_search import OperatorSearch, TuningOptions, trials_left
from toolkit.tuning.progress import (
    Budget,
    Listener,
    OperatorDone,
    OperatorStarted,
    TrialDone,
    TuningResult,
)
from toolkit.tuning.time_breakdown import Activity, ActivityTimer, Clock


class Turn(msgspec.Struct, frozen=True):
    """An operator, and how many of its configurations are tried next."""

    search: OperatorSearch
    size: int


class Prepared(msgspec.Struct, frozen=True):
    """A built batch: its rows int64 [N, K], an iterator that measures them, seconds per call so far."""

    search: OperatorSearch
    rows: Batch
    measurements: Iterator[Measurement]
    costs_s: list[float]


class TuningRun(msgspec.Struct):
    """The steps of Algorithm 1 and the state that they share."""

    searches: list[OperatorSearch]
    records: Records
    budget: Budget
    options: TuningOptions
    on_event: Listener
    clock: Clock
    timer: ActivityTimer
    started_s: float

    def turn(self) -> Turn | None:
        """Whose batch is next, and how large it is; None when the budget allows no more."""
        planned = sum(search.planned for search in self.searches)
        most = self.options.batch
        states = [search.allocation_state(self.budget.trials, most) for search in self.searches]
        if self.budget.total is not None:
            states = shared(states, self.budget.total - planned)
        allowed_s = self.budget.allowed_s
        if allowed_s is not None:
            states = fitting(states, allowed_s - self.wall_s)
        rng = np.random.default_rng([self.options.seed, planned])
        position = choose(states, rng, self.options.allocation)
        return None if position is None else Turn(self.searches[position], states[position].batch)

    def propose(self, turn: Turn) -> Batch:
        """Configurations of one operator, [N, K]; none when its space is exhausted."""
        with self.timer.during(Activity.PROPOSE):
            return turn.search.ask(turn.size)

    def build(self, turn: Turn, rows: Batch) -> Prepared:
        """Compile and link proposed configurations."""
        with self.timer.during(Activity.BUILD):
            measurements = turn.search.runner.prepare(rows) if len(rows) else iter(())
        return Prepared(turn.search, rows, measurements, [])

    def prepare(self, turn: Turn | None) -> Prepared | None:
        """Propose and build the batch of a turn."""
        return self.build(turn, self.propose(turn)) if turn else None

    def measure(self, batch: Prepared) -> None:
        """Measure one candidate after the other, each stored before the answer for the next is taken.

        Raises UnfitBoard when a candidate fails for a reason that is not its own: the next ones would, too.
        """
        search = batch.search
        self.start(search)
        with self.timer.during(Activity.MEASURE):  # also what is stored while the board begins with the next
            for row in batch.rows:
                measurement = next(batch.measurements)
                if measurement.error is not None and measurement.says_nothing:
                    raise _nothing_said(search.task.name, measurement.error)
                self.timer.device(measurement.device_s)
                record = search.record(row, measurement, self.timer.take())
                self.records.add(record)
                batch.costs_s.append(measurement.cost_s)
                self.on_event(self.trial_done(search, record))
                if self.out_of_time:
                    break

    def learn(self, batch: Prepared) -> None:
        """Tell the search what its batch cost."""
        search = batch.search
        search.tell(batch.rows[: len(batch.costs_s)], batch.costs_s)
        if (
            not search.allocation_state(self.budget.trials, 1).batch
            and search.planned == search.statistics.trials
        ):
            self.end(search)

    # -- events -----------------------------------------------------------------------------

    @property
    def wall_s(self) -> float:
        """Seconds since the run began."""
        return self.clock() - self.started_s

    @property
    def out_of_time(self) -> bool:
        """Whether the budget's seconds are over."""
        allowed_s = self.budget.allowed_s
        return allowed_s is not None and self.wall_s >= allowed_s

    def start(self, search: OperatorSearch) -> None:
        """Say, once, that an operator has its first turn."""
        if not search.started:
            search.started = True
            self.on_event(OperatorStarted(search.task.name, search.resumed, self.budget.trials))

    def trial_done(self, search: OperatorSearch, record: TuningRecord) -> TrialDone:
        """The event of a measured configuration."""
        statistics, wall_s, budget = search.statistics, self.wall_s, self.budget
        rate = sum(item.statistics.measured for item in self.searches) / max(wall_s, 1e-9)
        left_s = trials_left(self.searches, budget) / rate
        allowed_s = budget.allowed_s
        if allowed_s is not None:
            left_s = min(left_s, max(0.0, allowed_s - wall_s))
        return TrialDone(
            search.task.name, statistics.trials, budget.trials, record, statistics.best_gflops, rate, left_s
        )

    def end(self, search: OperatorSearch) -> None:
        """Say, once, that an operator gets no more trials."""
        self.start(search)
        if not search.ended:
            search.ended = True
            self.on_event(OperatorDone(search.task.name, search.statistics.result()))

    def ended(self) -> list[TuningResult]:
        """What is known about every operator now."""
        for search in self.searches:
            self.end(search)
        return [search.statistics.result() for search in self.searches]


def _nothing_said(name: str, failure: MeasureFailure) -> UnfitBoard:
    return UnfitBoard(
        f"a program for {name} could not be measured, and not by its own fault: {failure.kind}: "
        f"{failure.text}; it is not recorded, what was measured before is kept; `toolkit doctor` checks the "
        "board"
    )
