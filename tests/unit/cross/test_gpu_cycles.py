"""The estimate that a GPU's untuned tiles are chosen by, against what is known of any device."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from cross.schedule.choose import space_of
from cross.schedule.gpu_cycles import LANES, BlockShapes, cycles, grid

H200 = load("h200").target()


def shapes(count: int = 500) -> BlockShapes:
    """Blocks of random sizes, of one reduction of 1024 terms."""
    rng = np.random.default_rng(0)
    rows, threads_along, others = (rng.integers(1, 9, count) for _ in range(3))
    depth = 1 << rng.integers(2, 7, count)
    vector = np.full(count, 4)
    return BlockShapes(
        rows=rows,
        columns=vector * rng.integers(1, 3, count),
        vector=vector,
        threads=4 * threads_along * others,
        threads_along=4 * threads_along,
        depth=depth,
        steps=1024 // depth,
        bytes=64 * depth,
        registers=np.full(count, 64),
        blocks=rng.integers(1, 2000, count),
    )


def test_no_device_is_faster_than_its_multiply_adds() -> None:
    found = shapes()
    assert H200.gpu is not None
    work = found.threads * found.rows * found.columns * found.depth * found.steps * found.blocks
    assert (cycles(found, H200.gpu) * H200.gpu.compute_units * LANES >= work).all()


def test_of_two_launches_that_differ_in_blocks_alone_the_larger_takes_longer() -> None:
    found = shapes()
    assert H200.gpu is not None
    more = replace(found, blocks=found.blocks + H200.gpu.compute_units)
    assert (cycles(more, H200.gpu) > cycles(found, H200.gpu)).all()


def test_a_grid_has_every_combination_once() -> None:
    pairs = {"a": np.array([1, 2, 3]), "b": np.array([4, 5, 6])}
    found = grid([pairs, {"c": np.array([7, 8])}])
    rows = sorted(zip(*(found[name].tolist() for name in "abc"), strict=True))
    assert rows == [(a, b, c) for a, b in ((1, 4), (2, 5), (3, 6)) for c in (7, 8)]


def test_untuned_tiles_are_those_that_were_fast() -> None:
    """On an H100 this program took 68 us, that with the usual tiles of other devices 88."""
    left, right = placeholder((1024, 1024), "left"), placeholder((1024, 1024), "right")
    space = space_of(Operator("matmul", (left, right), dense(left, right, "matmul")), H200)
    found = space.describe(space.default())
    assert found["matmul.i"] == [1, 32, 4, 1] and found["matmul.j"] == [1, 16, 1, 4]
    assert found["matmul.acc.k"] == [64, 1]


@pytest.mark.parametrize("board", ["jetson-nano", "jetson-orin-nano", "p100", "titan-x", "h200"])
@pytest.mark.parametrize("rows", [7, 128, 1000])
def test_untuned_tiles_obey_every_board(board: str, rows: int) -> None:
    target = load(board).target("gpu")
    left, right = placeholder((rows, 60), "left"), placeholder((60, 36), "right")
    space = space_of(Operator("matmul", (left, right), dense(left, right, "matmul")), target)
    preferred = [knob.nearest(knob.preferred) for knob in space.knobs]
    assert space.valid(np.array([preferred]))[0], "the default had to make its tiles smaller"
