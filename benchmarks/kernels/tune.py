"""Finding our kernels: each operator tuned on this machine through the tool's public functions.

Every measured configuration is in the records file before the next one runs, so that the same command goes
on where it was stopped, and does nothing where the trials are spent. Where Winograd's algorithms are a
choice, the operator is tuned a second time without them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.place import HOST, board_with, open_place
from benchmarks.kernels.direct import share_records
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import Workload
from boards.description import Board
from boards.target import Target
from cross.expression.language.operator import Operator
from cross.schedule.cpu_sketch import cpu_space
from toolkit.records import Records
from toolkit.tuning.on_board import record_key
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget, TuningResult


@dataclass(frozen=True, slots=True)
class Effort:
    """At most so many trials for an operator, those recorded earlier included, and so many seconds now."""

    trials: int = 400
    seconds: float | None = None
    seed: int = 0


def tune(
    workloads: Sequence[Workload], threads: int, records: Path, effort: Effort, board_name: str = HOST
) -> list[TuningResult]:
    """Tune each workload, and those with Winograd's algorithms once more without them.

    Returns the results of those that had trials left.
    """
    board, target = board_with(threads, board_name)
    budget, tuning = Budget(effort.trials, effort.seconds), TuningOptions(seed=effort.seed)
    named = [(workload.name, operator(workload)) for workload in workloads]
    results = []
    with Records(records) as store:
        for winograd, left in ((True, trials_left), (False, direct_trials_left)):
            note = "" if winograd else " without Winograd"
            found = [
                (f"{name}{note}", made)
                for name, made in named
                if left(made, board, target, store, effort.trials)
            ]
            if found:
                with open_place(board, target, "kernels") as place:
                    results += place.tuned(found, store, budget, tuning, winograd=winograd)
    return results


def trials_left(operator: Operator, board: Board, target: Target, records: Records, trials: int) -> int:
    """How many of an operator's trials are not recorded."""
    space = cpu_space(operator, target)
    return max(0, min(trials, space.size) - len(records.for_key(record_key(space, board))))


def direct_trials_left(
    operator: Operator, board: Board, target: Target, records: Records, trials: int
) -> int:
    """How many trials without Winograd's algorithms are not recorded; 0 for an operator that has none.

    What the first search measured of the second one's space is recorded there before.
    """
    larger, smaller = cpu_space(operator, target), cpu_space(operator, target, winograd=False)
    if larger.key == smaller.key:
        return 0
    keys = record_key(larger, board), record_key(smaller, board)
    share_records(larger, smaller, records, keys, trials)
    return max(0, min(trials, smaller.size) - len(records.for_key(keys[1])))
