"""What a multi-level CPU program says of the hardware, and the knobs that decide it (ETO, section 4).

The paper reads B (blocks), T (threads) and M (shared memory) off a GPU program. A CPU program SSRSRS of
cross.schedule.cpu_sketch has the same three at other places: outer tiles, which cores take in turn, for
blocks; the register tile for the work of a thread; the tile of the level between, which stays in the nearest
cache, for shared memory. The step of the split reduction loop is n in both.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.tensor import Tensor
from cross.schedule.plan import Group, make_plan
from cross.schedule.space import ScheduleSpace

LEVELS = 3  # of a tiled space axis: outer tile, cache tile, register tile, each in units of the next

Table = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class TiledAxis:
    """A space axis with tiles: its place among all space loops, the column of its knob, its extent, and its
    choices (t1, t2, t3), [C, 3]."""

    name: str
    place: int
    column: int
    extent: int
    choices: Table

    @property
    def register(self) -> Table:
        """Points of the register tile along the axis, [C]."""
        found: Table = self.choices[:, 2]
        return found

    @property
    def cache(self) -> Table:
        """Points of the cache tile, [C]."""
        found: Table = self.choices[:, 1] * self.choices[:, 2]
        return found

    @property
    def block(self) -> Table:
        """Points of the outer tile, [C]."""
        found: Table = self.choices.prod(axis=1)
        return found


@dataclass(frozen=True, slots=True)
class SplitAxis:
    """A reduction axis that is split once: the column of its knob, its extent, its inner lengths [C]."""

    name: str
    column: int
    extent: int
    choices: Table


@dataclass(frozen=True, slots=True)
class Tiles:
    """The tiled nest of a space: the axes of its largest reduction. The last space axis has the vectors."""

    axes: tuple[TiledAxis, ...]
    reduce: tuple[SplitAxis, ...]

    def sizes(self, row: NDArray[np.int64]) -> TileSizes:
        """The tiles of one configuration, int64 [K]."""
        chosen = {axis.name: tuple(axis.choices[row[axis.column]].tolist()) for axis in self.axes}
        steps = {axis.name: int(axis.choices[row[axis.column]]) for axis in self.reduce}
        return TileSizes(chosen, steps)


@dataclass(frozen=True, slots=True)
class TileSizes:
    """Hardware features of one program: (t1, t2, t3) by space axis, inner lengths by reduction axis."""

    space: Mapping[str, tuple[int, ...]]
    reduce: Mapping[str, int]

    @property
    def block(self) -> int:
        """Points of an outer tile."""
        return math.prod(math.prod(tile) for tile in self.space.values())

    @property
    def cache(self) -> int:
        """Points of a cache tile."""
        return math.prod(tile[1] * tile[2] for tile in self.space.values())

    @property
    def register(self) -> int:
        """Points of a register tile."""
        return math.prod(tile[2] for tile in self.space.values())


def find_tiles(space: ScheduleSpace) -> Tiles | None:
    """The tiled nest of a space with the most iterations; None where the space tiles no reduction."""
    plan = make_plan(space.program)
    groups = [group for group in plan.groups if group.reduction is not None]
    columns = {knob.name: column for column, knob in enumerate(space.knobs)}
    for group in sorted(groups, key=_iterations, reverse=True):
        found = _tiles_of(space, group, columns)
        if found is not None:
            return found
    return None


def _iterations(group: Group) -> int:
    assert group.reduction is not None
    return group.reduction.elements * math.prod(axis.extent for axis in group.reduction.reduce_axes)


def _tiles_of(space: ScheduleSpace, group: Group, columns: Mapping[str, int]) -> Tiles | None:
    reduction = group.reduction
    assert reduction is not None
    tables = {knob.name: np.array(knob.choices, np.int64) for knob in space.knobs}
    axes = []
    for place, axis in enumerate(group.owner.axes):
        name = f"{group.owner.name}.{axis.name}"
        if name in tables and tables[name].shape[1] == LEVELS:
            axes.append(TiledAxis(axis.name, place, columns[name], axis.extent, tables[name]))
    if not axes:
        return None
    return Tiles(tuple(axes), tuple(_split_axes(reduction, group.reduction_name, tables, columns)))


def _split_axes(
    reduction: Tensor, name: str, tables: Mapping[str, Table], columns: Mapping[str, int]
) -> list[SplitAxis]:
    found = []
    for axis in reduction.reduce_axes:
        knob = f"{name}.{axis.name}"
        if knob in tables:
            found.append(SplitAxis(axis.name, columns[knob], axis.extent, tables[knob][:, 0]))
    return found
