"""The tiles of a GPU program: read off a configuration, and found again among the knobs of another space.

See cross.schedule.gpu_multi_level for the sketch. A space axis has (virtual threads, threads, outer, inner
elements of a thread), a reduction axis (middle, inner) steps of what a block fetches at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from boards.target import GpuLimits
from cross.expression.language.terms import Read, walk
from cross.schedule.gpu_multi_level import LEVELS, contraction, is_contraction
from cross.schedule.gpu_tiles import UNROLL_LIMITS
from cross.schedule.plan import Group, Plan, make_plan
from cross.schedule.space import ScheduleSpace
from toolkit.reuse.rounds.block_shape import input_elements
from toolkit.reuse.rounds.gpu_steps import GpuFeatures
from toolkit.reuse.rounds.gpu_unroll import ThreadBody, thread_body
from toolkit.reuse.rounds.loops import MajorLoops, NotReusable, stage_loops

BELOW = {option: option + 1 for option in UNROLL_LIMITS}
"""Our `unroll` knob allows as many statements as it says (cross.loopnest.bind)."""

Table = NDArray[np.int64]
Row = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TiledLoop:
    """A loop with tiles: its place among the space or the reduction loops, the column of its knob, and the
    choices of that, [C, 4] or [C, 2]."""

    place: int
    column: int
    table: Table


@dataclass(frozen=True, slots=True)
class TileSides:
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
        """What a thread runs for one fetch."""
        return thread_body(self.virtual, self.outer, self.inner, self.middle, self.innermost, written=True)


@dataclass(frozen=True, slots=True)
class GpuTiles:
    """The knobs of a contraction in a space. `vectors`: (input, column of its vector knob). `shared`: the
    column of the knob whose choice 0 stages inputs in shared memory, None where the board has none."""

    name: str
    loops: MajorLoops
    space: tuple[TiledLoop, ...]
    reduce: tuple[TiledLoop, ...]
    vectors: tuple[tuple[int, int], ...]
    unroll: int
    shared: int | None

    @property
    def columns(self) -> set[int]:
        """The columns of all its knobs."""
        loops = {loop.column for loop in (*self.space, *self.reduce)}
        return loops | {column for _, column in self.vectors} | {self.unroll}

    def is_staged(self, row: Row) -> bool:
        """Whether a configuration fetches inputs into shared memory."""
        return self.shared is not None and bool(row[self.shared] == 0)

    def sides(self, row: Row) -> TileSides:
        """The tiles of a configuration, int64 [K]."""
        space = np.ones((LEVELS, len(self.loops.space)), np.int64)
        reduce = np.ones((2, len(self.loops.reduce)), np.int64)
        for loop in self.space:
            space[:, loop.place] = loop.table[row[loop.column]]
        for loop in self.reduce:
            reduce[:, loop.place] = loop.table[row[loop.column]]
        return TileSides(*(tuple(level) for level in (*space.tolist(), *reduce.tolist())))

    def features(self, row: Row) -> GpuFeatures:
        """What a configuration, int64 [K], says of the hardware."""
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
    limits = space.target.gpu
    assert limits is not None
    plan = make_plan(space.program)
    found = []
    for group in sorted(plan.groups, key=_iterations, reverse=True):
        if is_contraction(plan, group):
            tiles = _tiles_of(space, plan, group, limits)
            found += [] if tiles is None else [tiles]
    return found


def _iterations(group: Group) -> int:
    if group.reduction is None:
        return 0
    return group.reduction.elements * math.prod(axis.extent for axis in group.reduction.reduce_axes)


def _tiles_of(space: ScheduleSpace, plan: Plan, group: Group, limits: GpuLimits) -> GpuTiles | None:
    reduction, item = group.reduction, contraction(plan, group, limits)
    assert reduction is not None
    columns = {knob.fields: column for column, knob in enumerate(space.knobs)}
    reads = list(dict.fromkeys(term for term in walk(plan.body(reduction)) if isinstance(term, Read)))
    inputs = {read.tensor.name: position for position, read in enumerate(reads)}
    levels = [tuple(item.field(axis, level) for level in range(1, LEVELS + 1)) for axis in group.owner.axes]
    space_loops = _tiled(space, levels, columns)
    if not space_loops:
        return None  # a stage of a sketch with knobs of its own
    steps = [(item.step(axis, 1), item.step(axis, 2)) for axis in reduction.reduce_axes]
    try:
        return GpuTiles(
            name=group.owner.name,
            loops=stage_loops(space.program, space.operator.name, reduction, reads),
            space=space_loops,
            reduce=_tiled(space, steps, columns),
            vectors=tuple(
                (inputs[operand.name], columns[(item.vector(operand),)]) for operand in item.operands
            ),
            unroll=columns[("unroll",)],
            shared=columns.get(("shared",)) if item.operands else None,
        )
    except NotReusable:
        return None


def _tiled(
    space: ScheduleSpace, fields: Sequence[tuple[str, ...]], columns: Mapping[tuple[str, ...], int]
) -> tuple[TiledLoop, ...]:
    """The loops that have a knob: those of more than one iteration."""
    found = [(place, columns[names]) for place, names in enumerate(fields) if names in columns]
    return tuple(
        TiledLoop(place, column, np.array(space.knobs[column].choices, np.int64)) for place, column in found
    )
