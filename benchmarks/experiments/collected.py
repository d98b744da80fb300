"""Records of live tuning runs, as the studies read them: one file for each method and seed (collect.py)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from benchmarks.harness.place import board_with
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from boards.description import Board
from boards.target import Target
from cross.loopnest.program import Programs
from cross.schedule.cpu_sketch import cpu_space
from toolkit.errors import RecordsError
from toolkit.explore.space import Batch
from toolkit.records import Records
from toolkit.tuning.on_board import record_key

HERE: Final = "host"
NARROW: Final = "sse"
TARGETS: Final = {
    HERE: "this machine's own code, one core",
    NARROW: "code with 128-bit vectors (x86-64-v2), one core of the same machine",
}


PAUSE_S: Final = 60.0
"""A longer time between two trials is where a run was interrupted; it does not count."""


@dataclass(frozen=True)
class Run:
    """One tuning run on one operator: costs and seconds since its first trial, in the order of measuring.

    untuned: how many trials at its start were untuned schedules, which every run measures first.
    """

    operator: str
    method: str
    seed: int
    costs_s: NDArray[np.float64]
    elapsed_s: NDArray[np.float64]
    batch: Batch
    untuned: int


@dataclass(frozen=True)
class Collected:
    """Everything measured for an operator on a target: rows [M, K] of its space and their costs [M]."""

    name: str
    programs: Programs
    batch: Batch
    costs_s: NDArray[np.float64]


def narrow_here() -> bool:
    """Whether this machine runs the code of the target NARROW."""
    return target_of(HERE)[1].triple.startswith("x86_64")


def target_of(name: str) -> tuple[Board, Target]:
    """The board and target that a name of TARGETS stands for."""
    board, target = board_with(1)
    if name == NARROW:
        target = msgspec.structs.replace(
            target,
            cpu="x86-64-v2",
            features=(),
            vector_bytes=16,
            vector_registers=16,
            flops_per_cycle=8.0,
            peak_gflops=None,
        )
    return board, target


def records_path(work: Path, method: str, seed: int, target: str = HERE) -> Path:
    """The records file of a method, seed and target."""
    return work / "records" / f"{target}-{method.replace(' ', '-')}-{seed}.db"


@cache
def programs_of(operator: str, target: str = HERE) -> Programs:
    """The full schedule space of a workload on a target."""
    return Programs(cpu_space(workload_operator(WORKLOADS[operator]), target_of(target)[1]))


@cache
def runs(work: Path, operators: tuple[str, ...], target: str = HERE) -> tuple[Run, ...]:
    """Every recorded run of the operators, by method, seed and operator. Read once in a process."""
    found: list[Run] = []
    for path in sorted((work / "records").glob(f"{target}-*.db")):
        method, _, seed = path.stem.removeprefix(f"{target}-").rpartition("-")
        with Records(path, read_only=True) as records:
            made = (_run(records, operator, target, method, int(seed)) for operator in operators)
            found += [run for run in made if run is not None]
    return tuple(sorted(found, key=lambda run: (run.method, run.seed, operators.index(run.operator))))


def collected(operator: str, work: Path, target: str = HERE) -> Collected:
    """What all runs measured for an operator. Raises RecordsError where there is nothing."""
    found = runs(work, (operator,), target)
    if not found:
        raise RecordsError(
            f"no measurements of {operator} ({TARGETS[target]}) in {work / 'records'}: collect them with "
            f"`python -m benchmarks.experiments collect --work {work}`"
        )
    return Collected(
        operator,
        programs_of(operator, target),
        np.concatenate([run.batch for run in found]),
        np.concatenate([run.costs_s for run in found]),
    )


def _run(records: Records, operator: str, target: str, method: str, seed: int) -> Run | None:
    space = programs_of(operator, target).space
    found = records.for_key(record_key(space, target_of(target)[0]))
    if not found:
        return None
    rows = space.batch([space.parse(record.configuration) for record in found])
    times_s = np.array([item.timestamp_s for item in found])
    gaps_s = np.diff(times_s, prepend=times_s[0])
    gaps_s[gaps_s > PAUSE_S] = 0.0
    untuned = {tuple(item.indices) for item in space.defaults()}
    first = next((place for place, row in enumerate(rows.tolist()) if tuple(row) not in untuned), len(rows))
    return Run(
        operator,
        method,
        seed,
        np.array([np.nan if item.cost_s is None else item.cost_s for item in found]),
        np.cumsum(gaps_s),
        rows,
        first,
    )
