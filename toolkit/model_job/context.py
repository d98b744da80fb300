"""What the stages of a job share: the model, the board's session, the compiler, the records, the time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from boards.description import Board
from boards.target import Target
from cross.loopnest.program import Programs
from toolkit.explore.search import check_search
from toolkit.measure.builder import Builder
from toolkit.measure.fit import fitted
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.session import Session, open_session
from toolkit.model.graph import Graph
from toolkit.model.half_storage import stored_for
from toolkit.model.load import load_model
from toolkit.model.memory import check_memory
from toolkit.model.tasks import TuningTask, tasks
from toolkit.model_job.options import JobListener, StageDone, StageName, StageStarted, TuneOptions
from toolkit.records import Records
from toolkit.tuning.algorithm import TuningJob, TuningOptions
from toolkit.tuning.on_board import GIVE_WAY, open_job, shares_cores


@dataclass(frozen=True, slots=True)
class OpenTask:
    """A task with everything that it takes to tune it."""

    task: TuningTask
    job: TuningJob
    programs: Programs
    runner: LiveRunner


@dataclass(frozen=True, slots=True)
class Bench:
    """Everything that the stages work with; the job began at `started_s` by time.monotonic."""

    board: Board
    target: Target
    model: Graph
    """As it was imported; `graph` is stored as the target wants it."""
    graph: Graph
    tasks: tuple[OpenTask, ...]
    session: Session
    builder: Builder
    records: Records
    options: TuneOptions
    on_event: JobListener
    started_s: float

    @property
    def passed_s(self) -> float:
        """Seconds since the job began, and those that were over before."""
        return time.monotonic() - self.started_s + self.options.spent_s

    @property
    def tuning(self) -> TuningOptions:
        """As asked for; a board with cores of its own measures while the next batch is compiled."""
        tuning = self.options.tuning
        return replace(tuning, overlap=tuning.overlap or not shares_cores(self.board))


@dataclass(slots=True)
class Stage:
    """A stage while it runs; `summary` says in a few words what came of it."""

    summary: str = ""


@contextmanager
def stage(name: StageName, on_event: JobListener) -> Iterator[Stage]:
    """Say that a stage begins, and when it is over what came of it."""
    started_s = time.monotonic()
    on_event(StageStarted(name))
    running = Stage()
    yield running
    on_event(StageDone(name, time.monotonic() - started_s, running.summary))


def open_task(
    task: TuningTask,
    board: Board,
    target: Target,
    builder: Builder,
    session: Session,
    records: Records,
    options: TuneOptions,
) -> OpenTask:
    """A task with its space, and a runner that knows what is recorded."""
    job, programs = open_job(
        task.name,
        task.operator,
        board,
        target,
        winograd=options.winograd,
        weight=task.count,
        search=options.tuning.search,
    )
    recorded = [record.measurement for record in records.for_key(job.key)]
    timing, seed = RunnerOptions.of(board.measure), options.tuning.seed
    runner = LiveRunner(programs, builder, session, timing, seed=seed, recorded=recorded)
    return OpenTask(task, job, programs, runner)


@contextmanager
def open_bench(
    model: Path, board: Board, target: Target, options: TuneOptions, on_event: JobListener
) -> Iterator[Bench]:
    """The model imported and the board connected, until the block ends. Raises UnfitBoard, too."""
    started_s = time.monotonic()
    check_search(options.tuning.search)
    nice = 0 if shares_cores(board) else GIVE_WAY
    with stage("import", on_event) as running:
        imported = load_model(model, options.shapes)
        graph = stored_for(imported, target)
        check_memory(graph, board.memory_bytes, board.name)
        found = tasks(graph)
        running.summary = f"{len(graph.groups)} operators, {len(found)} distinct"
    with Records(options.records) as records, Builder(target, workers=options.workers, nice=nice) as builder:
        with stage("connect", on_event) as running:
            session = open_session(board, cache_dir=options.cache_dir, wait_s=options.wait_s)
            running.summary = f"{board.name}, {session.hello.machine}, Python {session.hello.python}"
        with session:
            target = fitted(session, target)
            opened = [open_task(task, board, target, builder, session, records, options) for task in found]
            yield Bench(
                board=board,
                target=target,
                model=imported,
                graph=graph,
                tasks=tuple(opened),
                session=session,
                builder=builder,
                records=records,
                options=options,
                on_event=on_event,
                started_s=started_s,
            )
