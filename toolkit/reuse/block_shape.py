"""The shape of a block for its size: the one that touches the fewest memory lines (ETO, GetBShape).

All shapes of one size are weighed at once. A block that starts at the origin touches, in every input and over
the whole reduction, positions that are a product of one set for each dimension; the lines under them are
counted by the places that rows start at within a line, so that no address is listed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toolkit.reuse.divisors import divisors
from toolkit.reuse.loops import Dimension, MajorLoops

GPU_LINE_BYTES: Final = 32
FLOAT_BYTES: Final = 4

Shapes = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Points of a block along each space loop, and the lines that it touches."""

    shape: tuple[int, ...]
    lines: int


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
    reduce = np.broadcast_to(np.array(loops.reduce, np.int64), (len(shapes), len(loops.reduce)))
    extents = np.concatenate([shapes, reduce], axis=1)
    total = np.zeros(len(shapes), np.int64)
    for dimensions in loops.inputs:
        total += _lines(dimensions, extents, line_bytes // FLOAT_BYTES)
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


def _positions(dimension: Dimension, extents: tuple[int, ...]) -> NDArray[np.int64]:
    return reached(dimension, tuple((extents[loop], step) for loop, step in dimension.steps))


@lru_cache(maxsize=65536)
def reached(dimension: Dimension, steps: tuple[tuple[int, int], ...]) -> NDArray[np.int64]:
    """Positions along one dimension, ascending."""
    found = np.zeros(1, np.int64)
    for extent, step in steps:
        found = np.unique(found[:, None] + step * np.arange(extent)[None, :])
    return found[found < dimension.extent]


def _lines(dimensions: tuple[Dimension, ...], extents: Shapes, line: int) -> NDArray[np.int64]:
    """Lines of `line` elements under one input, int64 [N]: every distinct set of extents once."""
    used = sorted({loop for dimension in dimensions for loop, _ in dimension.steps})
    place = {loop: position for position, loop in enumerate(used)}
    local = tuple(
        Dimension(dimension.extent, tuple((place[loop], step) for loop, step in dimension.steps))
        for dimension in dimensions
    )
    rows = map(tuple, extents[:, used].tolist())
    return np.array([_lines_of(local, row, line) for row in rows], np.int64)


@lru_cache(maxsize=1 << 20)
def _lines_of(dimensions: tuple[Dimension, ...], extents: tuple[int, ...], line: int) -> int:
    sets = [_positions(dimension, extents) for dimension in dimensions]
    return lines_under(sets, tuple(dimension.extent for dimension in dimensions), line)


def lines_under(sets: list[NDArray[np.int64]], shape: tuple[int, ...], line: int) -> int:
    """Lines of `line` elements under the product of position sets in a row-major array.

    Dimensions that are covered whole are joined with the one before, so that rows are as long as they can be;
    then only rows that begin in the line in which the one before ends share one.
    """
    sets, sides = list(sets), list(shape)
    while len(sets) > 1 and len(sets[-1]) == sides[-1]:
        width = sides.pop()
        sets.pop()
        sets[-1] = (sets[-1][:, None] * width + np.arange(width)[None, :]).reshape(-1)
        sides[-1] *= width
    if len(sets) == 1:
        return len(np.unique(sets[0] // line))
    stride = sides[-1]
    starts = np.zeros(line, np.int64)  # how many rows begin at each place within a line
    starts[0] = 1
    strides = np.cumprod([1, *sides[:0:-1]])[::-1]
    for positions, step in zip(sets[:-1], strides[:-1], strict=True):
        places = np.bincount((positions * int(step)) % line, minlength=line)
        starts = np.array([np.dot(starts, np.roll(places[::-1], place + 1)) for place in range(line)])
    last = sets[-1]
    own = np.array([len(np.unique((last + place) // line)) for place in range(line)])
    shared = _shared(sets, strides, stride, line) if stride - int(last[-1]) + int(last[0]) <= line else 0
    return int(np.dot(starts, own)) - shared


def _shared(sets: list[NDArray[np.int64]], strides: NDArray[np.int64], stride: int, line: int) -> int:
    """Rows that begin in the line where the row directly before them ends; by listing them, for they are few
    elements apart only in narrow arrays."""
    rows = np.zeros(1, np.int64)
    for positions, step in zip(sets[:-1], strides[:-1], strict=True):
        rows = (rows[:, None] + (positions * int(step))[None, :]).reshape(-1)
    ends, begins = (rows[:-1] + sets[-1][-1]) // line, (rows[1:] + sets[-1][0]) // line
    return int(np.count_nonzero((ends == begins) & (np.diff(rows) > 0)))
