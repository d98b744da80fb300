"""Tuning GPU programs for real, on PoCL: what is measured is right, failures have their kind, runs go on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from boards.board import Board
from boards.target import Target
from cross.expression import Operator, compute, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from device_runtime.protocol import Timing
from toolkit import Budget, SearchOptions, TuningOptions, tune_operator
from toolkit.explore.annealing import AnnealingOptions
from toolkit.measure.builder import Builder
from toolkit.measure.live import LiveRunner, RunnerOptions
from toolkit.measure.measurement import Measurement
from toolkit.measure.session import open_session
from toolkit.records import Records
from toolkit.tuning.on_board import open_task

TRIALS = 4
QUICK = TuningOptions(batch=2, search=SearchOptions(annealing=AnnealingOptions(chains=32, steps=8)))


@pytest.fixture(scope="module")
def board(pocl_board: Board) -> Board:
    """The only board that these tests are for."""
    return pocl_board


def small_conv(channels: tuple[int, int] = (2, 8), image: int = 6) -> Operator:
    data, weight = placeholder((1, image, image, channels[0]), "X"), placeholder((3, 3, *channels), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv")
    return Operator("conv", (data, weight), output, frozenset({1}))


@pytest.mark.slow
def test_a_convolution_is_tuned(tmp_path: Path, board: Board) -> None:
    """Every output is compared with numpy's; the same call goes on where the last one stopped."""
    path = tmp_path / "records.db"
    result = tune_operator(small_conv(), board, Budget(TRIALS), tuning=QUICK, records=path)
    assert (result.trials, result.measured) == (TRIALS, TRIALS)
    assert result.best is not None and result.default is not None
    assert result.best.cost_s is not None and result.default.cost_s is not None
    assert result.best.cost_s <= result.default.cost_s
    with Records(path) as records:
        found = list(records)
    assert [record.error_text for record in found if record.error_kind] == []
    assert all(record.max_abs_error is not None and record.max_abs_error < 1e-4 for record in found)
    assert list((Path(board.link.device_dir) / "opencl" / "binaries").iterdir())  # not built again at the end
    assert {record.target_key for record in found} == {f"pocl:{board.target().key}"}
    again = tune_operator(small_conv(), board, Budget(TRIALS + 1), tuning=QUICK, records=path)
    assert (again.trials, again.measured) == (TRIALS + 1, 1)


@pytest.mark.slow
def test_every_algorithm_of_a_convolution_is_measured(tmp_path: Path, board: Board) -> None:
    """The direct one and Winograd's, each first untuned; every output is compared with numpy's."""
    path = tmp_path / "records.db"
    result = tune_operator(small_conv((16, 16), 8), board, Budget(4), tuning=QUICK, records=path)
    assert (result.trials, result.failures) == (4, 0)
    with Records(path) as records:
        found = list(records)
    assert [record.error_text for record in found if record.error_kind] == []
    assert {record.configuration["algorithm"][0] for record in found[:3]} == {0, 1, 2}
    assert all(record.max_abs_error is not None and record.max_abs_error < 1e-4 for record in found)
    fastest = min(found, key=lambda record: record.cost_s or math.inf)
    assert result.best is not None and result.best.configuration == fastest.configuration


def pixels() -> Operator:
    data = placeholder((128, 128), "X")
    return Operator("twice", (data,), compute((128, 128), lambda i, j: data[i, j] * 2.0, name="twice"))


def lenient(target: Target) -> Target:
    """The target as if its blocks could have four times the threads."""
    assert target.gpu is not None
    most = 4 * target.gpu.max_threads_per_block
    limits = replace(target.gpu, max_threads_per_block=most, max_block_dims=(most, most, most))
    changed: Target = replace(target, gpu=limits)
    return changed


def measured(
    board: Board, target: Target, builds_for: Target, options: RunnerOptions, threads: Sequence[int]
) -> list[Measurement]:
    """The untuned program of `pixels` with so many threads a block, and then the unchanged one."""
    programs = open_task("twice", pixels(), board, target).programs
    space = programs.space
    untuned = space.describe(space.default())
    rows = [{**untuned, "twice.threads": [count]} for count in threads]
    batch = space.batch([space.parse(row) for row in [*rows, untuned]])
    with Builder(builds_for, workers=1) as builder, open_session(board) as session:
        return list(LiveRunner(programs, builder, session, options).prepare(batch))


QUICKLY = RunnerOptions(Timing(repeat=1, min_repeat_ms=0.1, warmup=0))


@pytest.mark.slow
def test_a_launch_that_the_device_refuses_is_a_failure_of_its_kind(board: Board) -> None:
    target = lenient(board.target())
    refused, right = measured(board, target, target, QUICKLY, [16384])
    assert refused.error is not None and refused.error.kind == "launch"
    assert "INVALID_WORK_GROUP_SIZE" in refused.error.text
    assert right.error is None and right.seconds


@pytest.mark.slow
def test_what_asks_for_more_than_the_board_has_is_not_uploaded(board: Board) -> None:
    refused, right = measured(board, lenient(board.target()), board.target(), QUICKLY, [16384])
    assert refused.error is not None and refused.error.kind == "build"
    assert "16384 threads a block, opencl has at most 4096" in refused.error.text
    assert refused.device_s == 0
    assert right.error is None and right.seconds


@pytest.mark.slow
def test_a_program_that_takes_too_long_is_a_timeout(board: Board) -> None:
    options = replace(QUICKLY, timeout_s=0.02)  # PoCL alone takes longer to build a kernel
    first, second = measured(board, board.target(), board.target(), options, [64])
    assert first.error is not None and first.error.kind == "timeout"
    assert second.error is not None and second.error.kind == "timeout"
