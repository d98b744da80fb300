"""The shape of a block for its size: the one that touches the fewest memory lines (ETO, GetBShape).

All shapes of one size, or of all sizes, are weighed at once. A block starts at the origin and runs over the
whole reduction.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toolkit.reuse.rounds.divisors import divisors
from toolkit.reuse.rounds.lines import Side, lines_under
from toolkit.reuse.rounds.loops import Dimension, MajorLoops

GPU_LINE_BYTES: Final = 32
FLOAT_BYTES: Final = 4

Shapes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Points of a block along each space loop, and the lines that it touches."""

    shape: tuple[int, ...]
    lines: int


@dataclass(frozen=True, slots=True, eq=False)
class BlockShapes:
    """The best shape of every size, in the order of the sizes.

    `sizes` [D]: the divisors of the points; `shapes` [D, A]; `lines` [D]: what each touches; `loads` [D]:
    elements of all inputs that one loads at once, for one step of the split loop.
    """

    sizes: NDArray[np.int64]
    shapes: Shapes
    lines: NDArray[np.int64]
    loads: NDArray[np.int64]


@lru_cache(maxsize=4096)
def block_shapes(loops: MajorLoops, line_bytes: int = GPU_LINE_BYTES) -> BlockShapes:
    """What `block_shape` finds for all sizes, in one go."""
    columns = np.meshgrid(*map(divisors, loops.space), indexing="ij")
    shapes = np.stack([column.ravel() for column in columns], axis=1)
    sizes, lines = shapes.prod(axis=1), touched_lines(loops, shapes, line_bytes)
    order = np.lexsort((lines, sizes))
    best = order[np.flatnonzero(np.diff(sizes[order], prepend=0))]
    return BlockShapes(sizes[best], shapes[best], lines[best], _loads(loops, shapes[best], 1))


def factorizations(size: int, extents: tuple[int, ...]) -> Shapes:
    """All shapes of `size` points whose sides divide the extents: int64 [N, len(extents)], lexicographic."""
    rows: list[tuple[int, ...]] = [()]
    for position, extent in enumerate(extents):
        rest = math.prod(extents[position + 1 :])
        rows = [
            (*row, side)
            for row in rows
            for side in divisors(math.gcd(extent, size // math.prod(row)))
            if rest % (size // math.prod((*row, side))) == 0
        ]
    shapes = np.array([row for row in rows if math.prod(row) == size], np.int64)
    return shapes.reshape(-1, len(extents))


@lru_cache(maxsize=65536)
def block_shape(loops: MajorLoops, size: int, line_bytes: int = GPU_LINE_BYTES) -> BlockShape | None:
    """The shape with the fewest lines, of equal ones the lexicographically first; None: no such size."""
    return cheapest_block(loops, factorizations(size, loops.space), line_bytes)


def cheapest_block(loops: MajorLoops, shapes: Shapes, line_bytes: int = GPU_LINE_BYTES) -> BlockShape | None:
    """The shape with the fewest lines among some of one size; None: there are none."""
    if not len(shapes):
        return None
    lines = touched_lines(loops, shapes, line_bytes)
    best = int(lines.argmin())
    return BlockShape(tuple(shapes[best].tolist()), int(lines[best]))


def touched_lines(loops: MajorLoops, shapes: Shapes, line_bytes: int = GPU_LINE_BYTES) -> NDArray[np.int64]:
    """Lines of all inputs that the first block of each shape touches over the whole reduction, int64 [N].

    Every input starts at a line. float32 elements.
    """
    extents = _extents(loops, shapes)
    total = np.zeros(len(shapes), np.int64)
    for dimensions in loops.inputs:
        used = sorted({loop for dimension in dimensions for loop, _ in dimension.steps})
        own, which = _distinct(extents, used)
        total += lines_under(_sides(dimensions, own), line_bytes // FLOAT_BYTES)[which]
    return total


def loaded_elements(loops: MajorLoops, shape: tuple[int, ...], staged: int) -> int:
    """Elements of all inputs that a block loads at once, `staged` steps of the split loop at a time."""
    return sum(input_elements(loops, (*shape, *staged_steps(loops, staged))))


def staged_steps(loops: MajorLoops, staged: int) -> tuple[int, ...]:
    """Steps of each reduction loop in one piece: `staged` of the split loop, all of the others."""
    return tuple(
        staged if position == loops.split else extent for position, extent in enumerate(loops.reduce)
    )


def input_elements(loops: MajorLoops, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Elements of each input under so many steps of all loops."""
    return tuple(
        math.prod(len(_positions(dimension, extents)) for dimension in dimensions)
        for dimensions in loops.inputs
    )


def _loads(loops: MajorLoops, shapes: Shapes, staged: int) -> NDArray[np.int64]:
    """`loaded_elements` of many shapes, int64 [N]."""
    extents = _extents(loops, shapes)
    if loops.split is not None:
        extents[:, shapes.shape[1] + loops.split] = staged
    total = np.zeros(len(shapes), np.int64)
    for dimensions in loops.inputs:
        total += np.prod([side.counts for side in _sides(dimensions, extents)], axis=0)
    return total


def _extents(loops: MajorLoops, shapes: Shapes) -> Shapes:
    """Extents of all loops for blocks that run over the whole reduction, int64 [N, L]."""
    reduce = np.broadcast_to(np.array(loops.reduce, np.int64), (len(shapes), len(loops.reduce)))
    return np.concatenate([shapes, reduce], axis=1)


def _positions(dimension: Dimension, extents: tuple[int, ...]) -> NDArray[np.int64]:
    return reached(dimension, tuple((extents[loop], step) for loop, step in dimension.steps))


@lru_cache(maxsize=65536)
def reached(dimension: Dimension, steps: tuple[tuple[int, int], ...]) -> NDArray[np.int64]:
    """Positions along one dimension, ascending."""
    found = np.zeros(1, np.int64)
    for extent, step in steps:
        found = np.unique(found[:, None] + step * np.arange(extent)[None, :])
    return found[found < dimension.extent]


def _sides(dimensions: tuple[Dimension, ...], extents: Shapes) -> list[Side]:
    """Where blocks of these extents, int64 [N, L], reach into the dimensions of one input."""
    return [_side(dimension, extents) for dimension in dimensions]


def _side(dimension: Dimension, extents: Shapes) -> Side:
    rows, which = _distinct(extents, [loop for loop, _ in dimension.steps])
    sets = [_positions(dimension, row) for row in map(tuple, rows.tolist())]
    return Side(dimension.extent, sets, which)


def _distinct(extents: Shapes, loops: list[int]) -> tuple[Shapes, NDArray[np.int64]]:
    """Rows of extents that differ in some loops, and which of them each row [N] is like."""
    keys = np.zeros(len(extents), np.int64)
    for loop in loops:
        keys = keys * (int(extents[:, loop].max()) + 1) + extents[:, loop]
    _, first, which = np.unique(keys, return_index=True, return_inverse=True)
    return extents[first], which
