"""Reuse on a GPU target for real, on PoCL: what the hierarchical search asks for runs, and is right."""

from __future__ import annotations

import functools
from pathlib import Path

import pytest
from msgspec.structs import replace

from boards.board import Board
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import dense
from cross.expression.families.window import Window
from cross.schedule import gpu_space
from device_runtime.protocol import Timing
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.session import open_session
from toolkit.records import Records
from toolkit.reuse.rounds.gpu_tiles import gpu_tiles
from toolkit.reuse.rounds.program import Program
from toolkit.reuse.rounds.proposer import reuse_proposer
from toolkit.tuning.algorithm import tune_all
from toolkit.tuning.on_board import open_task
from toolkit.tuning.operator_search import TuningOptions
from toolkit.tuning.progress import Budget

TRIALS = 4  # of an operator, the untuned program among them
QUICKLY = RunnerOptions(Timing(repeat=1, min_repeat_ms=0.1, warmup=0))


def conv(filters: int) -> Operator:
    data, weight = placeholder((1, 6, 6, 2), "X"), placeholder((3, 3, 2, filters), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="Y")
    return Operator("conv", (data, weight), output, frozenset({1}))


def product(rows: int) -> Operator:
    left, right = placeholder((rows, 12), "A"), placeholder((12, 8), "B")
    return Operator("product", (left, right), dense(left, right, name="Y"), frozenset({1}))


PAIRS = {"conv": (conv(8), conv(4)), "product": (product(16), product(8))}


@pytest.mark.slow
def test_operators_begin_with_programs_of_others(tmp_path: Path, pocl_board: Board) -> None:
    target = pocl_board.target()
    opened = {name: open_task(name, operator, pocl_board, target) for name, (operator, _) in PAIRS.items()}
    with (
        Builder(target, workers=2) as builder,
        open_session(pocl_board) as session,
        Records(tmp_path / "r.db") as records,
    ):
        jobs = []
        for name, task in opened.items():
            source = gpu_space(PAIRS[name][1], target)  # as if its untuned program were its best one
            program = Program(source, source.default())
            rounds = functools.partial(reuse_proposer, task.programs.space, program, None)
            runner = LiveRunner(task.programs, builder, session, QUICKLY)
            jobs.append((replace(task, rounds=rounds, rounds_alone=True), runner))
        results = tune_all(jobs, records, Budget(TRIALS), options=TuningOptions(batch=TRIALS))
        assert [result.measured for result in results] == [TRIALS] * len(PAIRS)
        for task in opened.values():
            found = records.for_key(task.key)
            assert [record.error_text for record in found if record.error_kind] == []
            assert all((record.max_abs_error or 0.0) < 1e-4 for record in found)
            space = task.programs.space
            (tiles,) = gpu_tiles(space)
            rows = space.batch([space.parse(record.configuration) for record in found])
            assert len({tiles.sides(row).block for row in rows}) > 1
