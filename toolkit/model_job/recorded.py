"""What the records know about a model's operators, without a board."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from boards.description import Board
from toolkit.model.distinct import distinct_operators
from toolkit.model.load import adapted, load_model
from toolkit.model_job.job_file import JobFile, job_of
from toolkit.model_job.kernels import report_operator
from toolkit.model_job.options import OperatorReport
from toolkit.records import Records
from toolkit.tuning.on_board import open_task
from toolkit.tuning.operator_search import recorded_statistics


class RecordedModel(msgspec.Struct, frozen=True):
    """A model's operators with all that the records know of them; `job` is what a page needs of the model."""

    operators: tuple[OperatorReport, ...]
    job: JobFile


def recorded_model(
    model: Path | str,
    board: Board,
    records: Records,
    *,
    target: str = "",
    shapes: Mapping[str, tuple[int, ...]] | None = None,
    constants: Mapping[str, tuple[float, ...]] | None = None,
    winograd: bool = True,
) -> RecordedModel:
    """One report for each distinct operator of the model, as a tuning run would begin with it.

    Raises ModelError, InputError, RecordsError.
    """
    chosen = board.target(target or None)
    graph = adapted(load_model(model, shapes, constants=constants), chosen)
    reports, tasks = [], []
    for item in distinct_operators(graph):
        task = open_task(item.name, item.operator, board, chosen, winograd=winograd, weight=item.count)
        reports.append(report_operator(task, recorded_statistics(task, records).result(), item.groups))
        tasks.append((task, item.groups))
    job = job_of(board, chosen, graph, tasks, model=Path(model), records=records.path)
    return RecordedModel(tuple(reports), job)
