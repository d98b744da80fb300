"""The shape of a block for its size: the one that touches the fewest memory lines (ETO, GetBShape).

All shapes of one size, or of all sizes, are weighed at once. A block starts at the origin and runs over the
whole reduction.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.schedule.tiles import divisors
from toolkit.explore.neighbourhood.footprint import Shapes, input_elements, loads, touched_lines
from toolkit.explore.neighbourhood.loops import MajorLoops

GPU_LINE_BYTES: Final = 32  # what a load of a warp fetches at once


class BlockShapes(msgspec.Struct, frozen=True, eq=False):
    """The best shape of every size, in the order of the sizes.

    `sizes` [D]: the divisors of the points; `shapes` [D, A]; `lines` [D]: what each touches; `loads` [D]:
    elements of all inputs that one loads at once, for one step of the split loop.
    """

    sizes: NDArray[np.int64]
    shapes: Shapes
    lines: NDArray[np.int64]
    loads: NDArray[np.int64]


@lru_cache(maxsize=4096)
def block_shapes(loops: MajorLoops) -> BlockShapes:
    """For every size of a block the shape that touches the fewest lines, of equal ones the first."""
    columns = np.meshgrid(*map(divisors, loops.space), indexing="ij")
    shapes = np.stack([column.ravel() for column in columns], axis=1)
    sizes, lines = shapes.prod(axis=1), touched_lines(loops, shapes, GPU_LINE_BYTES)
    order = np.lexsort((lines, sizes))
    best = order[np.flatnonzero(np.diff(sizes[order], prepend=0))]
    return BlockShapes(sizes[best], shapes[best], lines[best], loads(loops, shapes[best], 1))


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


def cheapest_block(loops: MajorLoops, shapes: Shapes) -> tuple[int, ...] | None:
    """The shape that touches the fewest lines, of equal ones the first; None: there are no shapes."""
    if not len(shapes):
        return None
    found: list[int] = shapes[touched_lines(loops, shapes, GPU_LINE_BYTES).argmin()].tolist()
    return tuple(found)


def loaded_elements(loops: MajorLoops, shape: tuple[int, ...], staged: int) -> int:
    """Elements of all inputs that a block loads at once, `staged` steps of the split loop at a time."""
    return sum(input_elements(loops, (*shape, *staged_steps(loops, staged))))


def staged_steps(loops: MajorLoops, staged: int) -> tuple[int, ...]:
    """Steps of each reduction loop in one piece: `staged` of the split loop, all of the others."""
    return tuple(
        staged if position == loops.split else extent for position, extent in enumerate(loops.reduce)
    )
