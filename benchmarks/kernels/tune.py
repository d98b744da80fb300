"""Finding our kernels: each operator tuned on this machine through the tool's public functions.

Every measured configuration is in the records file before the next one runs, so that the same command goes
on where it was stopped, and does nothing where the trials are spent. Where Winograd's algorithms are a
choice, the operator is tuned a second time without them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.kernels.direct import share_records
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.host import board_with
from benchmarks.kernels.workloads import Workload
from boards.description import Board
from boards.target import Target
from cross.expression.language.operator import Operator
from cross.schedule.cpu_sketch import cpu_space
from toolkit.measure.session import open_session
from toolkit.records import Records
from toolkit.tuning.algorithm import TuningOptions
from toolkit.tuning.on_board import BoardOptions, record_key, tune_on_board
from toolkit.tuning.progress import Budget, Event, OperatorDone, OperatorStarted, TrialDone, TuningResult

SHOWN_EVERY = 50
WAIT_S = 1800.0  # for whoever measures on this machine now


@dataclass(frozen=True, slots=True)
class Effort:
    """At most so many trials for an operator, those recorded earlier included, and so many seconds now."""

    trials: int = 400
    seconds: float | None = None
    seed: int = 0


def tune(workloads: Sequence[Workload], threads: int, records: Path, effort: Effort) -> list[TuningResult]:
    """Tune each workload, and those with Winograd's algorithms once more without them.

    Returns the results of those that had trials left.
    """
    board, target = board_with(threads)
    with Records(records) as store:
        found = [(workload, operator(workload)) for workload in workloads]
        left = [
            (workload.name, made)
            for workload, made in found
            if trials_left(made, board, target, store, effort.trials)
        ]
        results = _tuned(left, board, target, store, effort)
        again = [
            (f"{workload.name} without Winograd", made)
            for workload, made in found
            if direct_trials_left(made, board, target, store, effort.trials)
        ]
        return results + _tuned(again, board, target, store, effort, winograd=False)


def trials_left(operator: Operator, board: Board, target: Target, records: Records, trials: int) -> int:
    """How many of an operator's trials are not recorded."""
    space = cpu_space(operator, target)
    return max(0, min(trials, space.size) - len(records.for_key(record_key(space, board))))


def direct_trials_left(
    operator: Operator, board: Board, target: Target, records: Records, trials: int
) -> int:
    """The same without Winograd's algorithms; 0 for an operator that has none.

    What the first search measured of the second one's space is recorded there before.
    """
    larger, smaller = cpu_space(operator, target), cpu_space(operator, target, winograd=False)
    if larger.key == smaller.key:
        return 0
    keys = record_key(larger, board), record_key(smaller, board)
    share_records(larger, smaller, records, keys, trials)
    return max(0, min(trials, smaller.size) - len(records.for_key(keys[1])))


def _tuned(
    named: Sequence[tuple[str, Operator]],
    board: Board,
    target: Target,
    store: Records,
    effort: Effort,
    *,
    winograd: bool = True,
) -> list[TuningResult]:
    if not named:
        return []
    options = BoardOptions(
        target=target,
        workers=board.target().threads,
        tuning=TuningOptions(seed=effort.seed),
        winograd=winograd,
    )
    budget = Budget(effort.trials, effort.seconds)
    with open_session(board, wait_s=WAIT_S, holder="benchmarks.kernels") as session:
        return tune_on_board(
            named, board, session, store, budget, options=options, on_event=ProgressLines(target.threads)
        )


class ProgressLines:
    """A line now and then, on standard error unless told otherwise."""

    def __init__(self, threads: int, say: Callable[[str], None] | None = None) -> None:
        self._threads = f"{threads} thread{'s' * (threads > 1)}"
        self._write = say or _to_standard_error

    def __call__(self, event: Event) -> None:
        match event:
            case OperatorStarted(name, resumed, trials):
                self._say(name, f"{resumed} of {trials} trials recorded")
            case TrialDone(operator=name, trial=trial, trials=trials) if trial % SHOWN_EVERY == 0:
                rate = f"{event.trials_per_s:.1f} trials/s, {event.time_left_s:.0f} s left"
                self._say(name, f"{trial}/{trials}, best {event.best_gflops:.1f} GFLOP/s, {rate}")
            case OperatorDone(name, result):
                untuned = f"untuned {result.default_gflops:.1f}"
                failed = f", {result.failures} failures" if result.failures else ""
                self._say(
                    name,
                    f"{result.best_gflops:.1f} GFLOP/s ({untuned}) after {result.trials} trials{failed}, "
                    f"{result.wall_s:.0f} s",
                )

    def _say(self, name: str, text: str) -> None:
        self._write(f"{name}, {self._threads}: {text}")


def _to_standard_error(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
