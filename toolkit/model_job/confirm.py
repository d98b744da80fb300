"""The last word on an operator: its fastest few configurations and the default one, measured again.

During the search every candidate is timed once, at another moment: while something else ran on the board, a
good one may have looked bad, the default included. Here the finalists are timed in turn, forwards and
backwards. The fastest time ever seen of each counts, because a disturbance only ever adds time. These
measurements are not records: they would be trials of a resumed run.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from boards.description import Board
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.measure.live import RunnerOptions
from toolkit.measure.runner import Runner
from toolkit.records import RecordKey, Records

FINALISTS = 3
REPEATS = 5


class Winner(msgspec.Struct, frozen=True):
    """The configuration that goes into the bundle, its seconds and the default one's; None: not measured."""

    configuration: Configuration
    seconds: float | None
    default_s: float | None


def finalists(
    space: ScheduleSpace, records: Records, key: RecordKey, count: int
) -> dict[Configuration, float]:
    """The `count` fastest recorded configurations and the default one, with their recorded seconds.

    Empty where nothing ran without failure; infinite seconds for a default that never did.
    """
    recorded_s: dict[Configuration, float] = {}
    for record in records.for_key(key):
        if record.cost_s is not None:
            configuration = space.parse(record.configuration)
            recorded_s[configuration] = min(record.cost_s, recorded_s.get(configuration, np.inf))
    if not recorded_s:
        return {}
    fastest = sorted(recorded_s, key=lambda item: recorded_s[item])[:count]
    return {item: recorded_s.get(item, np.inf) for item in dict.fromkeys([*fastest, space.default()])}


def confirm(
    space: ScheduleSpace,
    contenders: Mapping[Configuration, float],
    make_runner: Callable[[], Runner],
    *,
    rounds: int = 2,
) -> Winner:
    """Measure the contenders in turn, each round with a new runner, which has measured nothing yet.

    Without rounds, and where there is nothing to choose between, the recorded times decide.
    """
    default = space.default()
    if not contenders:
        return Winner(default, None, None)
    best_s = dict(contenders)
    for number in range(rounds if len(contenders) > 1 else 0):
        order = list(contenders)[:: -1 if number % 2 else 1]
        measurements = make_runner().prepare(space.batch(order))
        for configuration, measurement in zip(order, measurements, strict=True):
            best_s[configuration] = float(np.fmin(best_s[configuration], measurement.cost_s))
    winner = min(best_s, key=lambda item: best_s[item])
    default_s = best_s.get(default, np.inf)
    return Winner(winner, best_s[winner], default_s if np.isfinite(default_s) else None)


def confirming(board: Board) -> RunnerOptions:
    """How the finalists are timed: with more repeats than a candidate, and none given up early."""
    options = RunnerOptions.of(board.measure)
    if board.emulated:
        return options
    return replace(options, timing=dataclasses.replace(options.timing, repeat=REPEATS), beaten=0.0)
