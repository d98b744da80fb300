"""What is computed for many draws at once equals what a plain loop finds, to the last bit."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from cross.schedule.tiles import divisors
from tests.unit.toolkit.reuse import plain_search_cost as plain
from tests.unit.toolkit.reuse.operators import conv, product
from toolkit.explore.neighbourhood.footprint import touched_lines
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.plan.bridges import reusable
from toolkit.reuse.plan.expected_trials import expected_trials
from toolkit.reuse.rounds.block_shape import block_shapes, cheapest_block, factorizations, loaded_elements
from toolkit.reuse.rounds.divisor_table import divisor_table
from toolkit.reuse.rounds.sizes import divisors_between

SMALL = [
    conv(8, 6, 12, 3),
    conv(24, 6, 12, 3),
    conv(24, 12, 12, 3, 2),
    conv(8, 3, 4, 1),
    conv(12, 7, 20, 1, 2),
    product(1, 12, 18, 20),
    product(3, 12, 36, 20),
    product(3, 4, 6, 4),
    product(1, 16, 18, 40),
]


@pytest.mark.slow
def test_expected_trials_equal_the_plain_version_bit_for_bit() -> None:
    pairs = [pair for pair in itertools.permutations(SMALL, 2) if reusable(*pair)]
    assert len(pairs) >= 12
    for target, source in pairs:
        assert expected_trials(target, source) == plain.expected_trials(target, source), (target, source)


@pytest.mark.parametrize("loops", SMALL)
def test_shapes_of_all_sizes_at_once_are_those_of_each_size(loops: MajorLoops) -> None:
    table = block_shapes(loops)
    assert tuple(table.sizes.tolist()) == divisors(loops.points)
    for size, shape, lines, loads in zip(
        table.sizes.tolist(), table.shapes.tolist(), table.lines, table.loads, strict=True
    ):
        assert cheapest_block(loops, factorizations(size, loops.space)) == tuple(shape)
        assert tuple(shape) == plain.best_shape(loops, size)
        assert lines == plain.lines(loops, tuple(shape), 8)
        assert loads == loaded_elements(loops, tuple(shape), 1)


@pytest.mark.parametrize("line", [8, 16])
def test_lines_of_many_shapes_are_those_of_each_one(line: int) -> None:
    rng = np.random.default_rng(7)
    for loops in SMALL:
        shapes = np.stack([rng.integers(1, extent + 1, 6) for extent in loops.space], axis=1)
        expected = [plain.lines(loops, tuple(shape), line) for shape in shapes.tolist()]
        assert touched_lines(loops, shapes, 4 * line).tolist() == expected


@pytest.mark.parametrize("rising", [True, False])
def test_ranges_of_a_table_are_those_of_divisors_between(*, rising: bool) -> None:
    number = 2**4 * 3**2 * 7
    table, rng = divisor_table(number), np.random.default_rng(2)
    lows = np.concatenate([rng.uniform(0.01, 1.2 * number, 300), rng.choice(table.values, 100)])
    highs = lows * rng.choice([1.0, 1.1, 2.0, 3.0, 7.5], len(lows))
    starts, ends = (lows, highs) if rising else (highs, lows)
    numbers = rng.integers(0, len(table.values), len(lows))
    found = table.ranges(starts, ends, numbers, rising=rising).counts.tolist()
    whole = table.ranges(starts, ends, rising=rising).counts.tolist()
    for start, end, place, some, all_of in zip(starts, ends, numbers, found, whole, strict=True):
        if start == end and not rising:
            continue  # a range of one point rises
        assert some == len(divisors_between(start, end, int(table.values[place])))
        assert all_of == len(divisors_between(start, end, number))
