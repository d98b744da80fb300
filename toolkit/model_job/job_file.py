"""The file of a job: what a page about it needs that the records do not hold.

It lies in a folder beside the records, is begun when tuning begins, and replaced whenever a stage ends:
whoever reads it and the records sees how far a running job is. It outlives the job; nothing is tuned from it.
"""

from __future__ import annotations

import logging
import math
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import numpy as np
from msgspec.structs import asdict

from boards.description import Board
from boards.files import read_sealed, write_sealed
from boards.target import Target
from toolkit.errors import InputError
from toolkit.model.graph import Graph
from toolkit.model.memory import Placement, plan_memory
from toolkit.model_job.kernels import describe
from toolkit.model_job.options import JobEvent, JobListener, StageDone, TuneOptions, TuneReport
from toolkit.records import RecordKey
from toolkit.tuning.task import OperatorTask
from toolkit.version import TOOL_VERSION

JOB_VERSION: Final = 1
PLACES: Final = 2000  # of the memory plan that are kept, the largest; no picture shows more
State = Literal["running", "done", "failed", "interrupted", "recorded"]
_LOG: Final = logging.getLogger(__name__)


class JobOperator(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A distinct operator of the model, which `count` groups compute, with the keys of its records.

    One call takes `flops` operations, and moves `moved_bytes` bytes when every operand is moved once.
    `untuned`: its default configuration.
    """

    name: str
    operator: str
    layers: tuple[str, ...]
    count: int
    flops: int
    moved_bytes: int
    operator_key: str
    target_key: str
    space_key: str
    tool_version: str
    untuned: dict[str, Any]

    @property
    def key(self) -> RecordKey:
        return RecordKey(self.operator_key, self.target_key, self.space_key, self.tool_version)


class JobMemory(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes that the model takes, and where in the arena its largest values lie; `steps` in a run."""

    arena_bytes: int
    least_bytes: int
    constants_bytes: int
    steps: int
    places: tuple[Placement, ...]


class JobFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A job as far as it has come.

    `state` "recorded": no job, but what the records know of a model. `process` runs it on `host`. `report` is
    the tuning report, once there is one; `reason` says why a job failed.
    """

    job_version: Literal[1] = JOB_VERSION
    state: State
    model: str
    model_file: str
    board: str
    target: str
    target_key: str
    kind: str
    emulated: bool
    pocl: bool
    peak_gflops: float
    peak_measured: bool
    bandwidth_gbs: float | None
    bandwidth_measured: bool = False
    tool_version: str = TOOL_VERSION
    records: str
    operators: tuple[JobOperator, ...]
    memory: JobMemory
    command: tuple[str, ...] = ()
    seed: int = 0
    tuner: str = ""
    process: int = 0
    host: str = ""
    started_unix_s: float = 0.0
    updated_unix_s: float = 0.0
    stages: tuple[StageDone, ...] = ()
    report: TuneReport | None = None
    reason: str = ""

    @property
    def is_running(self) -> bool:
        """Whether its process is there; one on another machine is believed."""
        here = self.host == os.uname().nodename
        return self.state == "running" and not (here and not Path(f"/proc/{self.process}").exists())


def job_of(
    board: Board,
    target: Target,
    graph: Graph,
    tasks: Sequence[tuple[OperatorTask, tuple[str, ...]]],
    *,
    model: Path,
    records: Path | str,
) -> JobFile:
    """What is known of a model before it is tuned; with each task the names of the layers that compute it."""
    memory = plan_memory(graph)
    places = sorted(memory.placements, key=lambda place: -place.size_bytes)[:PLACES]
    return JobFile(
        state="recorded",
        model=model.stem,
        model_file=str(model),
        board=board.name,
        target=target.name,
        target_key=target.key,
        kind=target.kind,
        emulated=board.emulated,
        pocl=target.is_pocl,
        peak_gflops=target.estimated_peak_gflops,
        peak_measured=target.peak_gflops is not None,
        bandwidth_gbs=target.memory_gbs,
        bandwidth_measured=target.measured_bandwidth_gbs is not None,
        records=str(Path(records).absolute()),
        operators=tuple(_operator(task, layers) for task, layers in tasks),
        memory=JobMemory(
            arena_bytes=memory.arena_bytes,
            least_bytes=memory.lower_bound_bytes,
            constants_bytes=sum(graph.values[name].nbytes for name in graph.constants),
            steps=len(graph.steps),
            places=tuple(places),
        ),
    )


def _operator(task: OperatorTask, layers: tuple[str, ...]) -> JobOperator:
    tensors = (*task.operator.inputs, task.operator.output)
    return JobOperator(
        name=task.name,
        operator=describe(task.operator),
        layers=layers,
        count=round(task.weight),
        flops=task.flops,
        moved_bytes=sum(math.prod(item.shape) * np.dtype(item.dtype).itemsize for item in tensors),
        **asdict(task.key),
        untuned=dict(task.space.describe(task.space.default())),
    )


class JobLog:
    """Keeps the file of a job up to date: a listener, which passes all events on, and a context manager.

    Nothing is written before `begin`. A file that cannot be written is warned about, and the job goes on.
    """

    def __init__(self, options: TuneOptions, listener: JobListener) -> None:
        self._options = options
        self._listener = listener
        self._stages: list[StageDone] = []
        self._job: JobFile | None = None
        self.path: Path | None = None

    def __enter__(self) -> JobLog:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if error is not None:
            state: State = "failed" if isinstance(error, Exception) else "interrupted"
            self._write(state=state, reason=str(error))

    def __call__(self, event: JobEvent) -> None:
        if isinstance(event, StageDone):
            self._stages.append(event)
            self._write()
        self._listener(event)

    def begin(self, job: JobFile) -> None:
        """Tuning begins: the file is there from now on."""
        options, now_s = self._options, time.time()
        name = time.strftime("%Y%m%d-%H%M%S", time.gmtime(now_s))
        self.path = jobs_folder(job.records) / f"{name}-{os.getpid()}-{job.model[:80]}.json"
        self._job = msgspec.structs.replace(
            job,
            command=options.command,
            seed=options.tuning.seed,
            tuner="reuse" if options.reuse else options.tuning.search.tuner,
            process=os.getpid(),
            host=os.uname().nodename,
            started_unix_s=now_s,
        )
        self._write(state="running")

    def done(self, report: TuneReport) -> None:
        """The job is over, and this is its report."""
        self._write(state="done", report=report)

    def _write(self, **changed: Any) -> None:
        if self._job is None or self.path is None:
            return
        self._job = msgspec.structs.replace(
            self._job, stages=tuple(self._stages), updated_unix_s=time.time(), **changed
        )
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_sealed(self.path, msgspec.json.encode(self._job, enc_hook=str))
        except OSError as error:
            _LOG.warning("%s: %s; the job goes on without a page", self.path, error.strerror)
            self._job = self.path = None


def jobs_folder(records: Path | str) -> Path:
    """Where the files of the jobs are whose measurements a store keeps."""
    records = Path(records).absolute()
    return records.with_name(f"{records.name}.jobs")


def job_files(records: Path | str) -> list[Path]:
    """The files of all jobs, the newest first."""
    return sorted(jobs_folder(records).glob("*.json"), reverse=True)


def read_job(path: Path | str) -> JobFile:
    """A job as its file has it now. Raises InputError for a file that is damaged, or of another version."""
    data = read_sealed(Path(path))
    try:
        if data is not None:
            return msgspec.json.decode(data, type=JobFile, dec_hook=lambda kind, value: kind(value))
        found = "it is missing or damaged"
    except msgspec.DecodeError as error:
        found = str(error)
    raise InputError(
        f"{path}: expected the file of a job, version {JOB_VERSION}, as `toolkit tune` writes it, "
        f"found: {found}; delete it, or read it with the version of the tool that wrote it"
    )


def latest_job(job: JobFile) -> JobFile:
    """The newest finished job of the same operators and target, otherwise `job` itself.

    Files that cannot be read are passed over: nothing but some facts of the page is lost.
    """
    for path in job_files(job.records):
        try:
            other = read_job(path)
        except InputError:
            continue
        keys = [{item.key for item in found.operators} for found in (job, other)]
        if other.report is not None and other.model == job.model and keys[0] == keys[1]:
            return msgspec.structs.replace(other, records=job.records)
    return job
