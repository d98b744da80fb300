"""Operators that no model has, tuned to be reused: in the plan, in the records, and nowhere else."""

from __future__ import annotations

from pathlib import Path

import pytest

from boards.board import load
from tests.loopback.tune_board import board_file, crossing_convolutions
from tests.onnx_models import save
from toolkit.model_job.context import JobContext, open_job
from toolkit.model_job.options import TuneOptions
from toolkit.model_job.reuse import plan_model_reuse, tune_by_reuse
from toolkit.records.lines import BRIDGE, REUSED
from toolkit.reuse.plan.lineage import lineage, lineage_tree
from toolkit.reuse.plan.reuse_plan import ReuseOptions
from toolkit.tuning.progress import TuningResult, silent

pytestmark = pytest.mark.slow

OPTIONS = ReuseOptions(trials=72, worth=0.0)


def tuned(job: JobContext) -> tuple[list[TuningResult], list[TuningResult]]:
    return tune_by_reuse(job, plan_model_reuse(job, OPTIONS), None, silent)


def test_a_bridge_is_tuned_recorded_and_reused(tmp_path: Path) -> None:
    network = save(tmp_path, crossing_convolutions(), "crossing.onnx")
    board = load(str(board_file(tmp_path)))
    options = TuneOptions(records=tmp_path / "r.db", reuse=True, winograd=False)
    with open_job(network, board, board.target(), options, lambda _: None) as job:
        assert plan_model_reuse(job, OPTIONS).bridges
        results, bridges = tuned(job)
        assert [result.operator for result in results] == [item.task.name for item in job.tasks]
        assert len(bridges) >= 1 and all(result.measured > 0 for result in bridges)
        assert all(result.best is not None for result in [*results, *bridges])
        descents = lineage(job.records)
        assert sum(item.bridge for item in descents) == len(bridges)
        keys = {item.operator_key for item in descents if item.bridge}
        assert not keys & {item.task.key.operator_key for item in job.tasks}
        assert sum(item.reuses in keys for item in descents) >= 2
        assert "(bridge)" in lineage_tree(descents)
        of_bridge = [
            record
            for key, _ in job.records.keys()  # noqa: SIM118 - not a mapping
            if key.operator_key in keys
            for record in job.records.for_key(key)
        ]
        assert of_bridge and all(record.facts[BRIDGE] is True for record in of_bridge)
        assert any(REUSED in record.facts for record in of_bridge)
    with open_job(network, board, board.target(), options, lambda _: None) as job:
        again = tuned(job)
        assert sum(result.measured for result in (*again[0], *again[1])) == 0
        assert [len(part) for part in again] == [len(results), len(bridges)]
