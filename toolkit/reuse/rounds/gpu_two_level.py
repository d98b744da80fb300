"""The simplified search for GPU stages of two levels: threads of a block, elements of a thread (ETO, 5.3)."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.tensor import Tensor
from cross.schedule.plan import make_plan
from cross.schedule.space import Batch, ScheduleSpace
from toolkit.reuse.rounds.loops import MajorLoops
from toolkit.reuse.rounds.rounds import Known, Program, bare_name, fastest
from toolkit.reuse.rounds.search_cost import MOST_THREADS, block_sizes

Row = NDArray[np.int64]

OTHER_VECTORS: Final = 2


@dataclass(frozen=True, slots=True)
class TwoLevel:
    """A stage of two levels: its loops, without what they read, and the columns of its knobs.

    `padding`: it copies the data with a border, and is no launch where that is done within another one.
    """

    name: str
    loops: MajorLoops
    threads: int
    vector: int
    padding: bool


def two_level_stages(space: ScheduleSpace) -> list[TwoLevel]:
    """All such stages of a GPU space that its structure may run, in program order."""
    plan = make_plan(space.program)
    columns = {knob.name: column for column, knob in enumerate(space.knobs)}
    stages: list[tuple[Tensor, Tensor | None, bool]] = [(item, None, True) for item in plan.paddings]
    stages += [(group.owner, group.reduction, False) for group in plan.groups]
    found = []
    for owner, reduction, padding in stages:
        name = f"{owner.name}.threads"
        if name in columns:
            extents = () if reduction is None else tuple(axis.extent for axis in reduction.reduce_axes)
            loops = MajorLoops(space.operator.name, owner.shape, extents, (), None)
            vector = columns[f"{owner.name}.vector"]
            found.append(TwoLevel(owner.name, loops, columns[name], vector, padding))
    return found


def two_level_rounds(space: ScheduleSpace, reused: Program, best: Row, known: Known) -> Iterator[Batch]:
    """Two rounds for each stage: threads of a block, and then elements of a thread."""
    sources = {bare_name(stage.name, reused.space): stage for stage in two_level_stages(reused.space)}
    tried = best[None]
    for stage in two_level_stages(space):
        source = sources.get(bare_name(stage.name, space))
        inlined = stage.padding and space.fields(space.configuration(best)).get("padding") == 1
        if source is None or inlined:
            continue
        threads = reused.space.knobs[source.threads].choices[reused.row[source.threads]][0]
        wanted = block_sizes(stage.loops, source.loops, threads)
        choices = np.array(space.knobs[stage.threads].choices)[:, 0]
        nearest = {int(np.abs(np.log2(choices / size)).argmin()) for size in wanted}
        for column, picked in ((stage.threads, sorted(nearest)), (stage.vector, None)):
            best = fastest(tried, known)[0]
            rows = _with(space, best, column, picked)
            yield rows
            tried = np.concatenate([tried, rows])


def expected_two_level_rounds(target: MajorLoops, source: MajorLoops) -> float:
    """Expected trials of these rounds for one stage, over the numbers of threads of the reused program."""
    counts = []
    for power in range(MOST_THREADS.bit_length()):
        sizes = block_sizes(target, source, 1 << power)
        counts.append(len({round(math.log2(size)) for size in sizes}))
    return sum(counts) / len(counts) + OTHER_VECTORS


def _with(space: ScheduleSpace, row: Row, column: int, choices: list[int] | None) -> Batch:
    """The valid configurations with these choices of one knob, None for all, but the row's own."""
    options = range(len(space.knobs[column].choices)) if choices is None else choices
    others = [choice for choice in options if choice != row[column]]
    rows = np.repeat(row[None], len(others), axis=0)
    rows[:, column] = others
    found: Batch = rows[space.valid(rows)]
    return found
