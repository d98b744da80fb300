"""The simplified search for GPU stages of two levels: threads of a block, elements of a thread (ETO, 5.3)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import Batch, ScheduleSpace
from cross.schedule.tiling import TiledStage
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.explore.rounds import Step
from toolkit.reuse.rounds.program import Program, bare_name
from toolkit.reuse.rounds.sizes import block_sizes

Row = NDArray[np.int64]


def two_level_steps(space: ScheduleSpace, reused: Program) -> Iterator[Step]:
    """Two rounds for each stage: threads of a block, and then elements of a thread."""
    sources = {bare_name(stage.owner.name, reused.space): stage for stage in two_level_stages(reused.space)}
    for stage in two_level_stages(space):
        source = sources.get(bare_name(stage.owner.name, space))
        if source is None:
            continue
        (threads, vector), (source_threads, _) = _launch(stage), _launch(source)
        size = reused.space.knobs[source_threads].choices[reused.row[source_threads]][0]
        wanted = block_sizes(_loops(space, stage), _loops(reused.space, source), size)
        choices = np.array(space.knobs[threads].choices)[:, 0]
        nearest = sorted({int(np.abs(np.log2(choices / count)).argmin()) for count in wanted})
        for column, picked in ((threads, nearest), (vector, list(range(space.shape[vector])))):
            yield partial(_others, space, stage, column, picked)


def two_level_stages(space: ScheduleSpace) -> list[TiledStage]:
    """All such stages of a GPU space, in program order."""
    return [stage for stage in space.tiles if stage.launch is not None]


def _launch(stage: TiledStage) -> tuple[int, int]:
    assert stage.launch is not None
    return stage.launch


def _loops(space: ScheduleSpace, stage: TiledStage) -> MajorLoops:
    """The loops of a stage, without what they read."""
    reduce = () if stage.reduction is None else stage.reduction.reduce_axes
    extents = tuple(axis.extent for axis in reduce)
    return MajorLoops(space.operator.name, stage.owner.shape, extents, (), None)


def _others(space: ScheduleSpace, stage: TiledStage, column: int, choices: list[int], row: Row) -> Batch:
    """The valid configurations with these choices of a stage's knob; none where the stage has no loops."""
    inlined = stage.is_padding and space.fields(space.configuration(row)).get("padding") == 1
    others = [] if inlined else [choice for choice in choices if choice != row[column]]
    return space.varied(row, column, others)
