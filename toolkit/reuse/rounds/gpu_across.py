"""Sums that the threads of a block share: how many threads do (ETO, 5.3: cross-thread reduction)."""

from __future__ import annotations

import math

from cross.expression.language.operator import Operator
from cross.schedule.gpu_rows import PARTIAL
from cross.schedule.space import Part, ScheduleSpace
from toolkit.reuse.rounds.program import Program
from toolkit.reuse.rounds.sizes import divisors_between


def parts_of_threads(space: ScheduleSpace, reused: Program) -> list[Part]:
    """The algorithms of `space` with as many threads on a sum as the reused program calls for, nearest first.

    None where the sums of one of the two are not shared.
    """
    threads = _threads(reused.space.part_of(reused.row))
    mine = [(count, part) for part in space.parts if (count := _threads(part))]
    if not threads or not mine:
        return []
    (points, terms), (source_points, source_terms) = _sizes(space.operator), _sizes(reused.space.operator)
    start, end = threads * source_points / points, threads * terms / source_terms
    wanted = [threads, *divisors_between(start, end, terms)]
    mine.sort(key=lambda item: max(item[0] / threads, threads / item[0]))
    return [part for count, part in mine if min(wanted) <= count <= max(wanted)] or [mine[0][1]]


def _threads(part: Part) -> int:
    """How many threads share the longest sum of an algorithm; 0 where they share none."""
    stages = part.space.program.stages
    return max((stage.shape[-1] for stage in stages if stage.name.endswith(PARTIAL)), default=0)


def _sizes(operator: Operator) -> tuple[int, int]:
    """Results, and terms of each, of the stage with the most of both."""
    stages = [
        (stage.elements, math.prod(axis.extent for axis in stage.reduce_axes)) for stage in operator.stages
    ]
    return max(stages, key=math.prod)
