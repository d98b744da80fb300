"""What a tuning run reports while it runs and when it ends: frozen values, for a display or a log."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from toolkit.records import TuningRecord

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True)
class Budget:
    """When tuning one operator ends: after `trials` measured configurations, or after `seconds`, if given.

    Configurations that an earlier run recorded count as trials.
    """

    trials: int
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class OperatorStarted:
    """Tuning of an operator begins; `resumed` of its `trials` are recorded already."""

    operator: str
    resumed: int
    trials: int


@dataclass(frozen=True, slots=True)
class TrialDone:
    """One configuration was measured and stored. `trial` of `trials` are done; rates are of this run."""

    operator: str
    trial: int
    trials: int
    record: TuningRecord
    best_gflops: float
    trials_per_s: float
    time_left_s: float


@dataclass(frozen=True, slots=True)
class TuningResult:
    """What is known about an operator at the end of a run.

    `default` is the untuned schedule's record, `best` the fastest; None where none of that kind ran without
    failure. `trials` and `failures` count all records, `measured` those of this run, which took `wall_s`,
    during `device_s` of which the board was busy.
    """

    operator: str
    best: TuningRecord | None
    default: TuningRecord | None
    flops: int
    trials: int
    failures: int
    measured: int
    wall_s: float
    device_s: float

    @property
    def best_gflops(self) -> float:
        """Throughput of the fastest record, 0 when there is none."""
        return _gflops(self.flops, self.best)

    @property
    def default_gflops(self) -> float:
        """Throughput of the untuned schedule, 0 when it has no time."""
        return _gflops(self.flops, self.default)

    @property
    def busy_share(self) -> float:
        """Part of the run during which the board was measuring."""
        return self.device_s / self.wall_s if self.wall_s > 0 else 0.0


@dataclass(frozen=True, slots=True)
class OperatorDone:
    """Tuning of an operator has ended."""

    operator: str
    result: TuningResult


Event = OperatorStarted | TrialDone | OperatorDone
Listener = Callable[[Event], None]


def silent(_: Event) -> None:
    """A listener that ignores every event."""


class Progress:
    """The books of one operator's run: counts, times, the best so far; `untuned` is the default schedule."""

    def __init__(
        self,
        operator: str,
        flops: int,
        budget: Budget,
        *,
        untuned: dict[str, Any],
        clock: Clock = time.monotonic,
    ) -> None:
        self.operator = operator
        self.budget = budget
        self.untuned = untuned
        self.best: TuningRecord | None = None
        self.default: TuningRecord | None = None
        self.trials = self.failures = self.measured = 0
        self.device_s = 0.0
        self._flops = flops
        self._clock = clock
        self._started_s = clock()

    @property
    def wall_s(self) -> float:
        """Seconds since the run began."""
        return self._clock() - self._started_s

    @property
    def out_of_time(self) -> bool:
        """Whether the budget's seconds are over."""
        return self.budget.seconds is not None and self.wall_s >= self.budget.seconds

    def done(self, record: TuningRecord, device_s: float) -> TrialDone:
        """Count one measured configuration; returns its event."""
        self.note(record)
        self.measured += 1
        self.device_s += device_s
        rate = self.measured / max(self.wall_s, 1e-9)
        left_s = max(0, self.budget.trials - self.trials) / rate
        if self.budget.seconds is not None:
            left_s = min(left_s, max(0.0, self.budget.seconds - self.wall_s))
        return TrialDone(
            self.operator,
            self.trials,
            self.budget.trials,
            record,
            _gflops(self._flops, self.best),
            rate,
            left_s,
        )

    def result(self) -> TuningResult:
        """The state of the books."""
        return TuningResult(
            operator=self.operator,
            best=self.best,
            default=self.default,
            flops=self._flops,
            trials=self.trials,
            failures=self.failures,
            measured=self.measured,
            wall_s=self.wall_s,
            device_s=self.device_s,
        )

    def note(self, record: TuningRecord) -> None:
        """Count a record of this run or of an earlier one."""
        self.trials += 1
        cost_s = record.cost_s
        if cost_s is None:
            self.failures += 1
            return
        if self.best is None or self.best.cost_s is None or cost_s < self.best.cost_s:
            self.best = record
        if record.configuration == self.untuned:
            self.default = record


def _gflops(flops: int, record: TuningRecord | None) -> float:
    cost_s = record.cost_s if record is not None else None
    return flops / cost_s / 1e9 if cost_s else 0.0
