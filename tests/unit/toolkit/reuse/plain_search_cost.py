"""The search-cost estimate and the lines of blocks, one draw and one address at a time.

The fast versions must equal these to the last bit.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from functools import cache

import numpy as np

from cross.schedule.tiles import divisors
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.plan.expected_trials import MOST_THREADS, UNROLL_TRIALS, VECTOR_TRIALS
from toolkit.reuse.rounds.block_shape import factorizations, loaded_elements
from toolkit.reuse.rounds.sizes import block_sizes, divisors_between, thread_counts


def expected_trials(target: MajorLoops, source: MajorLoops) -> float:
    total = weight = 0.0
    for block in divisors(source.points):
        share = len(divisors(block))
        weight += share
        of_block = 0.0
        for size in block_sizes(target, source, block):
            of_block += _trials(target, source, block, size)
        total += share * of_block
    return total / weight


def lines(loops: MajorLoops, shape: tuple[int, ...], line: int) -> int:
    """Lines of `line` elements that the first block touches, address by address."""
    total = 0
    for dimensions in loops.inputs:
        extents = (*shape, *loops.reduce)
        sides = []
        for dimension in dimensions:
            ranges = [[step * i for i in range(extents[loop])] for loop, step in dimension.steps]
            places = {sum(parts) for parts in itertools.product(*ranges)}
            sides.append(np.array(sorted(place for place in places if place < dimension.extent)))
        addresses = np.zeros(1, np.int64)
        for side, dimension in zip(sides, dimensions, strict=True):
            addresses = (addresses[:, None] * dimension.extent + side[None, :]).ravel()
        total += len(np.unique(addresses // line))
    return total


@cache
def best_shape(loops: MajorLoops, size: int, line: int = 8) -> tuple[int, ...]:
    """The shape with the fewest lines, of equal ones the lexicographically first."""
    shapes = [tuple(row) for row in factorizations(size, loops.space).tolist()]
    return min(shapes, key=lambda shape: (lines(loops, shape, line), shape))


def _trials(target: MajorLoops, source: MajorLoops, block: int, size: int) -> float:
    threads = [count for count in divisors(block) if count <= MOST_THREADS]
    tried = _mean(len(thread_counts(target, source, block, count, size)) for count in threads)
    return tried + _staged(target, source, block, size) - 1 + UNROLL_TRIALS + VECTOR_TRIALS


def _staged(target: MajorLoops, source: MajorLoops, block: int, size: int) -> float:
    own, reused = best_shape(target, size), best_shape(source, block)
    loads = loaded_elements(target, own, 1) / loaded_elements(source, reused, 1)
    increase = target.size / source.size
    high = loads * (target.points / source.points) / (size / block)
    return _mean(
        len(divisors_between(steps * high / increase, steps * high, target.split_extent))
        for steps in divisors(source.split_extent)
    )


def _mean(values: Iterable[int]) -> float:
    listed = list(values)
    return sum(listed) / len(listed)
