"""Tune one operator instead of a model, with the same search and records."""

from __future__ import annotations

from pathlib import Path

from boards.description import Board
from cross.expression.language.operator import Operator
from toolkit.measure.fit import fitted
from toolkit.measure.session import open_session
from toolkit.model_job.options import DEFAULT_RECORDS, DEFAULT_TRIALS
from toolkit.records import open_to_tune
from toolkit.tuning.on_board import BoardOptions, tune_on_board
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget, Listener, TuningResult, silent


def tune_operator(
    operator: Operator,
    board: Board,
    budget: Budget = Budget(DEFAULT_TRIALS),  # noqa: B008 - frozen
    *,
    target: str = "",
    tuning: TuningOptions | None = None,
    records: Path | str = DEFAULT_RECORDS,
    on_event: Listener = silent,
) -> TuningResult:
    """Tune any operator, your own `compute` included, on a board until the budget is spent.

    `target` is a CPU or a GPU of the board; empty: the one with the highest estimated peak. Raises
    UnknownTarget, UnfitBoard, BoardUnreachable, BoardBusy, RecordsError; what was measured is kept, whatever
    is raised.
    """
    wanted = board.target(target or None)
    with open_to_tune(records, DEFAULT_RECORDS) as store, open_session(board) as session:
        options = BoardOptions(target=fitted(session, wanted), tuning=tuning or TuningOptions())
        (result,) = tune_on_board(
            [(operator.name, operator)], board, session, store, budget, options=options, on_event=on_event
        )
    return result
