"""Recording: choose a reduced space around what a short search finds, then measure all of it once.

Everything measured is in a records file before the next candidate runs, and the chosen space is kept beside
it, so that the same command goes on where it was stopped. `record` is the door.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import platform
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import numpy as np

from benchmarks.harness.place import Place, fastest, open_place
from benchmarks.replay.operators import operator
from benchmarks.replay.reduce import Kept, Size, reduced_choices
from boards.description import Board
from boards.probe import read_host_facts
from boards.target import Target
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space
from cross.schedule.space import ScheduleSpace
from toolkit.errors import ReplayError
from toolkit.explore.in_turn import InTurn
from toolkit.explore.space import Batch, enumerated
from toolkit.features.context import ContextFeatures
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.measurement import Measurement
from toolkit.measure.replay import Provenance, ReplayTable, make_table
from toolkit.model_job.options import TuningPlanned
from toolkit.records import Records, TuningRecord
from toolkit.report.tune_display import TuneDisplay
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.on_board import record_key
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget
from toolkit.tuning.task import Task
from toolkit.version import TOOL_VERSION


def record(name: str, size: Size, board: Board, target: Target, work: Path, seed: int = 0) -> ReplayTable:
    """The table of a reduced space of the operator `name` (operators.py); `work` keeps unfinished ones.

    Raises ToolkitError when the board cannot be measured or a file cannot be used.
    """
    full = cpu_space(operator(name), target)
    work.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    with Records(work / f"{name}.db") as records, open_place(board, target, "replay") as place:
        recorder = Recorder(place, records, RunnerOptions.of(board.measure), seed)
        space = full.restricted(chosen(full, size, recorder, work / f"{name}.choices.json"))
        batch = np.concatenate(list(enumerated(space)))
        found = recorder.whole(name, space, batch)
    timing = recorder.timing
    provenance = Provenance(
        machine=f"{read_host_facts().model}, {target.threads} core(s), {platform.system()}",
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        tool_version=TOOL_VERSION,
        rule=size.rule,
        command=f"python -m benchmarks.replay record {name}",
        timing={**dataclasses.asdict(timing.timing), "beaten": timing.beaten},
        seed=seed,
        wall_s=round(time.monotonic() - started_s, 1),
    )
    return make_table(name, space, batch, found, provenance)


def chosen(full: ScheduleSpace, size: Size, recorder: Recorder, path: Path) -> Kept:
    """The choices of the reduced space, chosen the first time and read from `path` after that."""
    if path.is_file():
        kept, key = msgspec.json.decode(path.read_bytes(), type=tuple[Kept, str])
        if key == full.key:
            return kept
        raise ReplayError(
            f"{path} was chosen in another schedule space: expected {full.key}, found {key}; "
            f"remove it and record again"
        )
    records = recorder.tuned(f"{full.operator.name}: a short search", full, size.tuned)
    kept = reduced_choices(
        full, fastest(full, records, size.tuned), size, np.random.default_rng(recorder.seed)
    )
    path.write_bytes(msgspec.json.encode((kept, full.key)))
    return kept


@dataclass(frozen=True, slots=True)
class Recorder:
    """Measures configurations on the board and keeps every measurement."""

    place: Place
    records: Records
    timing: RunnerOptions
    seed: int

    def whole(self, name: str, space: ScheduleSpace, batch: Batch) -> list[Measurement]:
        """A measurement of each row, [N]; what is recorded already is not measured again.

        The others are measured in a random order: a drifting clock should hit no knob alone.
        """
        rows = np.random.default_rng(self.seed).permutation(batch)
        found = self.tuned(f"{name}: all configurations", space, len(batch), rows)
        ids = space.ids(space.batch([space.parse(item.configuration) for item in found])).tolist()
        known = dict(zip(ids, (item.measurement for item in found), strict=True))
        return [known[number] for number in space.ids(batch).tolist()]

    def tuned(
        self, name: str, space: ScheduleSpace, trials: int, given: Batch | None = None
    ) -> list[TuningRecord]:
        """The records of a space after so many trials, of the given rows or else of a search."""
        place, programs = self.place, Programs(space)
        task = Task(
            name,
            space.operator.flops,
            space,
            ContextFeatures(programs),
            record_key(space, place.board),
            rounds=None if given is None else functools.partial(InTurn, space, given, ()),
            rounds_alone=given is not None,
        )
        known = [record.measurement for record in self.records.for_key(task.key)]
        runner = LiveRunner(
            programs, place.builder, place.session, self.timing, seed=self.seed, recorded=known
        )
        with TuneDisplay() as display:
            display(TuningPlanned((name,), trials, None, len(known), place.board.emulated))
            tuning = TuningOptions(seed=self.seed)
            tune_all([(task, runner)], self.records, Budget(trials), options=tuning, on_event=display)
        return self.records.for_key(task.key)
