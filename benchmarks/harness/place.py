"""Where a study measures: a board, its session and a compiler. Tuning there, and timing winners in turn."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

import numpy as np
from msgspec.structs import replace

from boards.board import load
from boards.description import Board
from boards.target import Target
from cross.expression import Operator
from cross.loopnest.program import Programs
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.measure.builder import Builder
from toolkit.measure.fit import fitted
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.session import Session, open_session
from toolkit.model_job.confirm import confirming
from toolkit.model_job.options import TuningPlanned
from toolkit.records import Records, TuningRecord
from toolkit.report.tune_display import TuneDisplay
from toolkit.tuning.on_board import BoardOptions, open_task, tune_on_board
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget, TuningResult

WAIT_S: Final = 1800.0  # for whoever measures on the board now
ROUNDS: Final = 6
HOST: Final = "host"
LEVELS: Final = ("x86-64-v2", "x86-64-v3")  # that this machine can be measured at


def with_cores(target: Target, count: int) -> Target:
    """The target on its first cores."""
    narrowed: Target = replace(target, cores=target.cores[:count])
    return narrowed


def level_of(board: str) -> str:
    """The level of this machine that "host:x86-64-v3" names; "" for this machine as it is.

    Raises:
        ValueError: another board.
    """
    host, _, level = board.partition(":")
    if host != HOST or (level and level not in LEVELS):
        known = ", ".join(f"{HOST}:{name}" for name in LEVELS)
        raise ValueError(f"expected this machine, {HOST} or one of {known}; found the board {board}")
    return level


def board_with(threads: int, name: str = HOST) -> tuple[Board, Target]:
    """A board and a target on the first cores of its fastest CPU cluster.

    Raises:
        ValueError: it has fewer cores, or no CPU.
        BoardError: there is no such board.
    """
    board = load(name)
    cpus = [target for target in board.targets if target.kind == "cpu"]
    target = max(cpus, key=lambda item: item.estimated_peak_gflops, default=None)
    if target is None or not 1 <= threads <= target.threads:
        most = target.threads if target else 0
        raise ValueError(f"board {name}: expected 1 to {most} CPU threads, found {threads}")
    return board, with_cores(target, threads)


@dataclass(frozen=True, slots=True)
class Place:
    """Code is made for `target` by `builder` and runs on `board` in `session`."""

    board: Board
    target: Target
    session: Session
    builder: Builder

    def tuned(
        self,
        operators: Sequence[tuple[str, Operator]],
        records: Records,
        budget: Budget,
        tuning: TuningOptions | None = None,
        *,
        winograd: bool = True,
        timing: RunnerOptions | None = None,
    ) -> list[TuningResult]:
        """Spend what is left of the trials of named operators together, shown on standard error.

        Raises ToolkitError; what was measured is kept.
        """
        workers = compilers(self.board)
        options = BoardOptions(self.target, timing, workers, tuning or TuningOptions(), winograd)
        planned = len(operators) * budget.trials if budget.trials else None
        with TuneDisplay() as display:
            names = tuple(name for name, _ in operators)
            display(TuningPlanned(names, planned, None, 0, self.board.emulated))
            return tune_on_board(
                operators, self.board, self.session, records, budget, options=options, on_event=display
            )

    def recorded(
        self, name: str, operator: Operator, records: Records
    ) -> tuple[Programs, list[TuningRecord]]:
        """An operator's programs here, and what is recorded of it in order."""
        task = open_task(name, operator, self.board, self.target)
        return task.programs, records.for_key(task.key)

    def in_turn(
        self,
        programs: Programs,
        configurations: Sequence[Configuration],
        timing: RunnerOptions | None = None,
        rounds: int = ROUNDS,
    ) -> list[float]:
        """The least seconds per call of each configuration, all timed in turn, forwards and backwards.

        A search's own times are of different moments, and the best of many is lucky. NaN: it never ran.
        """
        timing = timing or confirming(self.board)
        best_s = dict.fromkeys(configurations, np.nan)
        runner = LiveRunner(programs, self.builder, self.session, timing)
        for number in range(rounds):
            turn = list(best_s)[:: -1 if number % 2 else 1]
            measured = runner.afresh(timing).prepare(programs.space.batch(turn))
            for item, result in zip(turn, measured, strict=True):
                best_s[item] = float(np.fmin(best_s[item], result.cost_s))
        return [best_s[item] for item in configurations]


def compilers(board: Board) -> int:
    """Compiler processes: one for each core that measures, or for each of this machine's where a GPU does."""
    measures = board.target()
    return len(measures.cores) if measures.kind == "cpu" else os.cpu_count() or 1


@contextmanager
def open_place(board: Board, target: Target, holder: str) -> Iterator[Place]:
    """The board connected for the program `holder`, until the block ends; the target as it is found there.

    Raises ToolkitError.
    """
    with open_session(board, wait_s=WAIT_S, holder=f"benchmarks.{holder}") as session:
        target = fitted(session, target)
        with Builder(target, workers=compilers(board)) as builder:
            yield Place(board, target, session, builder)


def fastest(space: ScheduleSpace, records: Iterable[TuningRecord], count: int = 1) -> list[Configuration]:
    """The configurations of the `count` fastest records, the fastest first; none where nothing ran."""
    worked = sorted(
        (item for item in records if item.cost_s is not None), key=lambda item: item.cost_s or 0.0
    )
    return [space.parse(item.configuration) for item in worked[:count]]


def unbeaten(timing: RunnerOptions) -> RunnerOptions:
    """The same timing, in which no candidate is given up early."""
    return replace(timing, beaten=0.0)
