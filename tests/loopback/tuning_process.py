"""A tuning run of two operators in a process of its own, for tests that kill it: prints acknowledged trials.

python -m tests.loopback.tuning_process RECORDS DEVICE_FOLDER TOTAL_TRIALS
"""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec

from boards.board import Board, load
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from device_runtime.protocol import Timing
from toolkit.explore.annealing import AnnealingOptions
from toolkit.explore.search import SearchOptions
from toolkit.measure.live import RunnerOptions
from toolkit.measure.session import open_session
from toolkit.records import Records
from toolkit.tuning.on_board import BoardOptions, tune_on_board
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget, Event, TrialDone

QUICK = BoardOptions(
    timing=RunnerOptions(Timing(repeat=2, min_repeat_ms=0.5)),
    tuning=TuningOptions(SearchOptions(annealing=AnnealingOptions(chains=64, steps=3)), batch=8),
)


def small_dense(rows: int = 32) -> Operator:
    """32x48x40, the weight a constant: compiles in milliseconds, runs in microseconds."""
    data, weight = placeholder((rows, 48), "data"), placeholder((48, 40), "weight")
    return Operator("dense", (data, weight), dense(data, weight), constants=frozenset({1}))


def board_in(folder: Path) -> Board:
    """This machine with its device folder at `folder`."""
    board = load("host")
    return msgspec.structs.replace(board, link=msgspec.structs.replace(board.link, device_dir=str(folder)))


def say(event: Event) -> None:
    if isinstance(event, TrialDone):
        print(event.operator, event.record.trial, event.record.error_kind or "ok", flush=True)


def main(path: str, folder: str, trials: str) -> None:
    board = board_in(Path(folder))
    with Records(path) as records, open_session(board, wait_s=20.0) as session:
        jobs = [("dense", small_dense()), ("other", small_dense(rows=24))]
        budget = Budget(total=int(trials))
        tune_on_board(jobs, board, session, records, budget, options=QUICK, on_event=say)


if __name__ == "__main__":
    main(*sys.argv[1:])
