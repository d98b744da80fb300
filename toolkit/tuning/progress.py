"""What a tuning run reports while it runs and when it ends: frozen values, for a display or a log."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import msgspec

from toolkit.errors import InputError
from toolkit.measure.measurement import GIVEN_UP_S, IDENTICAL_CODE
from toolkit.records import TuningRecord
from toolkit.records.failures import FailureReason, failure_reasons
from toolkit.records.lines import SPENT
from toolkit.tuning.time_breakdown import TimeBreakdown, trial_time


class Budget(msgspec.Struct, frozen=True):
    """When a tuning run ends; None: no such limit.

    `trials` measured configurations of each operator at most, `total` of all together, `seconds` for all
    together, or a function that says, again and again, how many they are now. Raises InputError for less
    than 0. Configurations that an earlier
    run recorded count as trials; its seconds do not.
    """

    trials: int | None = None
    seconds: float | Callable[[], float] | None = None
    total: int | None = None

    def __post_init__(self) -> None:
        for name in ("trials", "seconds", "total"):
            value = getattr(self, name)
            if value is not None and not callable(value) and not value >= 0:
                raise InputError(f"Budget: expected {name} of at least 0, found {value}")

    @property
    def allowed_s(self) -> float | None:
        """The seconds that the run may take, at this moment; None: any."""
        return self.seconds() if callable(self.seconds) else self.seconds


class OperatorStarted(msgspec.Struct, frozen=True):
    """An operator has its first turn; `resumed` of its `trials` (None: no limit) are recorded already."""

    operator: str
    resumed: int
    trials: int | None


class TrialDone(msgspec.Struct, frozen=True):
    """One configuration was measured and stored: `trial` of the operator's `trials` (None: no limit).

    Rate and time left are the whole run's; `time_left_s` is infinite where no limit is known.
    """

    operator: str
    trial: int
    trials: int | None
    record: TuningRecord
    best_gflops: float
    trials_per_s: float
    time_left_s: float


class TuningResult(msgspec.Struct, frozen=True):
    """What is known about an operator at the end of a run.

    `default` is the untuned schedule's record, `best` the fastest; None where none of that kind ran without
    failure. `trials` and `failures` count all records, `measured` those of this run, whose time is in
    `accounts`; `spent` is the time of all records that know theirs. `identical` records took over the
    measurement of a candidate with the same machine code; `given_up` ended early, clearly beaten.
    """

    operator: str
    best: TuningRecord | None
    default: TuningRecord | None
    flops: int
    trials: int
    reasons: tuple[FailureReason, ...]
    measured: int
    accounts: TimeBreakdown
    spent: TimeBreakdown
    identical: int = 0
    given_up: int = 0

    @property
    def failures(self) -> int:
        """Trials that failed, for whichever of the reasons."""
        return sum(reason.count for reason in self.reasons)

    @property
    def best_gflops(self) -> float:
        """Throughput of the fastest record, 0 when there is none."""
        return _gflops(self.flops, self.best)

    @property
    def default_gflops(self) -> float:
        """Throughput of the untuned schedule, 0 when it has no time."""
        return _gflops(self.flops, self.default)


class OperatorDone(msgspec.Struct, frozen=True):
    """No more trials of an operator in this run."""

    operator: str
    result: TuningResult


Event = OperatorStarted | TrialDone | OperatorDone
Listener = Callable[[Event], None]


def silent(_: Event) -> None:
    """A listener that ignores every event."""


class OperatorStatistics:
    """What is known about one operator: counts, times, the best so far; `untuned` is the default schedule."""

    def __init__(self, operator: str, flops: int, *, untuned: dict[str, Any]) -> None:
        self.operator = operator
        self.flops = flops
        self.best: TuningRecord | None = None
        self.default: TuningRecord | None = None
        self.measured = self.identical = self.given_up = 0
        self._failed: list[TuningRecord] = []
        self.costs_s: list[float] = []  # of all trials in order, NaN for failures
        self.accounts = TimeBreakdown()
        self.spent = TimeBreakdown()
        self._untuned = untuned
        self._timed = 0

    @property
    def trials(self) -> int:
        """Records of this run and of earlier ones."""
        return len(self.costs_s)

    @property
    def trial_s(self) -> float:
        """Seconds that one trial takes, its share of proposing and building included; 0 when unknown."""
        return self.spent.wall_s / self._timed if self._timed else 0.0

    @property
    def answer_s(self) -> float:
        """Seconds of one trial in which the board's answer is waited for; 0 when unknown."""
        return self.spent.measure_s / self._timed if self._timed else 0.0

    @property
    def best_gflops(self) -> float:
        """Throughput of the fastest record, 0 when there is none."""
        return _gflops(self.flops, self.best)

    def done(self, record: TuningRecord) -> None:
        """Count a record of this run."""
        self.note(record)
        self.measured += 1
        self.accounts += trial_time(record)

    def note(self, record: TuningRecord) -> None:
        """Count a record of this run or of an earlier one."""
        cost_s = record.cost_s
        self.costs_s.append(math.nan if cost_s is None else cost_s)
        if SPENT in record.facts:
            self.spent += trial_time(record)
            self._timed += 1
        self.identical += IDENTICAL_CODE in record.facts
        self.given_up += GIVEN_UP_S in record.facts
        if cost_s is None:
            self._failed.append(record)
            return
        if self.best is None or self.best.cost_s is None or cost_s < self.best.cost_s:
            self.best = record
        if record.configuration == self._untuned:
            self.default = record

    def result(self) -> TuningResult:
        """The statistics as a frozen value."""
        return TuningResult(
            operator=self.operator,
            best=self.best,
            default=self.default,
            flops=self.flops,
            trials=self.trials,
            reasons=failure_reasons(self._failed),
            measured=self.measured,
            accounts=self.accounts,
            spent=self.spent,
            identical=self.identical,
            given_up=self.given_up,
        )


def _gflops(flops: int, record: TuningRecord | None) -> float:
    cost_s = record.cost_s if record is not None else None
    return flops / cost_s / 1e9 if cost_s else 0.0
