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
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from msgspec.structs import replace

from benchmarks.harness.place import fastest
from benchmarks.reuse.pairs import Setting, around, wall_s
from benchmarks.reuse.selective import TOP, replaying, representatives
from benchmarks.reuse.sets import SetOperator
from cross.schedule.space import Configuration
from toolkit.explore.search import SearchOptions
from toolkit.model.graph import Graph
from toolkit.model_job.context import JobContext
from toolkit.model_job.options import TuneOptions
from toolkit.model_job.reuse import plan_model_reuse, tune_by_reuse
from toolkit.records import Records
from toolkit.reuse.names import Hops
from toolkit.reuse.plan.reuse_plan import ReuseOptions
from toolkit.reuse.rounds.program import Program
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.on_board import overlapping
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget, silent

SEED: Final = 0
SEARCH: Final = "search"
SELECTIVE: Final = "selective"
ROUNDS: Final = "rounds"
HOPS: Final[tuple[Hops, ...]] = get_args(Hops)
REUSE: Final = "reuse-"
METHODS: Final = (SEARCH, *(REUSE + hops for hops in HOPS), ROUNDS, SELECTIVE)


@dataclass(frozen=True, slots=True)
class Run:
    """What a method found: the fastest configuration of each operator, its trials, and the seconds of wall
    time that all of them took, bridges included."""

    winners: tuple[Configuration, ...]
    trials: int
    seconds: float


def run(setting: Setting, name: str, operators: Sequence[SetOperator], method: str) -> Run:
    """Tune by a method what its records do not have yet. The search must have run before any other one."""
    reused = representatives([item.loops for item in operators]) if method == SELECTIVE else []
    tuned = [position for position, other in enumerate(reused) if other is None]
    if method == SELECTIVE:
        _take_over(setting, name, operators, tuned)
    with _opened(setting, name, operators, method) as bench:
        if method == SEARCH:
            _search(bench, range(len(bench.tasks)), setting.trials)
        elif method == SELECTIVE:
            _search(bench, tuned, setting.trials)
            _replay(bench, reused)
        elif method == ROUNDS:
            jobs = [(around(task, None), runner) for task, runner in bench.tasks]
            tune_all(jobs, bench.records, Budget(), options=bench.tuning)
        else:
            hops = next(item for item in HOPS if method == REUSE + item)
            reuse = plan_model_reuse(bench, ReuseOptions(setting.roots, setting.worth, hops))
            tune_by_reuse(bench, reuse, None, silent)
        return _outcome(bench)


@contextmanager
def _opened(
    setting: Setting, name: str, operators: Sequence[SetOperator], method: str
) -> Iterator[JobContext]:
    """The set as a model whose operators do not depend on each other."""
    search = SearchOptions() if method.startswith(REUSE) else SearchOptions(first="random")  # as in the paper
    options = TuneOptions(tuning=TuningOptions(search, seed=SEED))
    graph = Graph(name, (), {}, (), ())
    with Records(_path(setting, name, method)) as records:
        job = JobContext(
            board=setting.place.board,
            target=setting.place.target,
            session=setting.place.session,
            builder=setting.place.builder,
            records=records,
            tuning=overlapping(setting.place.board, options.tuning),
            model=graph,
            graph=graph,
            options=options,
            on_event=lambda _: None,
            started_s=time.monotonic(),
        )
        named = [(f"{item.operator.name}-{number}", item) for number, item in enumerate(operators)]
        yield replace(job, tasks=tuple(job.open(name, item.operator, item.count) for name, item in named))


def _path(setting: Setting, name: str, method: str) -> Path:
    label = f"{method}-{setting.trials}"
    if method.startswith(REUSE):
        label += f"-{setting.roots}-{setting.worth:g}"
    return setting.work / f"{name}-{label}.db"


def _take_over(setting: Setting, name: str, operators: Sequence[SetOperator], tuned: Sequence[int]) -> None:
    """The records of what Selective Tuning searches, as the search of all operators made them."""
    with (
        _opened(setting, name, operators, SEARCH) as searched,
        Records(_path(setting, name, SELECTIVE)) as records,
    ):
        for position in tuned:
            key = searched.tasks[position].task.key
            if not records.for_key(key):
                records.add(*searched.records.for_key(key))


def _search(bench: JobContext, positions: Sequence[int], trials: int) -> None:
    chosen = [bench.tasks[position] for position in positions]
    tune_all(chosen, bench.records, Budget(trials), options=bench.tuning)


def _replay(bench: JobContext, reused: Sequence[int | None]) -> None:
    """Measure for each operator the best programs of the one whose programs it replays."""
    jobs = []
    for (task, runner), source in zip(bench.tasks, reused, strict=True):
        if source is not None:
            other = bench.tasks[source].task
            best = fastest(other.programs.space, bench.records.for_key(other.key), TOP)
            programs = [Program(other.programs.space, configuration) for configuration in best]
            replay = functools.partial(replaying, task.programs.space, programs)
            key = other.key.operator_key
            jobs.append((replace(task, rounds=replay, rounds_alone=True, reused=key), runner))
    tune_all(jobs, bench.records, Budget(), options=bench.tuning)


def _outcome(bench: JobContext) -> Run:
    winners = []
    for task, _ in bench.tasks:
        best, space = bench.records.best(task.key), task.programs.space
        winners.append(space.default() if best is None else space.parse(best.configuration))
    made = list(bench.records)
    return Run(tuple(winners), len(made), wall_s(made))
