"""Live measurements for the studies: tuning runs on one core of this machine, kept in records files.

For each seed: the operators C1 to C12 by random and by learned search; C1 to C6 by random search in code with
128-bit vectors; then C7, C8 and C9 by learned search with a prior trained on what was measured of C1 to C6.
The same call continues where an interrupted one stopped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.experiments.collected import (
    HERE,
    NARROW,
    narrow_here,
    programs_of,
    records_path,
    target_of,
)
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from toolkit.explore.search import SearchOptions
from toolkit.measure.session import Session, open_session
from toolkit.model_job.prior import train_prior
from toolkit.records import Records
from toolkit.tuning.algorithm import TuningOptions
from toolkit.tuning.on_board import BoardOptions, record_key, tune_on_board
from toolkit.tuning.progress import Budget, Event, TrialDone

LEARNED: Final = "gbt"
RANDOM: Final = "random"
TRANSFER: Final = "transfer"
OPERATORS: Final = tuple(f"C{number}" for number in range(1, 13))
SOURCES: Final = OPERATORS[:6]
TARGETS_OF_TRANSFER: Final = ("C7", "C8", "C9")
WAIT_S: Final = 1800.0  # for whoever measures on this machine now
SAID_EVERY_S: Final = 15.0


def collect(work: Path, trials: int, seeds: Sequence[int], *, operators: Sequence[str] = OPERATORS) -> None:
    """Measure what is missing, `trials` of every operator by every method and seed.

    Raises ToolkitError when the machine cannot be measured or a file cannot be used.
    """
    (work / "records").mkdir(parents=True, exist_ok=True)
    with open_session(target_of(HERE)[0], wait_s=WAIT_S, holder="benchmarks.experiments") as session:
        for seed in seeds:
            for method, search in (
                (LEARNED, SearchOptions(first="random")),
                (RANDOM, SearchOptions(tuner="random")),
            ):
                for name in operators:
                    tune(session, work, Tuning(name, method, seed, trials, search))
            sources = [name for name in SOURCES if name in operators]
            search = SearchOptions(tuner="random")
            for name in sources if narrow_here() else ():
                tune(session, work, Tuning(name, RANDOM, seed, trials // 2, search, NARROW))
            if len(sources) == len(SOURCES):
                search = SearchOptions(prior=source_prior(work, seed))
                for name in TARGETS_OF_TRANSFER:
                    if name in operators:
                        tune(session, work, Tuning(name, TRANSFER, seed, trials, search))


@dataclass(frozen=True, slots=True)
class Tuning:
    """One tuning run: `method` is the name of its records file, `search` what it does."""

    operator: str
    method: str
    seed: int
    trials: int
    search: SearchOptions
    target: str = HERE


def tune(session: Session, work: Path, run: Tuning) -> None:
    """One run of the tuner, or the rest of it."""
    board, code_for = target_of(run.target)
    options = BoardOptions(
        target=code_for,
        workers=board.target().threads,
        tuning=TuningOptions(search=run.search, seed=run.seed),
    )
    key = record_key(programs_of(run.operator, run.target).space, board)
    with Records(records_path(work, run.method, run.seed, run.target)) as records:
        if len(records.for_key(key)) >= run.trials:
            return
        tune_on_board(
            [(run.operator, workload_operator(WORKLOADS[run.operator]))],
            board,
            session,
            records,
            Budget(run.trials),
            options=options,
            on_event=Progress(f"{run.operator}, {run.method}, seed {run.seed}, {run.target}"),
        )


def source_prior(work: Path, seed: int) -> Path:
    """The file of a model of what learned and random search measured of SOURCES with this seed."""
    folder = work / "priors"
    folder.mkdir(parents=True, exist_ok=True)
    board, _ = target_of(HERE)
    records_file, output = folder / f"source-{seed}.db", folder / f"source-{seed}.tfbm"
    with Records(records_file) as source:
        before = len(source)
        for method in (LEARNED, RANDOM):
            with Records(records_path(work, method, seed), read_only=True) as found:
                source.describe(*found.operators())
                for name in SOURCES:
                    source.add(*found.for_key(record_key(programs_of(name).space, board)))
        if len(source) > before or not output.is_file():
            train_prior(output, records=records_file, seed=seed)
    return output


class Said:
    """A line on standard error now and then: how far a run is."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._said_s = time.monotonic()

    def __call__(self, done: int, trials: int) -> None:
        if done >= trials or time.monotonic() - self._said_s >= SAID_EVERY_S:
            self._said_s = time.monotonic()
            print(f"{self._what}: {done}/{trials}", file=sys.stderr, flush=True)


class Progress:
    """The same, as a listener of the tuner."""

    def __init__(self, what: str) -> None:
        self._said = Said(what)

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrialDone):
            self._said(event.trial, event.trials or 0)
