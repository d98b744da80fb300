"""Finding our kernels: each operator tuned on this machine through the tool's public functions.

Every measured configuration is in the records file before the next one runs, so that the same command goes on
where it was stopped, and does nothing where the trials are spent.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.kernels.expressions import operator
from benchmarks.kernels.host import board_with
from benchmarks.kernels.workloads import Workload
from toolkit.jobs import BoardOptions, tune_on_board
from toolkit.measure.session import open_session
from toolkit.progress import Budget, Event, OperatorDone, OperatorStarted, TrialDone, TuningResult
from toolkit.records import Records
from toolkit.tuning import TuningOptions

SHOWN_EVERY = 50
WAIT_S = 1800.0  # for whoever measures on this machine now


def tune(
    workloads: Sequence[Workload], threads: int, records: Path, *, trials: int, seed: int = 0
) -> list[TuningResult]:
    """Tune each workload with at most so many trials, those recorded earlier included."""
    board, target = board_with(threads)
    options = BoardOptions(target=target, workers=board.target().threads, tuning=TuningOptions(seed=seed))
    with (
        Records(records) as store,
        open_session(board, wait_s=WAIT_S, holder="benchmarks.kernels") as session,
    ):
        named = [(workload.name, operator(workload)) for workload in workloads]
        return tune_on_board(
            named, board, session, store, Budget(trials), options=options, on_event=_Progress(threads)
        )


class _Progress:
    """A line now and then on standard error."""

    def __init__(self, threads: int) -> None:
        self._threads = f"{threads} thread{'s' * (threads > 1)}"

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
        print(f"{name}, {self._threads}: {text}", file=sys.stderr, flush=True)
