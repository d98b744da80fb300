"""Live measurements for the studies: tuning runs on one core of this machine, kept in records files.

For each seed: the operators C1 to C12 by random and by learned search; C1 to C6 by random search in code with
128-bit vectors; then C7, C8 and C9 by learned search with a prior trained on what was measured of C1 to C6.
The same call continues where an interrupted one stopped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
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
from benchmarks.harness.place import Place, open_place
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from toolkit.explore.search import SearchOptions
from toolkit.model_job.prior import train_prior
from toolkit.records import Records
from toolkit.tuning.on_board import record_key
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget

LEARNED: Final = "gbt"
RANDOM: Final = "random"
TRANSFER: Final = "transfer"
OPERATORS: Final = tuple(f"C{number}" for number in range(1, 13))
SOURCES: Final = OPERATORS[:6]
TARGETS_OF_TRANSFER: Final = ("C7", "C8", "C9")
AT_RANDOM: Final = SearchOptions(tuner="random")


def collect(work: Path, trials: int, seeds: Sequence[int], *, operators: Sequence[str] = OPERATORS) -> None:
    """Measure what is missing, `trials` of every operator by every method and seed.

    Raises ToolkitError when the machine cannot be measured or a file cannot be used.
    """
    (work / "records").mkdir(parents=True, exist_ok=True)
    sources = [name for name in SOURCES if name in operators]
    with open_place(*target_of(HERE), "experiments") as place:
        narrow = replace(place, target=target_of(NARROW)[1])
        for seed in seeds:
            for method, search in ((LEARNED, SearchOptions(first="random")), (RANDOM, AT_RANDOM)):
                path = records_path(work, method, seed)
                tune(place, path, operators, trials, TuningOptions(search=search, seed=seed))
            if narrow_here():
                path = records_path(work, RANDOM, seed, NARROW)
                tune(narrow, path, sources, trials // 2, TuningOptions(search=AT_RANDOM, seed=seed))
            if len(sources) == len(SOURCES):
                tuning = TuningOptions(search=SearchOptions(prior=source_prior(work, seed)), seed=seed)
                targets = [name for name in TARGETS_OF_TRANSFER if name in operators]
                tune(place, records_path(work, TRANSFER, seed), targets, trials, tuning)


def tune(place: Place, path: Path, operators: Sequence[str], trials: int, tuning: TuningOptions) -> None:
    """One run of the tuner for each operator, or the rest of it."""
    with Records(path) as records:
        for name in operators:
            place.tuned([(name, workload_operator(WORKLOADS[name]))], records, Budget(trials), tuning)


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
