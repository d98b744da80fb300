"""Transfer's early winners and the best from scratch, timed again in turn.

The time that a run found for its best program is the luckiest of hundreds, and two runs are an hour apart:
which program is faster is only known when both are timed beside each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.collect import LEARNED, TARGETS_OF_TRANSFER, TRANSFER
from benchmarks.experiments.collected import HERE, Run, programs_of, runs, target_of
from benchmarks.harness import documents
from benchmarks.harness.place import open_place
from benchmarks.harness.progress import Bar
from toolkit.errors import RecordsError

EARLY: Final = 80  # trials of the run with transfer that count
FILE: Final = "again.json"


class Pair(msgspec.Struct, frozen=True):
    """Seconds per call of the best of `early` trials with transfer and of `trials` from scratch."""

    operator: str
    seed: int
    early: int
    trials: int
    transfer_s: float
    scratch_s: float


class Timed(msgspec.Struct, frozen=True, kw_only=True):
    """The file."""

    version: Literal[1] = 1
    pairs: tuple[Pair, ...]


def time_again(work: Path, trials: int) -> tuple[Pair, ...]:
    """Time the pairs of runs that were not timed yet; all are kept in `work`.

    Raises ToolkitError when nothing can be measured or what was kept cannot be read.
    """
    found = list(timed_pairs(work, trials))
    known = {(pair.operator, pair.seed) for pair in found}
    made = _pairs(runs(work, TARGETS_OF_TRANSFER))
    both = [pair for pair in made if (pair[0].operator, pair[0].seed) not in known]
    if both:
        with open_place(*target_of(HERE), "experiments") as place:
            for early, scratch in Bar("timing winners again", len(both))(both):
                programs = programs_of(early.operator)
                rows = [_best(early, EARLY), _best(scratch, trials)]
                times_s = place.in_turn(programs, [programs.space.configuration(row) for row in rows])
                found.append(Pair(early.operator, early.seed, EARLY, trials, *times_s))
        documents.write(Timed(pairs=tuple(found)), work / FILE)
    return tuple(found)


def timed_pairs(work: Path, trials: int) -> tuple[Pair, ...]:
    """What `time_again` kept of runs of so many trials; none before it ran.

    Raises RecordsError for a file that cannot be read or is of another version.
    """
    if not (work / FILE).is_file():
        return ()
    try:
        found = documents.read(work / FILE, Timed)
    except documents.NoDocument as error:
        raise RecordsError(f"{error}; delete it and run `collect` again") from error
    return tuple(pair for pair in found.pairs if pair.trials == trials)


def _pairs(made: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """(with transfer, from scratch) of the same operator and seed."""
    scratch = {(run.operator, run.seed): run for run in made if run.method == LEARNED}
    for run in made:
        if run.method == TRANSFER and (run.operator, run.seed) in scratch:
            yield run, scratch[run.operator, run.seed]


def _best(run: Run, trials: int) -> NDArray[np.int64]:
    """The fastest configuration among a run's own trials, untuned schedules left out, int64 [K]."""
    costs_s = run.costs_s[run.untuned :][:trials]
    return np.asarray(run.batch[run.untuned :][np.nanargmin(costs_s)])
