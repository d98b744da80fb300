"""The tiles of a GPU program: read off a configuration, and found again among the knobs of another space.

See cross.schedule.gpu_multi_level for the sketch. A space axis has (virtual threads, threads, outer, inner
elements of a thread), a reduction axis (middle, inner) steps of what a block fetches at once.
"""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.expression.language.tensor import reads_in
from cross.schedule.gpu_multi_level import LEVELS
from cross.schedule.gpu_tiles import UNROLL_LIMITS
from cross.schedule.plan import Plan, make_plan
from cross.schedule.space import ScheduleSpace
from cross.schedule.tiling import TiledStage
from toolkit.explore.neighbourhood.footprint import input_elements
from toolkit.explore.neighbourhood.loops import IrregularLoops, MajorLoops, stage_loops
from toolkit.reuse.rounds.gpu_steps import GpuFeatures
from toolkit.reuse.rounds.gpu_unroll import ThreadBody, thread_body

BELOW = {option: option + 1 for option in UNROLL_LIMITS}
"""Our `unroll` knob allows as many statements as it says (cross.loopnest.bind)."""

Row = NDArray[np.int64]


class TileSides(msgspec.Struct, frozen=True):
    """The tiles of one program: of every space loop, and of every reduction loop."""

    virtual: tuple[int, ...]
    threads: tuple[int, ...]
    outer: tuple[int, ...]
    inner: tuple[int, ...]
    middle: tuple[int, ...]
    innermost: tuple[int, ...]

    @property
    def block(self) -> tuple[int, ...]:
        """Points of a block along each space loop."""
        sides = zip(self.virtual, self.threads, self.outer, self.inner, strict=True)
        return tuple(map(math.prod, sides))

    @property
    def fetched(self) -> tuple[int, ...]:
        """Steps of each reduction loop that a block fetches for at once."""
        return tuple(map(math.prod, zip(self.middle, self.innermost, strict=True)))

    @property
    def body(self) -> ThreadBody:
        """The loops that a thread runs for one fetch."""
        return thread_body(self.virtual, self.outer, self.inner, self.middle, self.innermost, written=True)


class GpuTiles(msgspec.Struct, frozen=True):
    """The knobs of a contraction in a space. `vectors`: (input, column of its vector knob). `shared`: the
    column of the knob whose choice 0 stages inputs in shared memory, None where the board has none."""

    stage: TiledStage
    loops: MajorLoops
    vectors: tuple[tuple[int, int], ...]
    unroll: int
    shared: int | None

    @property
    def columns(self) -> set[int]:
        """The columns of all its knobs."""
        return self.stage.columns | {self.unroll}

    def is_staged(self, row: Row) -> bool:
        """Whether a configuration fetches inputs into shared memory."""
        return self.shared is not None and bool(row[self.shared] == 0)

    def sides(self, row: Row) -> TileSides:
        """The tiles of a configuration, int64 [K]."""
        space = np.ones((LEVELS, len(self.loops.space)), np.int64)
        reduce = np.ones((2, len(self.loops.reduce)), np.int64)
        for loop in self.stage.space:
            space[:, loop.place] = loop.choices[row[loop.column]]
        for loop in self.stage.reduce:
            reduce[:, loop.place] = loop.choices[row[loop.column]]
        return TileSides(*(tuple(level) for level in (*space.tolist(), *reduce.tolist())))

    def features(self, row: Row) -> GpuFeatures:
        """The features of a configuration, int64 [K]."""
        sides, loops = self.sides(row), self.loops
        steps = 1 if loops.split is None else sides.fetched[loops.split]
        unroll = UNROLL_LIMITS[row[self.unroll]]
        return GpuFeatures(
            block=math.prod(sides.block),
            threads=math.prod(sides.threads),
            fetches=-(-loops.split_extent // steps),
            loaded=sum(input_elements(loops, (*sides.block, *sides.fetched))),
            registers=sides.body.registers(loops, BELOW[unroll]),
            unroll=unroll,
        )


def gpu_tiles(space: ScheduleSpace) -> list[GpuTiles]:
    """The contractions of a GPU space whose loops can be read, the one with the most iterations first."""
    plan = make_plan(space.program)
    stages = [stage for stage in space.tiles if stage.space]
    found = [
        _tiles_of(space, plan, stage)
        for stage in sorted(stages, key=lambda stage: stage.iterations, reverse=True)
    ]
    return [tiles for tiles in found if tiles is not None]


def _tiles_of(space: ScheduleSpace, plan: Plan, stage: TiledStage) -> GpuTiles | None:
    assert stage.reduction is not None
    columns = {knob.name: column for column, knob in enumerate(space.knobs)}
    reads = list(dict.fromkeys(reads_in(plan.body(stage.reduction))))
    inputs = {read.tensor.name: position for position, read in enumerate(reads)}
    try:
        loops = stage_loops(space.program, space.operator.name, stage.reduction, reads)
    except IrregularLoops:
        return None
    vectors = tuple((inputs[operand], column) for operand, column in stage.fetches.items())
    shared = columns.get("shared") if stage.fetches else None
    return GpuTiles(stage, loops, vectors, columns["unroll"], shared)
