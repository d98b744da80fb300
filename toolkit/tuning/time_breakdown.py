"""Where the time of a tuning run goes: every second of it is counted once.

`ActivityTimer.during` marks an activity, from any thread. Time in which several activities run counts for the
first of them in the order of `Activity`: measuring, then compiling, then searching.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from enum import IntEnum
from typing import Any

import msgspec
from msgspec.structs import asdict

from toolkit.records import TuningRecord
from toolkit.records.lines import SPENT

Clock = Callable[[], float]


class Activity(IntEnum):
    """What a tuner does; while several run, the time counts for the lowest."""

    MEASURE = 0
    BUILD = 1
    PROPOSE = 2


class TimeBreakdown(msgspec.Struct, frozen=True):
    """Seconds of a run, or of a part of it.

    `wall_s` is the sum of `measure_s` (for the trials of batches: waiting for the board's answers and storing
    them), `build_s` (for the compiler, while nothing was measured), `propose_s` (for the search alone:
    features, prediction, refit, annealing) and of what is left. `device_s`, a part of `measure_s`: how long
    the board was busy by its own clock. `hidden_s`: building and proposing that cost no time, because
    something else went on.
    """

    wall_s: float = 0.0
    device_s: float = 0.0
    measure_s: float = 0.0
    build_s: float = 0.0
    propose_s: float = 0.0
    hidden_s: float = 0.0

    def __add__(self, other: TimeBreakdown) -> TimeBreakdown:
        return TimeBreakdown(*(getattr(self, name) + getattr(other, name) for name in self.__struct_fields__))

    @property
    def busy_share(self) -> float:
        """Part of the time during which the board was measuring."""
        return self.device_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def idle_share(self) -> float:
        """Part of the time during which the board had nothing to do."""
        return 1.0 - self.busy_share if self.wall_s > 0 else 0.0

    @property
    def compile_share(self) -> float:
        """Part of the time during which the board waited for the compiler."""
        return self.build_s / self.wall_s if self.wall_s > 0 else 0.0

    @property
    def overhead_share(self) -> float:
        """Part of the time that neither the board nor the compiler used: the search and everything else."""
        return max(0.0, self.idle_share - self.compile_share)

    def plain(self) -> dict[str, float]:
        """Seconds by name, rounded to microseconds, for JSON."""
        return {name: round(value, 6) for name, value in asdict(self).items()}

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> TimeBreakdown:
        """The breakdown that `plain` wrote; unknown names are ignored."""
        return cls(**{name: float(plain.get(name, 0.0)) for name in cls.__struct_fields__})


def trial_time(record: TuningRecord) -> TimeBreakdown:
    """The time of a recorded trial; zeros where the record does not say."""
    return TimeBreakdown.of(record.facts.get(SPENT, {}))


class ActivityTimer:
    """Splits the time of one run into a TimeBreakdown. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._running = [0] * len(Activity)
        self._exposed_s = [0.0] * len(Activity)
        self._hidden_s = self._device_s = self._wall_s = 0.0
        self._last_s = clock()

    @contextmanager
    def during(self, activity: Activity) -> Iterator[None]:
        """Count the time of this block as `activity`."""
        self._change(activity, 1)
        try:
            yield
        finally:
            self._change(activity, -1)

    def device(self, seconds: float) -> None:
        """Add seconds during which the board was busy, by its own clock."""
        with self._lock:
            self._device_s += seconds

    def take(self) -> TimeBreakdown:
        """The time since the last call of this, or since the beginning."""
        with self._lock:
            self._advance()
            measure_s, build_s, propose_s = self._exposed_s
            taken = TimeBreakdown(self._wall_s, self._device_s, measure_s, build_s, propose_s, self._hidden_s)
            self._exposed_s = [0.0] * len(Activity)
            self._hidden_s = self._device_s = self._wall_s = 0.0
        return taken

    def _change(self, activity: Activity, by: int) -> None:
        with self._lock:
            self._advance()
            self._running[activity] += by

    def _advance(self) -> None:
        now_s = self._clock()
        passed_s, self._last_s = now_s - self._last_s, now_s
        self._wall_s += passed_s
        running = [activity for activity in Activity if self._running[activity]]
        for activity in running[:1]:
            self._exposed_s[activity] += passed_s
        self._hidden_s += passed_s * len(running[1:])
