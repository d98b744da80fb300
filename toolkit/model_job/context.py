"""The context of a job: the model, the board's session, the compiler, the records and the clock."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec.structs import replace

from boards.description import Board
from boards.target import Target
from toolkit.explore.search import check_search
from toolkit.measure.builder import NamedNest
from toolkit.measure.fit import fitted
from toolkit.measure.session import Session, open_session
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph
from toolkit.model.load import adapted, load_model
from toolkit.model.memory import check_memory
from toolkit.model_job.options import (
    DEFAULT_RECORDS,
    JobListener,
    StageDone,
    StageName,
    StageStarted,
    TuneOptions,
)
from toolkit.records import open_to_tune
from toolkit.tuning.on_board import OpenBoard, OpenTask, builder_for, overlapping


class JobContext(OpenBoard, frozen=True, kw_only=True):
    """What the stages of a job work with; the job began at `started_s` by time.monotonic."""

    session: Session
    model: Graph
    """The model as it was imported; `graph` is the same with tensors stored as the target wants them."""
    graph: Graph
    tasks: tuple[OpenTask, ...] = ()
    options: TuneOptions
    on_event: JobListener
    started_s: float
    objects: dict[NamedNest, bytes] = msgspec.field(default_factory=dict)
    """The kernels of whole models, compiled: several models have most of them in common."""

    @property
    def passed_s(self) -> float:
        """Seconds since the job began, `options.spent_s` included."""
        return time.monotonic() - self.started_s + self.options.spent_s


class Stage(msgspec.Struct):
    """A running stage; `summary`: its result in a few words."""

    summary: str = ""


@contextmanager
def stage(name: StageName, on_event: JobListener) -> Iterator[Stage]:
    """Tell the listener that a stage begins, and, when it is over, its time and summary."""
    started_s = time.monotonic()
    on_event(StageStarted(name))
    running = Stage()
    yield running
    on_event(StageDone(name, time.monotonic() - started_s, running.summary))


@contextmanager
def open_job(
    model: Path, board: Board, target: Target, options: TuneOptions, on_event: JobListener
) -> Iterator[JobContext]:
    """The model imported and the board connected, until the block ends. Raises UnfitBoard, too."""
    started_s = time.monotonic()
    check_search(options.tuning.search)
    tuning = overlapping(board, options.tuning)
    with stage("import", on_event) as running:
        imported = load_model(model, options.shapes, options.floats, options.constants)
        graph = adapted(imported, target)
        check_memory(graph, board.memory_bytes, board.name)
        found = distinct_operators(graph)
        running.summary = f"{len(graph.groups)} operators, {len(found)} distinct"
    store = open_to_tune(options.records, DEFAULT_RECORDS)
    with store as records, builder_for(target, options.workers, tuning) as builder:
        with stage("connect", on_event) as running:
            session = open_session(board, cache_dir=options.cache_dir, wait_s=options.wait_s)
            running.summary = f"{board.name}, {session.hello.machine}, Python {session.hello.python}"
        with session:
            job = JobContext(
                board=board,
                target=fitted(session, target),
                session=session,
                builder=builder,
                records=records,
                tuning=tuning,
                winograd=options.winograd,
                model=imported,
                graph=graph,
                options=options,
                on_event=on_event,
                started_s=started_s,
            )
            yield replace(job, tasks=tuple(job.open(item.name, item.operator, item.count) for item in found))
