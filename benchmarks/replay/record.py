"""Recording: choose a reduced space around what a short search finds, then measure all of it once.

Everything measured is in a records file before the next candidate runs, and the chosen space is kept beside
it, so that the same command goes on where it was stopped. `record` is the door.
"""

from __future__ import annotations

import dataclasses
import datetime
import platform
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.harness.place import Place, open_place
from benchmarks.harness.progress import Bar
from benchmarks.replay.operators import operator
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
from toolkit.features.context import ContextFeatures
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.measurement import Measurement
from toolkit.measure.replay import Provenance, ReplayTable, make_table
from toolkit.records import Records, TuningRecord
from toolkit.tuning.on_board import record_key
from toolkit.version import TOOL_VERSION

BATCH: Final = 64
SEARCH_BATCH: Final = 16


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

    place: Place
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

    def _measuring(self, space: ScheduleSpace) -> Callable[[Batch], Iterator[Measurement]]:
        """A function that measures rows, and has recorded each when it yields it."""
        place, recorded = self.place, self._known(space).values()
        runner = LiveRunner(
            Programs(space), place.builder, place.session, self.timing, seed=self.seed, recorded=recorded
        )
        key = dataclasses.asdict(record_key(space, place.board))

        def measured(rows: Batch) -> Iterator[Measurement]:
            for row, measurement in zip(rows, runner.prepare(rows), strict=True):
                error = measurement.error
                self.records.add(
                    TuningRecord(
                        **key,
                        configuration=space.describe(space.configuration(row)),
                        seconds=measurement.seconds,
                        number=measurement.number,
                        error_kind=error.kind if error else "",
                        error_text=error.text if error else "",
                        max_abs_error=measurement.max_abs_error,
                        facts=measurement.facts,
                        timestamp_s=time.time(),
                        seed=self.seed,
                        trial=0,
                    )
                )
                yield measurement

        return measured

    def _known(self, space: ScheduleSpace) -> dict[int, Measurement]:
        """Recorded measurements by the id of their configuration."""
        found = self.records.for_key(record_key(space, self.place.board))
        ids = space.ids(space.batch([space.parse(item.configuration) for item in found]))
        return dict(zip(ids.tolist(), (item.measurement for item in found), strict=True))
