"""Tile shapes for given sizes on a CPU: GetTShape and GetBShape of ETO, with a CPU's costs.

A register tile costs the loads that feed it for each multiply-add, a block the cache lines that it touches
for each point; both times what overlapping last tiles compute twice. All shapes of a step are weighed
at once.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import Batch, ScheduleSpace
from toolkit.reuse.rounds.block_shape import touched_lines
from toolkit.reuse.rounds.cpu_tiles import TiledAxis, Tiles, TileSizes
from toolkit.reuse.rounds.loops import MajorLoops

NEAR = 1.6  # register tiles: at most so many times larger or smaller than the reused one
NEAR_BLOCK = 1.25
MOST_BLOCKS = 192  # shapes of one block size that are weighed

Shapes = NDArray[np.int64]
"""One tile a row, one axis a column: [N, A]."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What the costs need to know: float32 elements of a vector register, bytes of a cache line."""

    lanes: int
    line_bytes: int


def register_shapes(
    space: ScheduleSpace,
    tiles: Tiles,
    loops: MajorLoops,
    reused: TileSizes,
    template: NDArray[np.int64],
    machine: Machine,
    most: int,
) -> Shapes:
    """Up to `most` register tiles of about the reused size: of each size the one with the fewest loads.

    The reused tile itself, as far as the space has it, comes first. template: a configuration, int64 [K],
    that gives the other knobs their values.
    """
    grid = _grid([np.unique(axis.register) for axis in tiles.axes])
    size = grid.prod(axis=1)
    near = np.maximum(size / reused.register, reused.register / size) <= NEAR
    grid = grid[near] if near.any() else grid[np.argsort(np.abs(np.log(size / reused.register)))[:64]]
    grid = grid[space.valid(_smallest(tiles, grid, template))]
    if not len(grid):
        return grid
    costs = _register_costs(tiles, loops, grid, machine)
    order = np.lexsort((*grid.T[::-1], costs))
    size = grid.prod(axis=1)
    _, first = np.unique(size[order], return_index=True)
    chosen = grid[order[np.sort(first)]][:most]
    wanted = [reused.space.get(axis.name, (1, 1, 1))[2] for axis in tiles.axes]
    own = np.abs(np.log(grid / np.array(wanted))).sum(axis=1).argmin()
    together = np.concatenate([grid[own][None], chosen])
    return together[np.sort(np.unique(together, axis=0, return_index=True)[1])][:most]


def rows_of_block(
    tiles: Tiles,
    loops: MajorLoops,
    reused: TileSizes,
    register: NDArray[np.int64],
    block: int,
    template: NDArray[np.int64],
    machine: Machine,
) -> NDArray[np.int64] | None:
    """The configuration, int64 [K], whose outer tile of about `block` points touches the fewest lines.

    register: the register tile, int64 [A]. The cache tile is the one nearest to the reused one. None: the
    space has no tile of that size around this register tile.
    """
    options = [
        np.unique(axis.block[axis.register == size]) for axis, size in zip(tiles.axes, register, strict=True)
    ]
    grid = _grid(options)
    away = np.abs(np.log(grid.prod(axis=1) / block))
    grid = grid[np.argsort(away, kind="stable")[:MOST_BLOCKS]]
    grid = grid[np.sort(away)[: len(grid)] <= math.log(NEAR_BLOCK)]
    if not len(grid):
        return None
    whole = np.ones((len(grid), len(loops.space)), np.int64)
    whole[:, [axis.place for axis in tiles.axes]] = grid
    lines = touched_lines(loops, whole, machine.line_bytes)
    best = int((lines / grid.prod(axis=1) * _waste(tiles, grid)).argmin())
    row = template.copy()
    for axis, size, tile in zip(tiles.axes, register, grid[best], strict=True):
        row[axis.column] = _with_cache_tile(axis, int(size), int(tile), reused)
    return row


def _with_cache_tile(axis: TiledAxis, register: int, block: int, reused: TileSizes) -> int:
    """The choice with these tiles whose middle one is nearest to the reused middle tile."""
    found = np.flatnonzero((axis.register == register) & (axis.block == block))
    wanted = reused.space.get(axis.name, (1, 1, 1))[1] * register
    return int(found[np.abs(np.log(axis.cache[found] / wanted)).argmin()])


def _register_costs(tiles: Tiles, loops: MajorLoops, grid: Shapes, machine: Machine) -> NDArray[np.float64]:
    """Loads for each multiply-add times the waste of overlapping tiles, [N]."""
    registers = grid.copy()
    registers[:, -1] = -(-grid[:, -1] // machine.lanes)
    loads = np.zeros(len(grid))
    for dimensions in loops.inputs:
        used = {loop for dimension in dimensions for loop, _ in dimension.steps}
        mine = [position for position, axis in enumerate(tiles.axes) if axis.place in used]
        loads += registers[:, mine].prod(axis=1)
    found: NDArray[np.float64] = loads / registers.prod(axis=1) * _waste(tiles, grid)
    return found


def _waste(tiles: Tiles, grid: Shapes) -> NDArray[np.float64]:
    """Points computed over points needed, [N]."""
    extents = np.array([axis.extent for axis in tiles.axes])
    found: NDArray[np.float64] = (-(-extents // grid) * grid / extents).prod(axis=1)
    return found


def _smallest(tiles: Tiles, grid: Shapes, template: NDArray[np.int64]) -> Batch:
    """Configurations with these register tiles and the smallest tiles around them."""
    batch = np.repeat(template[None], len(grid), axis=0)
    for position, axis in enumerate(tiles.axes):
        by_size = {}
        for choice in np.argsort(-axis.block, kind="stable"):
            by_size[int(axis.register[choice])] = int(choice)  # the smallest block comes last, and stays
        batch[:, axis.column] = [by_size[size] for size in grid[:, position].tolist()]
    return batch


def _grid(options: list[NDArray[np.int64]]) -> Shapes:
    """All combinations, lexicographic."""
    columns = np.meshgrid(*options, indexing="ij")
    return np.stack([column.ravel() for column in columns], axis=1)
