"""What a block of an operator's loops touches in memory: elements and lines of each input, for many at once.

A block starts at the origin and runs over the whole reduction.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.neighbourhood.lines import Side, lines_under
from toolkit.explore.neighbourhood.loops import Dimension, MajorLoops

FLOAT_BYTES: Final = 4

Shapes = NDArray[np.int64]
"""One block a row, one loop a column: [N, L]."""


def touched_lines(loops: MajorLoops, shapes: Shapes, line_bytes: int) -> NDArray[np.int64]:
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


def input_elements(loops: MajorLoops, extents: tuple[int, ...]) -> tuple[int, ...]:
    """Elements of each input under so many steps of all loops."""
    return tuple(
        math.prod(len(_positions(dimension, extents)) for dimension in dimensions)
        for dimensions in loops.inputs
    )


def loads(loops: MajorLoops, shapes: Shapes, staged: int) -> NDArray[np.int64]:
    """Elements of all inputs that blocks load at once, `staged` steps of the split loop at a time, [N]."""
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
