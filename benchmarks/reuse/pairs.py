"""One pair: an operator tuned by search and by reuse of the other's program, and both winners timed again."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.harness.place import Place, fastest
from benchmarks.reuse.families import FAMILIES, draw
from cross.expression.language.operator import Operator
from cross.loopnest.program import Programs
from cross.schedule.space import Configuration
from toolkit.explore.search import SearchOptions
from toolkit.records import Records, TuningRecord
from toolkit.reuse.rounds.program import Program
from toolkit.reuse.rounds.proposer import reuse_proposer
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.on_board import OpenBoard, around_untuned
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget
from toolkit.tuning.task import OperatorTask
from toolkit.tuning.time_breakdown import trial_time

NEAR = 1.01  # of the best time
SEARCH = SearchOptions(first="random")  # as in the paper


@dataclass(frozen=True, slots=True)
class Setting:
    """Where pairs and sets are tuned, and where their records are kept; `trials` of each searched operator,
    `roots` of those that a reuse searches, `worth` of 1 % of latency in trials (ReuseOptions)."""

    place: Place
    work: Path
    trials: int
    roots: int = 0
    worth: float = 0.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """A pair's result: seconds per call of both winners, and what finding them took.

    `searched_*` counts up to the trial in which the search found its best of all ("Ansor best" in the paper),
    `near_*` up to the one in which it came within NEAR of that, `reused_*` the whole reuse. Seconds of wall
    time, everything included.
    """

    family: str
    seed: int
    searched_best_s: float
    reused_best_s: float
    untuned_s: float
    searched_trials: int
    near_trials: int
    reused_trials: int
    searched_s: float
    near_s: float
    reused_s: float

    @property
    def throughput(self) -> float:
        """Speed of the reuse's program as a part of the search's."""
        return self.searched_best_s / self.reused_best_s

    @property
    def speedup(self) -> float:
        """How much sooner the reuse was done than the search had found its best."""
        return self.searched_s / self.reused_s

    @property
    def near_speedup(self) -> float:
        """How much sooner the reuse was done than the search was near its best."""
        return self.near_s / self.reused_s


def measure(setting: Setting, family: str, seed: int) -> Outcome:
    """Tune what is missing, then time the winners. Pairs 2 n and 2 n + 1 have the same two operators, which
    are searched once."""
    number, turned = divmod(seed, 2)
    both = list(zip(("large", "small"), draw(family, number), strict=True))
    searched, source = (
        _tuned(setting, f"{family}-{number}-{size}", operator, family, number)
        for size, operator in (reversed(both) if turned else both)
    )
    operator = searched.programs.space.operator
    reused = _tuned(setting, f"{family}-{seed}-reused", operator, family, seed, reuse=source)
    winners = [searched.fastest, reused.fastest, searched.programs.space.default()]
    again_s = setting.place.in_turn(searched.programs, winners)
    found_after, found_s = _until_within(1.0, searched.records)
    near_after, near_s = _until_within(NEAR, searched.records)
    return Outcome(
        family=family,
        seed=seed,
        searched_best_s=again_s[0],
        reused_best_s=again_s[1],
        untuned_s=again_s[2],
        searched_trials=found_after,
        near_trials=near_after,
        reused_trials=len(reused.records),
        searched_s=found_s,
        near_s=near_s,
        reused_s=wall_s(reused.records),
    )


@dataclass(frozen=True, slots=True)
class _Tuned:
    programs: Programs
    records: list[TuningRecord]

    @property
    def fastest(self) -> Configuration:
        return fastest(self.programs.space, self.records)[0]


def _tuned(
    setting: Setting, name: str, operator: Operator, family: str, seed: int, reuse: _Tuned | None = None
) -> _Tuned:
    """The records of one run, with what is left of it measured now."""
    place = setting.place
    with Records(setting.work / f"{name}.db") as records:
        opened = OpenBoard(
            board=place.board,
            target=place.target,
            session=place.session,
            builder=place.builder,
            records=records,
            tuning=TuningOptions(SEARCH, seed=seed),
            winograd=FAMILIES[family].winograd,
        )
        task, runner = opened.open(name, operator)
        if reuse is not None:
            task = around(task, Program(reuse.programs.space, reuse.fastest))
        tune_all([(task, runner)], records, Budget(setting.trials), options=opened.tuning)
        return _Tuned(task.programs, records.for_key(task.key))


def around(task: OperatorTask, program: Program | None) -> OperatorTask:
    """The task, searched by the rounds of reuse around a program alone; None: around its own untuned one."""
    space = task.programs.space
    rounds = (
        around_untuned(space, task.identify, waits=True)
        if program is None
        else functools.partial(reuse_proposer, space, program, task.identify)
    )
    return replace(task, rounds=rounds, rounds_alone=True)


def _until_within(factor: float, records: Sequence[TuningRecord]) -> tuple[int, float]:
    """Trials and seconds until the search came within a factor of the best that it ever found."""
    costs_s = np.array([np.inf if record.cost_s is None else record.cost_s for record in records])
    trials = int(np.flatnonzero(costs_s <= factor * costs_s.min())[0]) + 1
    return trials, wall_s(records[:trials])


def wall_s(records: Sequence[TuningRecord]) -> float:
    """Seconds that all of these trials took, everything included."""
    return sum(trial_time(record).wall_s for record in records)
