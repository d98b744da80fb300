"""What the records know about a model's operators, without a board."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from boards.description import Board
from toolkit.model.distinct import distinct_operators
from toolkit.model.half_storage import stored_for
from toolkit.model.load import load_model
from toolkit.model_job.kernels import report_operator
from toolkit.model_job.options import OperatorReport
from toolkit.records import Records
from toolkit.tuning.on_board import open_task
from toolkit.tuning.operator_search import recorded_statistics


def recorded_operators(
    model: Path | str,
    board: Board,
    records: Records,
    *,
    target: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    winograd: bool = True,
) -> tuple[OperatorReport, ...]:
    """One report for each distinct operator of the model, as a tuning run would begin with it.

    Raises ModelError, InputError, RecordsError.
    """
    chosen = board.target(target or None)
    found = []
    for item in distinct_operators(stored_for(load_model(model, shapes), chosen)):
        task = open_task(item.name, item.operator, board, chosen, winograd=winograd, weight=item.count)
        result = recorded_statistics(task, records).result()
        found.append(report_operator(task, result, item.groups))
    return tuple(found)
