"""Recording: choose a reduced space around what a short search finds, then measure all of it once.

Everything measured is in a records file before the next candidate runs, and the chosen space is kept beside
it, so that the same command goes on where it was stopped. `record` is the door.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.replay.operators import operator
from benchmarks.replay.progress import Bar
from benchmarks.replay.reduce import Kept, Size, reduced_choices
from boards.description import Board
from boards.probe import read_host_facts
from boards.target import Target
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.errors import ReplayError
from toolkit.explore.search import SearchOptions, make_proposer
from toolkit.explore.space import Batch, enumerated
from toolkit.features import ContextFeatures
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.measurement import Measurement
from toolkit.measure.replay import Provenance, ReplayTable, make_table
from toolkit.measure.session import Session, open_session
from toolkit.records import Records, TuningRecord
from toolkit.tuning.on_board import record_key
from toolkit.version import TOOL_VERSION

BATCH: Final = 64
SEARCH_BATCH: Final = 16
WAIT_S: Final = 1800.0  # for whoever measures on this machine now


@dataclass(frozen=True, slots=True)
class Place:
    """Where a table is measured, and the folder where unfinished ones are kept."""

    board: Board
    target: Target
    work: Path


def record(name: str, size: Size, place: Place, *, seed: int = 0) -> ReplayTable:
    """The table of a reduced space of the operator `name` (operators.py).

    Raises ToolkitError when the board cannot be measured or a file cannot be used.
    """
    board, target, work = place.board, place.target, place.work
    full = cpu_space(operator(name), target)
    work.mkdir(parents=True, exist_ok=True)
    started_s = time.monotonic()
    with (
        Records(work / f"{name}.db") as records,
        Builder(target, workers=board.target().threads) as builder,
        open_session(board, wait_s=WAIT_S, holder="benchmarks.replay") as session,
    ):
        timing = RunnerOptions.of(board.measure)
        recorder = Recorder(board, session, builder, records, timing, seed)
        space = full.restricted(chosen(full, size, recorder, work / f"{name}.choices.json"))
        batch = np.concatenate(list(enumerated(space)))
        found = recorder.whole(name, space, batch)
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
    rng = np.random.default_rng(recorder.seed)
    bar = Bar(f"{full.operator.name}: a short search", size.tuned)
    known = dict(bar(recorder.searched(full, size.tuned, rng)))
    worked = [row for row, cost_s in known.items() if np.isfinite(cost_s)]
    fastest = [Configuration(row) for row in sorted(worked, key=lambda row: known[row])]
    kept = reduced_choices(full, fastest, size, rng)
    path.write_bytes(msgspec.json.encode((kept, full.key)))
    return kept


@dataclass(frozen=True, slots=True)
class Recorder:
    """Measures configurations on the board and keeps every measurement."""

    board: Board
    session: Session
    builder: Builder
    records: Records
    timing: RunnerOptions
    seed: int

    def searched(
        self, space: ScheduleSpace, trials: int, rng: np.random.Generator
    ) -> Iterator[tuple[tuple[int, ...], float]]:
        """Choice indices and cost of each trial of a search that begins with the untuned programs."""
        search = make_proposer(space, ContextFeatures(Programs(space)), rng, SearchOptions())
        measured, taken = self._measuring(space), 0
        rows = space.batch(space.defaults())
        while len(rows):
            found = [measurement.cost_s for measurement in measured(rows)]
            search.tell(rows, np.array(found))
            yield from zip(map(tuple, rows.tolist()), found, strict=True)
            taken += len(rows)
            rows = search.ask(min(SEARCH_BATCH, trials - taken))

    def whole(self, name: str, space: ScheduleSpace, batch: Batch) -> list[Measurement]:
        """A measurement of each row, [N]; what is recorded already is not measured again.

        The others are measured in a random order: a drifting clock should hit no knob alone.
        """
        known = self._known(space)
        missing = batch[~np.isin(space.ids(batch), np.fromiter(known, np.uint64, len(known)))]
        rows = np.random.default_rng(self.seed).permutation(missing)
        measured, bar = self._measuring(space), Bar(f"{name}: {len(batch)} configurations", len(rows))
        blocks = (rows[start : start + BATCH] for start in range(0, len(rows), BATCH))
        for _ in bar(measurement for block in blocks for measurement in measured(block)):
            pass
        known = self._known(space)
        return [known[number] for number in space.ids(batch).tolist()]

    def _measuring(self, space: ScheduleSpace) -> Measuring:
        recorded = self._known(space).values()
        runner = LiveRunner(
            Programs(space), self.builder, self.session, self.timing, seed=self.seed, recorded=recorded
        )
        return Measuring(self, space, runner)

    def _known(self, space: ScheduleSpace) -> dict[int, Measurement]:
        """Recorded measurements by the id of their configuration."""
        found = self.records.for_key(record_key(space, self.board))
        ids = space.ids(space.batch([space.parse(item.configuration) for item in found]))
        return dict(zip(ids.tolist(), (item.measurement for item in found), strict=True))


@dataclass(frozen=True, slots=True)
class Measuring:
    """Call it with rows: it measures them and has recorded each when it yields it."""

    recorder: Recorder
    space: ScheduleSpace
    runner: LiveRunner

    def __call__(self, rows: Batch) -> Iterator[Measurement]:
        recorder = self.recorder
        key = dataclasses.asdict(record_key(self.space, recorder.board))
        for row, measurement in zip(rows, self.runner.prepare(rows), strict=True):
            error = measurement.error
            recorder.records.add(
                TuningRecord(
                    **key,
                    configuration=self.space.describe(self.space.configuration(row)),
                    seconds=measurement.seconds,
                    number=measurement.number,
                    error_kind=error.kind if error else "",
                    error_text=error.text if error else "",
                    max_abs_error=measurement.max_abs_error,
                    facts=measurement.facts,
                    timestamp_s=time.time(),
                    seed=recorder.seed,
                    trial=0,
                )
            )
            yield measurement
