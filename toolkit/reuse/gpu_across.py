"""Sums that the threads of a block share: how many threads do (ETO, 5.3: cross-thread reduction)."""

from __future__ import annotations

import math

from cross.expression.operator import Operator
from cross.schedule.alternatives import AlternativeSpaces
from cross.schedule.gpu_sketch import PARTIAL
from cross.schedule.space import ScheduleSpace
from toolkit.reuse.divisors import divisors_between


def numbers_of_threads(space: AlternativeSpaces, source: ScheduleSpace, used: int) -> list[int]:
    """The algorithms of `space` with as many threads on a sum as the reused program calls for, nearest first.

    used: the algorithm of that program in its space `source`. None where its sums are not shared.
    """
    threads = _threads_by_algorithm(source).get(used)
    mine = _threads_by_algorithm(space)
    if threads is None or not mine:
        return []
    (points, terms), (source_points, source_terms) = _sizes(space.operator), _sizes(source.operator)
    start, end = threads * source_points / points, threads * terms / source_terms
    wanted = [threads, *divisors_between(start, end, terms)]
    order = sorted(mine, key=lambda number: max(mine[number] / threads, threads / mine[number]))
    return [number for number in order if min(wanted) <= mine[number] <= max(wanted)] or order[:1]


def _threads_by_algorithm(space: ScheduleSpace) -> dict[int, int]:
    """How many threads share the longest sum, by the number of the algorithm."""
    found = {}
    for number, part in enumerate(space.spaces if isinstance(space, AlternativeSpaces) else ()):
        counts = [stage.shape[-1] for stage in part.program.stages if stage.name.endswith(PARTIAL)]
        if counts:
            found[number] = max(counts)
    return found


def _sizes(operator: Operator) -> tuple[int, int]:
    """Results, and terms of each, of the stage with the most of both."""
    stages = [
        (stage.elements, math.prod(axis.extent for axis in stage.reduce_axes)) for stage in operator.stages
    ]
    return max(stages, key=math.prod)
