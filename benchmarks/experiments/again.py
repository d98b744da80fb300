"""Transfer's early winners and the best from scratch, timed again in turn.

The time that a run found for its best program is the luckiest of hundreds, and two runs are an hour apart:
which program is faster is only known when both are timed beside each other.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.experiments.collect import LEARNED, TARGETS_OF_TRANSFER, TRANSFER, WAIT_S, Said
from benchmarks.experiments.collected import HERE, Run, programs_of, runs, target_of
from benchmarks.timed_in_turn import timed_in_turn
from toolkit.errors import RecordsError
from toolkit.measure.builder import Builder
from toolkit.measure.session import open_session

EARLY: Final = 80  # trials of the run with transfer that count
VERSION: Final = 1
FILE: Final = "again.json"


class Pair(msgspec.Struct, frozen=True):
    """Seconds per call of the best of `early` trials with transfer and of `trials` from scratch."""

    operator: str
    seed: int
    early: int
    trials: int
    transfer_s: float
    scratch_s: float


class Timed(msgspec.Struct, frozen=True):
    """The file."""

    version: int
    pairs: tuple[Pair, ...]


def time_again(work: Path, trials: int) -> tuple[Pair, ...]:
    """Time the pairs of runs that were not timed yet; all are kept in `work`.

    Raises ToolkitError when nothing can be measured or what was kept cannot be read.
    """
    board, target = target_of(HERE)
    found = list(timed_pairs(work, trials))
    known = {(pair.operator, pair.seed) for pair in found}
    made = _pairs(runs(work, TARGETS_OF_TRANSFER))
    both = [pair for pair in made if (pair[0].operator, pair[0].seed) not in known]
    if not both:
        return tuple(found)
    said = Said("timing winners again")
    with (
        open_session(board, wait_s=WAIT_S, holder="benchmarks.experiments") as session,
        Builder(target, workers=board.target().threads) as builder,
    ):
        for number, (early, scratch) in enumerate(both, 1):
            programs = programs_of(early.operator)
            rows = [_best(early, EARLY), _best(scratch, trials)]
            winners = [programs.space.configuration(row) for row in rows]
            transfer_s, scratch_s = timed_in_turn(programs, winners, board, session, builder)
            found.append(Pair(early.operator, early.seed, EARLY, trials, transfer_s, scratch_s))
            said(number, len(both))
    part = (work / FILE).with_suffix(".part")
    part.write_bytes(msgspec.json.encode(Timed(VERSION, tuple(found))))
    os.replace(part, work / FILE)
    return tuple(found)


def timed_pairs(work: Path, trials: int) -> tuple[Pair, ...]:
    """What `time_again` kept of runs of so many trials; none before it ran.

    Raises RecordsError for a file that cannot be read or is of another version.
    """
    path = work / FILE
    if not path.is_file():
        return ()
    try:
        found = msgspec.json.decode(path.read_bytes(), type=Timed)
    except msgspec.DecodeError as error:
        raise RecordsError(f"{path}: {error}; delete it and run `collect` again") from error
    if found.version != VERSION:
        raise RecordsError(
            f"{path} has version {found.version}, this benchmark reads {VERSION}: delete it and run "
            "`collect` again"
        )
    return tuple(pair for pair in found.pairs if pair.trials == trials)


def _pairs(made: Sequence[Run]) -> Iterator[tuple[Run, Run]]:
    """(with transfer, from scratch) of the same operator and seed."""
    scratch = {(run.operator, run.seed): run for run in made if run.method == LEARNED}
    for run in made:
        if run.method == TRANSFER and (run.operator, run.seed) in scratch:
            yield run, scratch[run.operator, run.seed]


def _best(run: Run, trials: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The fastest configuration among a run's own trials, untuned schedules left out, int64 [K]."""
    costs_s = run.costs_s[run.untuned :][:trials]
    best: np.ndarray[tuple[int], np.dtype[np.int64]] = run.batch[run.untuned :][np.nanargmin(costs_s)]
    return best
