"""A set of operators tuned by one method: the learned search, reuse with bridges, or a baseline of it.

Every method has records of its own, so that its time can be told. An operator that Selective Tuning searches
is searched by the same steps as in the run that searches all of them: its records are taken from there.
`rounds` reuses no other operator: each has the rounds of Algorithm 1 around its own untuned program. The
second or two that a plan of reuse takes are not in the times.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, get_args

import numpy as np

from benchmarks.reuse.selective import TOP, Replay, representatives
from benchmarks.reuse.sets import SetOperator
from boards.description import Board
from boards.target import Target
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.explore.proposer import Proposer
from toolkit.explore.search import SearchOptions
from toolkit.explore.space import Identify
from toolkit.measure.builder import Builder
from toolkit.measure.session import Session
from toolkit.model.graph import Graph
from toolkit.model.tasks import TuningTask
from toolkit.model_job.context import Bench, OpenTask, open_task
from toolkit.model_job.options import TuneOptions
from toolkit.model_job.reuse import tune_by_reuse
from toolkit.records import Records
from toolkit.records.lines import SPENT
from toolkit.reuse.plan.bridges import Hops
from toolkit.reuse.plan.reuse_plan import ReuseOptions
from toolkit.reuse.rounds.proposer import ReuseProposer
from toolkit.reuse.rounds.rounds import Program
from toolkit.tuning.algorithm import TuningOptions, tune_all
from toolkit.tuning.progress import Budget, silent
from toolkit.tuning.time_breakdown import Accounts

SEED: Final = 0
SEARCH: Final = "search"
SELECTIVE: Final = "selective"
ROUNDS: Final = "rounds"
HOPS: Final[tuple[Hops, ...]] = get_args(Hops)
REUSE: Final = "reuse-"
METHODS: Final = (SEARCH, *(REUSE + hops for hops in HOPS), ROUNDS, SELECTIVE)


@dataclass(frozen=True, slots=True)
class Machine:
    """Where sets are tuned and where records are kept; `trials` of each searched operator, `roots` of those
    that a reuse searches, `worth` of a per cent of latency in trials (toolkit.reuse.plan.reuse_plan)."""

    board: Board
    target: Target
    session: Session
    builder: Builder
    work: Path
    trials: int
    roots: int
    worth: float


@dataclass(frozen=True, slots=True)
class Run:
    """What a method found: the fastest configuration of each operator, its trials, and the seconds of wall
    time that all of them took, bridges included."""

    winners: tuple[Configuration, ...]
    trials: int
    seconds: float


def run(machine: Machine, name: str, operators: Sequence[SetOperator], method: str) -> Run:
    """Tune by a method what its records do not have yet. The search must have run before any other one."""
    if method == SEARCH:
        with _opened(machine, name, operators, method) as bench:
            _search(bench, range(len(bench.tasks)), machine.trials)
            return _outcome(bench)
    if method == SELECTIVE:
        reused = representatives([item.loops for item in operators])
        tuned = [position for position, other in enumerate(reused) if other is None]
        _take_over(machine, name, operators, tuned)
        with _opened(machine, name, operators, method) as bench:
            _search(bench, tuned, machine.trials)
            _replay(bench, reused)
            return _outcome(bench)
    if method == ROUNDS:
        with _opened(machine, name, operators, method) as bench:
            _around_untuned(bench)
            return _outcome(bench)
    hops = next(item for item in HOPS if method == REUSE + item)
    options = ReuseOptions(machine.roots, machine.worth, hops)
    with _opened(machine, name, operators, method) as bench:
        tune_by_reuse(bench, options, None, silent)
        return _outcome(bench)


def open_tasks(
    machine: Machine, operators: Sequence[SetOperator], records: Records, options: TuneOptions
) -> tuple[OpenTask, ...]:
    """The operators of a set as the tasks of a model."""
    opened = []
    for number, item in enumerate(operators):
        operator = item.operator
        task = TuningTask(operator, operator.key, item.count, (f"{operator.name}-{number}",), operator.flops)
        opened.append(
            open_task(task, machine.board, machine.target, machine.builder, machine.session, records, options)
        )
    return tuple(opened)


@contextmanager
def _opened(machine: Machine, name: str, operators: Sequence[SetOperator], method: str) -> Iterator[Bench]:
    """The set as a model whose operators do not depend on each other."""
    search = SearchOptions() if method.startswith(REUSE) else SearchOptions(first="random")  # as in the paper
    options = TuneOptions(tuning=TuningOptions(search, seed=SEED))
    graph = Graph(name, (), {}, (), ())
    with Records(_path(machine, name, method)) as records:
        yield Bench(
            board=machine.board,
            target=machine.target,
            model=graph,
            graph=graph,
            tasks=open_tasks(machine, operators, records, options),
            session=machine.session,
            builder=machine.builder,
            records=records,
            options=options,
            on_event=lambda _: None,
            started_s=time.monotonic(),
        )


def _path(machine: Machine, name: str, method: str) -> Path:
    label = f"{method}-{machine.trials}"
    if method.startswith(REUSE):
        label += f"-{machine.roots}-{machine.worth:g}"
    return machine.work / f"{name}-{label}.db"


def _take_over(machine: Machine, name: str, operators: Sequence[SetOperator], tuned: Sequence[int]) -> None:
    """The records of what Selective Tuning searches, as the search of all operators made them."""
    with (
        _opened(machine, name, operators, SEARCH) as searched,
        Records(_path(machine, name, SELECTIVE)) as records,
    ):
        for position in tuned:
            job = searched.tasks[position].job
            if not records.for_key(job.key):
                records.add(*searched.records.for_key(job.key))


def _search(bench: Bench, positions: Sequence[int], trials: int) -> None:
    chosen = [bench.tasks[position] for position in positions]
    jobs = [(item.job, item.runner) for item in chosen]
    tune_all(jobs, bench.records, Budget(trials), options=bench.tuning)


def _around_untuned(bench: Bench) -> None:
    jobs = []
    for item in bench.tasks:
        begin = functools.partial(_rounds_alone, item.programs.space, item.job.programs)
        jobs.append((replace(item.job, begin=begin), item.runner))
    tune_all(jobs, bench.records, Budget(), options=bench.tuning)


def _replay(bench: Bench, reused: Sequence[int | None]) -> None:
    """Measure for each operator the best programs of the one whose programs it replays."""
    jobs = []
    for item, source in zip(bench.tasks, reused, strict=True):
        if source is not None:
            programs = _best_programs(bench, bench.tasks[source])
            begin = functools.partial(_replaying, item.programs.space, programs)
            job = replace(item.job, begin=begin, reused=bench.tasks[source].job.key.operator_key)
            jobs.append((job, item.runner))
    tune_all(jobs, bench.records, Budget(), options=bench.tuning)


def _best_programs(bench: Bench, item: OpenTask) -> list[Program]:
    """The TOP fastest recorded programs of an operator."""
    space = item.programs.space
    worked = [record for record in bench.records.for_key(item.job.key) if record.cost_s is not None]
    worked.sort(key=lambda record: record.cost_s or np.inf)
    return [Program(space, space.parse(record.configuration)) for record in worked[:TOP]]


def _rounds_alone(space: ScheduleSpace, programs: Identify | None, _: Proposer) -> Proposer:
    return ReuseProposer(space, None, programs=programs)


def _replaying(space: ScheduleSpace, programs: Sequence[Program], _: Proposer) -> Proposer:
    return Replay(space, programs)


def _outcome(bench: Bench) -> Run:
    winners = []
    for item in bench.tasks:
        best, space = bench.records.best(item.job.key), item.programs.space
        winners.append(space.default() if best is None else space.parse(best.configuration))
    spent = [Accounts.of(record.facts.get(SPENT, {})).wall_s for record in bench.records]
    return Run(tuple(winners), len(spent), sum(spent))
