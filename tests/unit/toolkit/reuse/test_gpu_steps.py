"""Algorithm 1 for GPUs: the paper's Example 3, and costs against plain loops on small random operators."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from cross.schedule.gpu_tiles import UNROLL_LIMITS
from cross.schedule.tiles import divisors
from tests.unit.toolkit.reuse.operators import conv, product
from toolkit.explore.neighbourhood.footprint import touched_lines
from toolkit.explore.neighbourhood.loops import Dimension, MajorLoops
from toolkit.reuse.rounds.block_shape import GPU_LINE_BYTES, cheapest_block, factorizations, loaded_elements
from toolkit.reuse.rounds.gpu_steps import (
    GpuFeatures,
    default_fetches,
    other_fetches,
    ratios,
    vector_lengths,
    wanted_registers,
)
from toolkit.reuse.rounds.gpu_threads import (
    Staging,
    order_by_cost,
    smallest_prime,
    thread_costs,
    thread_shapes,
)
from toolkit.reuse.rounds.gpu_unroll import (
    ThreadBody,
    default_unroll,
    other_unrolls,
    thread_body,
)
from toolkit.reuse.rounds.sizes import block_sizes, thread_counts

TARGET, SOURCE = conv(128, 28, 256, 1), conv(128, 28, 512, 1)
SHAPE = (1, 32, 2, 28)
OPTIONS = {option: option for option in UNROLL_LIMITS}  # the paper: products stay below the option itself


def _halves(points: int) -> tuple[int, int]:
    """How the rest of a loop is split between its two levels in a thread (GetS): (outer, inner)."""
    return points // smallest_prime(points), smallest_prime(points)


def body_of(inner: tuple[int, ...], fetched: int) -> ThreadBody:
    """The unrolled body of a thread without virtual threads."""
    split, middle = [_halves(side) for side in inner], _halves(fetched)
    outer, innermost = zip(*split, strict=True)
    return thread_body((1,) * 4, outer, innermost, (middle[0], 1, 1), (middle[1], 1, 1))


def reused() -> GpuFeatures:
    """The tuned program of Example 3: 56 blocks of 224 threads, 4 fetches, 11264 shared elements."""
    return GpuFeatures(
        block=math.prod(SHAPE),
        threads=224,
        fetches=4,
        loaded=loaded_elements(SOURCE, SHAPE, 512 // 4),
        registers=body_of((1, 4, 2, 1), 512 // 4).registers(SOURCE, 1024),
        unroll=1024,
    )


def test_example_3_blocks() -> None:
    known = reused()
    assert known.loaded == 11264
    assert SOURCE.points // known.block == 56
    sizes = block_sizes(TARGET, SOURCE, known.block)
    assert sorted(TARGET.points // size for size in sizes) == [28, 32, 49, 56, 64, 98, 112]
    shapes = factorizations(known.block, TARGET.space)
    assert cheapest_block(TARGET, shapes) == SHAPE
    lines = touched_lines(TARGET, shapes, GPU_LINE_BYTES)
    assert sorted(set(lines.tolist()))[:3] == [2816, 3072, 3328]


def test_example_3_fetches() -> None:
    found = ratios(TARGET, SOURCE, reused(), SHAPE)
    assert (found.increase, found.blocks, found.loads) == (0.5, 1.0, 0.5)
    assert default_fetches(TARGET, reused(), found) == 2  # LShape [2, 1, 1]
    assert other_fetches(TARGET, reused(), found, 2) == (4, 1)


@pytest.mark.parametrize(
    "threads, inner, cost", [(112, [1, 4, 2, 2], 7680), (128, [1, 2, 1, 7], 7680), (224, [1, 4, 2, 1], 8960)]
)
def test_example_3_threads(threads: int, inner: list[int], cost: int) -> None:
    assert threads in thread_counts(TARGET, SOURCE, math.prod(SHAPE), 224, math.prod(SHAPE))
    shapes = thread_shapes(SHAPE, threads)
    costs = thread_costs(TARGET, SHAPE, shapes, Staging((128, 1, 1)))
    best = order_by_cost(shapes, costs)[0]
    assert shapes.inner[best].tolist() == inner
    assert shapes.virtual[best].tolist() == [1, 1, 1, 1]
    assert costs[best] == cost


def test_example_3_unrolling_and_vectors() -> None:
    body = body_of((1, 4, 2, 1), 256 // 2)
    wanted = wanted_registers(reused(), ratios(TARGET, SOURCE, reused(), SHAPE), fetches=2)
    assert wanted == reused().registers
    assert default_unroll(body, TARGET, wanted, OPTIONS, reused().unroll) == 1024
    assert other_unrolls(body, 1024, OPTIONS) == (0, 16)
    data, kernel = 128 * 2 * 28, 32 * 128
    assert vector_lengths(data, 224) == (2, 4)
    assert vector_lengths(kernel, 224) == ()


def random_operator(rng: np.random.Generator) -> MajorLoops:
    if rng.random() < 0.4:
        return product(*(int(rng.choice((2, 4, 6, 12))) for _ in range(4)))
    outputs, size, inputs, kernel = (int(rng.choice(sides)) for sides in ((2, 6, 8), (4, 6), (2, 4), (1, 3)))
    return conv(outputs, size, inputs, kernel, stride=int(rng.integers(1, 3)))


def place(dimension: Dimension, point: tuple[int, ...]) -> int:
    return sum(point[loop] * step for loop, step in dimension.steps)


def points(sides: tuple[int, ...]) -> itertools.product[tuple[int, ...]]:
    return itertools.product(*(range(side) for side in sides))


def plain_cost(
    loops: MajorLoops,
    block: tuple[int, ...],
    split: tuple[list[int], list[int], list[int]],
    staging: Staging,
) -> int:
    """GetTShape's cost, thread by thread and element by element."""
    virtual, threads, inner = split
    zeros = (0,) * len(staging.fetched)
    total = 0
    for dimensions in loops.inputs:
        if staging.shared:
            box = [max(place(item, point) for point in points((*block, *staging.fetched))) + 1
                   for item in dimensions]  # fmt: skip
        else:
            box = [item.extent for item in dimensions]
        firsts = []
        for thread in points(tuple(threads)):
            start = tuple(index * side for index, side in zip(thread, inner, strict=True))
            address = 0
            for item, side in zip(dimensions, box, strict=True):
                address = address * side + place(item, (*start, *zeros))
            firsts.append(address)
        turns = 0
        for first in range(0, len(firsts), staging.lanes):
            warp = set(firsts[first : first + staging.lanes])
            banks = [address % 32 for address in warp]
            turns += (
                max(map(banks.count, banks)) if staging.shared else len({address // 8 for address in warp})
            )
        loaded = set()
        for copy in points(tuple(virtual)):
            for point in points(tuple(inner)):
                own = tuple(
                    index * count * side + offset
                    for index, count, side, offset in zip(copy, threads, inner, point, strict=True)
                )
                for step in points(staging.fetched):
                    loaded.add(tuple(place(item, (*own, *step)) for item in dimensions))
        total += turns * len(loaded)
    return total


@pytest.mark.parametrize("seed", range(12))
def test_costs_of_thread_shapes_are_those_of_plain_loops(seed: int) -> None:
    rng = np.random.default_rng([11, seed])
    loops = random_operator(rng)
    block = tuple(int(rng.choice(divisors(side))) for side in loops.space)
    staging = Staging(
        tuple(int(rng.choice(divisors(side))) for side in loops.reduce),
        shared=bool(rng.integers(2)),
        lanes=int(rng.choice((1, 4, 32))),
    )
    shapes = thread_shapes(block, int(rng.choice(divisors(math.prod(block)))))
    costs = thread_costs(loops, block, shapes, staging)
    for row in rng.choice(len(shapes), min(6, len(shapes)), replace=False).tolist():
        split = shapes.virtual[row].tolist(), shapes.threads[row].tolist(), shapes.inner[row].tolist()
        assert costs[row] == plain_cost(loops, block, split, staging), (loops, block, split, staging)


def test_thread_shapes_are_all_splits_of_a_block() -> None:
    shapes = thread_shapes((4, 6), 4)
    found = set(map(tuple, np.concatenate([shapes.threads, shapes.virtual, shapes.inner], axis=1).tolist()))
    expected = {
        (*threads, *virtual, 4 // threads[0] // virtual[0], 6 // threads[1] // virtual[1])
        for threads in points((5, 7))
        for virtual in points((5, 7))
        if math.prod(threads) == 4
        and all(
            side % (count * copies or side + 1) == 0
            for side, count, copies in zip((4, 6), threads, virtual, strict=True)
        )
    }
    assert found == expected and len(shapes) == len(expected)


@pytest.mark.parametrize("seed", range(8))
def test_registers_are_those_of_the_unrolled_loops(seed: int) -> None:
    """Statements of the unrolled body, written out, use so many different elements of the inputs."""
    rng = np.random.default_rng([12, seed])
    loops = random_operator(rng)
    spaces = len(loops.space)
    sides = [rng.choice((1, 2, 3), spaces).tolist() for _ in range(3)]
    steps = [rng.choice((1, 2), len(loops.reduce)).tolist() for _ in range(2)]
    body = thread_body(*sides, *steps)
    levels = [*enumerate(sides[0]), *enumerate(sides[1]), *enumerate(steps[1], spaces), *enumerate(sides[2])]
    nest = [*enumerate(steps[0], spaces), *levels]  # R1, S1, S3, R2, S4
    for below in UNROLL_LIMITS:
        held, written = [1] * (spaces + len(loops.reduce)), 1
        for loop, extent in reversed(nest):
            if extent > 1 and written * extent >= below:
                break
            written, held[loop] = written * extent, held[loop] * extent
        used = {
            (number, *(place(item, point) for item in dimensions))
            for point in points(tuple(held))
            for number, dimensions in enumerate(loops.inputs)
        }
        outside = sum(
            any(
                position >= item.extent
                for position, item in zip(element[1:], loops.inputs[element[0]], strict=True)
            )
            for element in used
        )
        outputs = math.prod(math.prod(level) for level in sides)
        assert body.unrolled(below) == tuple(held)
        assert body.registers(loops, below) == len(used) - outside + outputs


def test_space_loops_that_are_written_out_anyway_count_as_vectors() -> None:
    """In our sketch S3 and S4 are written out always, the last loop as a vector: one statement."""
    body = thread_body((1, 1), (1, 2), (3, 4), (8,), (2,), written=True)
    assert body.unrolled(below=1) == (3, 4, 1)
    assert body.unrolled(below=3 * 2 + 1) == (3, 8, 2)
    assert body.unrolled(below=3 * 2 * 2 * 8 + 1) == (3, 8, 16)


def test_the_rest_of_a_loop_is_split_by_its_smallest_prime() -> None:
    assert [smallest_prime(side) for side in (1, 2, 7, 12, 15)] == [1, 2, 7, 2, 3]
