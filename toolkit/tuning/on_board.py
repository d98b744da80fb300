"""Operators on a board: their tasks, the runners that measure them, and a tuning run of several.

`open_task` needs no board at hand. `OpenBoard` is a connected board with its compiler and records, and the
one place where runners are made. `tune_on_board` tunes operators there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import NamedTuple

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.description import Board
from boards.target import Target
from cross.errors import CrossError
from cross.expression.language.description import to_json
from cross.expression.language.operator import Operator
from cross.loopnest.program import Programs
from cross.schedule.choose import space_of
from cross.schedule.space import ScheduleSpace
from toolkit.explore.names import FIRST, TUNERS
from toolkit.explore.neighbourhood.cpu import untuned_rounds
from toolkit.explore.proposer import Proposer
from toolkit.explore.rounds import RoundsProposer
from toolkit.explore.search import SearchOptions, search_features
from toolkit.explore.space import Batch, Identify, Ids
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions, same_program
from toolkit.measure.session import Session
from toolkit.records import RecordKey, Records
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget, Listener, TuningResult, silent
from toolkit.tuning.task import OperatorTask
from toolkit.version import TOOL_VERSION

GIVE_WAY = 5
"""Niceness of compilers beside a board that must not wait for the process that talks with it."""


def record_key(space: ScheduleSpace, board: Board) -> RecordKey:
    """Where the records of a space on a board are kept.

    The board's name is part of it: an emulated chip and the real one run the same code in different times.
    """
    return RecordKey(space.operator.key, target_key(board.name, space.target), space.key, TOOL_VERSION)


def target_key(board_name: str, target: Target) -> str:
    """What records call a target of a board."""
    return f"{board_name}:{target.key}"


def open_task(
    name: str,
    operator: Operator,
    board: Board,
    target: Target,
    *,
    winograd: bool = True,
    weight: float = 1.0,
    search: SearchOptions | None = None,
) -> OperatorTask:
    """An operator as a task for a target of a board.

    Without `winograd`, convolutions are computed directly only. `weight`: how often a model computes it.
    `search` decides which features its cost model gets, and where it begins.
    """
    search = search or SearchOptions()
    space = space_of(operator, target, winograd=winograd)
    programs = Programs(space)
    identify = _ByProgram(programs)
    return OperatorTask(
        name=name,
        flops=operator.flops,
        space=space,
        features=search_features(search, programs),
        key=record_key(space, board),
        weight=weight,
        kind=operator.name,
        description=to_json(operator),
        identify=identify,
        rounds=around_untuned(space, identify) if begins_untuned(search, target) else None,
        programs=programs,
    )


class _ByProgram:
    """An Identify for which configurations of one program are the same; one of none is like no other."""

    def __init__(self, programs: Programs) -> None:
        self._programs = programs
        self._known: dict[int, int] = {}

    def __call__(self, rows: Batch) -> Ids:
        keys = self._programs.space.ids(rows).tolist()
        for key, row in zip(keys, rows, strict=True):
            if key not in self._known:
                self._known[key] = self._identified(row)
        return np.array([self._known[key] for key in keys], np.uint64)

    def _identified(self, row: NDArray[np.int64]) -> int:
        try:
            number = hash(same_program(self._programs.nest(self._programs.space.configuration(row))))
        except CrossError:
            number = hash(row.tobytes())
        return number & 0xFFFF_FFFF_FFFF_FFFF


def begins_untuned(search: SearchOptions, target: Target) -> bool:
    """Whether a search begins with rounds around the operator's own untuned program.

    That one is near the best on a CPU: with few trials its neighbours are faster than what begins at random
    finds, most of all for depthwise convolutions (benchmarks.first_trials). A prior knows better.
    """
    informed = search.tuner != TUNERS[0] or search.prior is not None
    return search.first == FIRST[0] and target.kind == "cpu" and not informed


def around_untuned(
    space: ScheduleSpace, programs: Identify | None, *, waits: bool = False
) -> Callable[[], Proposer]:
    """Begins the rounds around the untuned programs; other arguments: RoundsProposer."""
    rounds = functools.partial(untuned_rounds, space)
    return functools.partial(RoundsProposer, space, rounds, programs, waits=waits)


class OpenTask(NamedTuple):
    """A task and the runner that measures it, as `tune_all` takes them."""

    task: OperatorTask
    runner: LiveRunner


class OpenBoard(msgspec.Struct, frozen=True, kw_only=True):
    """A connected board: what it takes to tune operators for one of its targets.

    `timing` None: as the board's file says.
    """

    board: Board
    target: Target
    session: Session
    builder: Builder
    records: Records
    tuning: TuningOptions
    timing: RunnerOptions | None = None
    winograd: bool = True

    def open(self, name: str, operator: Operator, weight: float = 1.0) -> OpenTask:
        """An operator's task, and a runner that knows what the records hold of it."""
        task = open_task(
            name, operator, self.board, self.target,
            winograd=self.winograd, weight=weight, search=self.tuning.search,
        )  # fmt: skip
        recorded = [record.measurement for record in self.records.for_key(task.key)]
        timing = self.timing or RunnerOptions.of(self.board.measure)
        runner = LiveRunner(
            task.programs, self.builder, self.session, timing, seed=self.tuning.seed, recorded=recorded
        )
        return OpenTask(task, runner)


def overlapping(board: Board, tuning: TuningOptions) -> TuningOptions:
    """The options with compiling beside measuring, unless kernels run on the cores that also compile."""
    return replace(tuning, overlap=tuning.overlap or board.link.has_address)


def builder_for(target: Target, workers: int, tuning: TuningOptions) -> Builder:
    """Compiler processes, which give way to the process that talks with the board where both run at once."""
    return Builder(target, workers=workers, nice=GIVE_WAY if tuning.overlap else 0)


class BoardOptions(msgspec.Struct, frozen=True):
    """How operators are tuned on a board; None: as its file says. `workers` compiler processes.

    Without `winograd`, convolutions are computed directly only.
    """

    target: Target | None = None
    timing: RunnerOptions | None = None
    workers: int = 2
    tuning: TuningOptions = msgspec.field(default_factory=TuningOptions)
    winograd: bool = True


def tune_on_board(
    operators: Iterable[tuple[str, Operator]],
    board: Board,
    session: Session,
    records: Records,
    budget: Budget,
    *,
    options: BoardOptions | None = None,
    on_event: Listener = silent,
) -> list[TuningResult]:
    """Tune named operators together on the board of an open session.

    Compiling overlaps with measuring unless the board is this machine. Raises what `tune_all` raises.
    """
    options = options or BoardOptions()
    target, tuning = options.target or board.target(), overlapping(board, options.tuning)
    with builder_for(target, options.workers, tuning) as builder:
        opened = OpenBoard(
            board=board,
            target=target,
            session=session,
            builder=builder,
            records=records,
            tuning=tuning,
            timing=options.timing,
            winograd=options.winograd,
        )
        tasks = (opened.open(name, operator) for name, operator in operators)
        return tune_all(tasks, records, budget, options=tuning, on_event=on_event)
