"""The estimate that a GPU's untuned tiles are chosen by, against what is known of any device."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.dense import dense
from cross.schedule.choose import space_of
from cross.schedule.gpu_cycles import BlockShapes, cycles

H100 = load("h100").target()


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
        fetched_bytes=64 * depth,
        registers=np.full(count, 64),
        blocks=rng.integers(1, 2000, count),
    )


def measured() -> dict[str, tuple[BlockShapes, NDArray[np.float64]]]:
    """Programs of nine operators on an H100 and their seconds."""
    document = json.loads((Path(__file__).parent / "h100_tiles.json").read_text())
    found = {}
    for name, rows in document["programs"].items():
        *columns, seconds = np.array(rows).T
        named = zip(document["columns"], columns, strict=False)
        known = {column: values.astype(np.int64) for column, values in named}
        shapes = BlockShapes(**known, fetched_bytes=known["bytes"])
        found[name] = shapes, seconds
    return found


def test_the_estimate_is_near_what_was_measured() -> None:
    errors, lost = [], []
    for shapes, seconds in measured().values():
        estimated = cycles(shapes, H100)
        errors += (np.log(seconds) - np.log(estimated)).tolist()
        lost.append(np.log(seconds[estimated.argmin()] / seconds.min()))
    assert len(errors) == 156 and np.std(errors) < 0.35  # of the logarithm: 34 %, one factor aside
    assert np.exp(np.mean(lost)) < 1.13  # what the best by the estimate takes longer than the best


def test_no_device_is_faster_than_its_multiply_adds() -> None:
    found = shapes()
    work = found.threads * found.rows * found.columns * found.depth * found.steps * found.blocks
    assert H100.gpu is not None
    lanes = H100.flops_per_cycle / 2
    assert (cycles(found, H100) * H100.gpu.compute_units * lanes >= work).all()


def test_of_two_launches_that_differ_in_blocks_alone_the_larger_takes_longer() -> None:
    found = shapes()
    assert H100.gpu is not None
    more = replace(found, blocks=found.blocks + H100.gpu.compute_units)
    assert (cycles(more, H100) > cycles(found, H100)).all()


def test_untuned_tiles_are_those_that_were_fast() -> None:
    """On an H100 this program took 68 us, that with the usual tiles of other devices 88."""
    left, right = placeholder((1024, 1024), "left"), placeholder((1024, 1024), "right")
    space = space_of(Operator("matmul", (left, right), dense(left, right, "matmul")), H100)
    found = space.describe(space.default())
    assert found["matmul.i"] == [1, 32, 4, 1] and found["matmul.j"] == [1, 16, 1, 4]
    assert found["matmul.acc.k"] == [64, 1]


@pytest.mark.parametrize("board", ["jetson-nano", "jetson-orin-nano", "p100", "titan-x", "h100"])
@pytest.mark.parametrize("rows", [7, 128, 1000])
def test_untuned_tiles_obey_every_board(board: str, rows: int) -> None:
    target = load(board).target("gpu")
    left, right = placeholder((rows, 60), "left"), placeholder((60, 36), "right")
    space = space_of(Operator("matmul", (left, right), dense(left, right, "matmul")), target)
    preferred = [knob.nearest(knob.preferred) for knob in space.knobs]
    assert space.valid(np.array([preferred]))[0], "the default had to make its tiles smaller"
