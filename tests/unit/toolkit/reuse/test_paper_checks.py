"""Numbers that the paper states, and those that follow from its rules for its own operators."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tests.unit.toolkit.reuse.operators import BERT_BASE, RESNET50, conv, product
from toolkit.explore.neighbourhood.footprint import touched_lines
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.graph.arborescence import minimum_arborescence
from toolkit.reuse.graph.steiner import steiner_tree
from toolkit.reuse.plan.bridges import all_bridges, one_hop_bridges, reusable
from toolkit.reuse.plan.expected_trials import expected_trials
from toolkit.reuse.rounds.block_shape import GPU_LINE_BYTES, cheapest_block, factorizations, loaded_elements
from toolkit.reuse.rounds.sizes import block_sizes, divisors_between, thread_counts

BACKEND_TRIALS = 1000.0
TARGET, SOURCE = conv(128, 28, 256, 1), conv(128, 28, 512, 1)  # example 3
BLOCK = 32 * 2 * 28


def choice_graph(loops: list[MajorLoops]) -> tuple[np.ndarray, int]:
    """Costs with the backend tuner as node 0, and how many reuse arcs there are."""
    costs = np.full((len(loops) + 1, len(loops) + 1), np.inf)
    costs[0, 1:] = BACKEND_TRIALS
    arcs = 0
    for target, source in itertools.permutations(range(len(loops)), 2):
        if reusable(loops[target], loops[source]):
            costs[source + 1, target + 1] = expected_trials(loops[target], loops[source])
            arcs += 1
    return costs, arcs


def test_block_sizes_of_example_3() -> None:
    sizes = block_sizes(TARGET, SOURCE, BLOCK)
    assert sorted(TARGET.points // size for size in sizes) == [28, 32, 49, 56, 64, 98, 112]


def test_block_shape_of_example_3() -> None:
    shapes = factorizations(BLOCK, TARGET.space)
    assert cheapest_block(TARGET, shapes) == (1, 32, 2, 28)
    lines = touched_lines(TARGET, shapes, GPU_LINE_BYTES).tolist()
    assert sorted(set(lines))[:3] == [2816, 3072, 3328]


def test_threads_of_example_3() -> None:
    assert sorted(thread_counts(TARGET, SOURCE, BLOCK, 224, BLOCK)) == [112, 128, 224]


def test_staged_steps_of_example_3() -> None:
    assert TARGET.split_extent == 256
    # four steps at a time: 32 output channels of the weights and 2 x 28 points of the image
    assert loaded_elements(TARGET, (1, 32, 2, 28), 4) == 4 * (32 + 56)
    assert divisors_between(8.0, 4.0, 256) == (8, 4)


def test_bert_base_without_and_with_bridges() -> None:
    loops = [product(*extents) for extents in BERT_BASE]
    costs, arcs = choice_graph(loops)
    assert arcs == 4
    assert minimum_arborescence(costs).cost == pytest.approx(3202, abs=0.5)
    bridges = one_hop_bridges([item.extents for item in loops])
    assert bridges == ((1, 128, 128, 64), (1, 128, 64, 128), (12, 128, 64, 64))
    costs, arcs = choice_graph([*loops, *(product(*extents) for extents in bridges)])
    assert arcs == 24
    assert steiner_tree(costs, range(1, 6)).cost == pytest.approx(1561.5, abs=0.05)


def test_resnet50_has_44_bridges_and_starts_from_8_operators_without_them() -> None:
    loops = [conv(*shape) for shape in RESNET50]
    extents = [item.extents for item in loops]
    assert len(one_hop_bridges(extents)) == 44
    assert len(all_bridges(extents)) == 49
    costs, _ = choice_graph(loops)
    tuned = [target for source, target in minimum_arborescence(costs).arcs if source == 0]
    assert len(tuned) == 8


def test_lines_are_counted_like_addresses_one_by_one() -> None:
    rng = np.random.default_rng(3)
    for _ in range(40):
        outputs, size, inputs, kernel, stride = (int(rng.integers(1, top)) for top in (9, 12, 6, 4, 3))
        loops = conv(outputs, size, inputs, kernel, stride)
        shape = tuple(int(rng.choice([d for d in range(1, n + 1) if n % d == 0])) for n in loops.space)
        expected = 0
        for dimensions in loops.inputs:
            addresses: set[int] = set()
            for point in itertools.product(*(range(extent) for extent in (*shape, *loops.reduce))):
                address = 0
                for dimension in dimensions:
                    place = sum(point[loop] * step for loop, step in dimension.steps)
                    address = address * dimension.extent + place
                addresses.add(address // 8)
            expected += len(addresses)
        assert int(touched_lines(loops, np.array([shape]), GPU_LINE_BYTES)[0]) == expected, (loops, shape)


def test_factorizations_are_all_shapes_of_a_size() -> None:
    found = {tuple(row) for row in factorizations(12, (4, 6, 9)).tolist()}
    sides = [[d for d in range(1, n + 1) if n % d == 0] for n in (4, 6, 9)]
    assert found == {shape for shape in itertools.product(*sides) if math.prod(shape) == 12}
