"""Tile shapes for given sizes on a CPU: GetTShape and GetBShape of ETO (PVLDB, 2022), with a CPU's costs.

A CPU program SSRSRS (cross.schedule.cpu_sketch) has the paper's three sizes of a GPU program at other places:
outer tiles, which cores take in turn, for blocks; the register tile for the work of a thread; the tile of the
level between, which stays in the nearest cache, for shared memory. A register tile costs the loads that feed
it for each multiply-add, a block the cache lines that it touches for each point; both times what overlapping
last tiles compute twice. All shapes of a step are weighed at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import Batch, ScheduleSpace
from cross.schedule.tiling import TiledLoop, TiledStage
from toolkit.explore.neighbourhood.footprint import touched_lines
from toolkit.explore.neighbourhood.loops import MajorLoops

BLOCK, CACHE, REGISTER = range(3)
"""Levels of the tiles of a space axis: what cores take in turn, what the nearest cache and registers hold."""
REGISTER_TILES: Final = 4  # shapes that are tried for each size of a block
NEAR: Final = 1.6
"""Register tiles are at most so many times larger or smaller than the given one, as the registers are the
same: much larger ones spill, much smaller ones leave multiply-adds waiting."""
FEWEST_SHAPES: Final = 64  # register tiles that are weighed where none is so NEAR
NEAR_BLOCK: Final = 1.25  # blocks of a size: few axes have tiles of exactly that size
MOST_BLOCKS: Final = 192  # shapes of one block size whose lines are counted, which takes most of the time

Row = NDArray[np.int64]
Shapes = NDArray[np.int64]
"""One tile a row, one axis a column: [N, A]."""
Sizes = Mapping[str, tuple[int, ...]]
"""The tiles of a program by the name of the axis, outermost level first, each in units of the next one."""


def tiled_reduction(space: ScheduleSpace) -> TiledStage | None:
    """The reduction with the most iterations of those whose space axes a space tiles; None: it tiles none."""
    stages = [stage for stage in space.tiles if stage.space]
    return max(stages, key=lambda stage: stage.iterations, default=None)


def tile_sizes(stage: TiledStage, row: Row) -> Sizes:
    """The tiles of one configuration, int64 [K]."""
    return {loop.name: tuple(loop.choices[row[loop.column]].tolist()) for loop in stage.space}


def points(sizes: Sizes, level: int) -> int:
    """Points of the tile of a level."""
    return math.prod(math.prod(tile[level:]) for tile in sizes.values())


class TileShapes(msgspec.Struct, frozen=True):
    """Looks for configurations of a space whose tiles have given sizes.

    `like`: the sizes of a program that tiles are near to; `template`: a configuration, int64 [K], that gives
    the other knobs their values.
    """

    space: ScheduleSpace
    stage: TiledStage
    loops: MajorLoops
    like: Sizes
    template: Row

    def registers(self) -> Shapes:
        """Up to REGISTER_TILES register tiles of about the given size: of each size the one with the fewest
        loads. The given tile itself, as far as the space has it, comes first."""
        wanted = points(self.like, REGISTER)
        grid = _grid([np.unique(loop.points(REGISTER)) for loop in self.stage.space])
        size = grid.prod(axis=1)
        near = np.maximum(size / wanted, wanted / size) <= NEAR
        grid = grid[near] if near.any() else grid[np.argsort(np.abs(np.log(size / wanted)))[:FEWEST_SHAPES]]
        grid = grid[self.space.valid(self._smallest(grid))]
        if not len(grid):
            return grid
        order = np.lexsort((*grid.T[::-1], self._register_costs(grid)))
        size = grid.prod(axis=1)
        _, first = np.unique(size[order], return_index=True)
        chosen = grid[order[np.sort(first)]][:REGISTER_TILES]
        given = [self._given(loop)[REGISTER] for loop in self.stage.space]
        own = np.abs(np.log(grid / np.array(given))).sum(axis=1).argmin()
        return unique(np.concatenate([grid[own][None], chosen]))[:REGISTER_TILES]

    def block(self, register: NDArray[np.int64], size: int) -> Row | None:
        """The configuration, int64 [K], whose block of about `size` points touches the fewest cache lines.

        register: its register tile, int64 [A]. The cache tile is the one nearest to the given one. None: the
        space has no block of that size around this register tile.
        """
        tiles = list(zip(self.stage.space, register.tolist(), strict=True))
        grid = _grid([np.unique(loop.points(BLOCK)[loop.points(REGISTER) == side]) for loop, side in tiles])
        away = np.abs(np.log(grid.prod(axis=1) / size))
        grid = grid[np.argsort(away, kind="stable")[:MOST_BLOCKS]]
        grid = grid[np.sort(away)[: len(grid)] <= math.log(NEAR_BLOCK)]
        if not len(grid):
            return None
        whole = np.ones((len(grid), len(self.loops.space)), np.int64)
        whole[:, [loop.place for loop in self.stage.space]] = grid
        lines = touched_lines(self.loops, whole, self.space.target.cache_line_bytes)
        best = int((lines / grid.prod(axis=1) * self._waste(grid)).argmin())
        row = self.template.copy()
        for (loop, side), tile in zip(tiles, grid[best].tolist(), strict=True):
            found = np.flatnonzero((loop.points(REGISTER) == side) & (loop.points(BLOCK) == tile))
            wanted = self._given(loop)[CACHE] * side
            row[loop.column] = found[np.abs(np.log(loop.points(CACHE)[found] / wanted)).argmin()]
        return row

    def _given(self, loop: TiledLoop) -> tuple[int, ...]:
        return self.like.get(loop.name, (1, 1, 1))

    def _register_costs(self, grid: Shapes) -> NDArray[np.float64]:
        """Loads for each multiply-add times the waste of overlapping tiles, [N]."""
        registers = grid.copy()
        registers[:, -1] = -(-grid[:, -1] // self.space.target.vector_lanes())
        loads = np.zeros(len(grid))
        for dimensions in self.loops.inputs:
            used = {loop for dimension in dimensions for loop, _ in dimension.steps}
            mine = [position for position, loop in enumerate(self.stage.space) if loop.place in used]
            loads += registers[:, mine].prod(axis=1)
        found: NDArray[np.float64] = loads / registers.prod(axis=1) * self._waste(grid)
        return found

    def _waste(self, grid: Shapes) -> NDArray[np.float64]:
        """Points computed over points needed, [N]."""
        extents = np.array([loop.extent for loop in self.stage.space])
        found: NDArray[np.float64] = (-(-extents // grid) * grid / extents).prod(axis=1)
        return found

    def _smallest(self, grid: Shapes) -> Batch:
        """Configurations with these register tiles and the smallest tiles around them."""
        batch = np.repeat(self.template[None], len(grid), axis=0)
        for position, loop in enumerate(self.stage.space):
            by_size = {}
            for choice in np.argsort(-loop.points(BLOCK), kind="stable").tolist():
                by_size[int(loop.choices[choice, REGISTER])] = (
                    choice  # the smallest block comes last, and stays
                )
            batch[:, loop.column] = [by_size[size] for size in grid[:, position].tolist()]
        return batch


def _grid(options: list[NDArray[np.int64]]) -> Shapes:
    """All combinations, lexicographic."""
    columns = np.meshgrid(*options, indexing="ij")
    return np.stack([column.ravel() for column in columns], axis=1)


def unique(rows: Batch) -> Batch:
    """Each row once, in order."""
    return rows[np.sort(np.unique(rows, axis=0, return_index=True)[1])]
