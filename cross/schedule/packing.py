"""How a constant operand is laid out ahead of time, in the order in which the program reads it."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray


class PackedLoop(msgspec.Struct, frozen=True):
    """One dimension of the packed array: `extent` values of a loop that advance dimension `source` by `step`.

    The outermost loop of a dimension whose tiles do not divide it starts its last tile earlier, so that
    it ends with the dimension: that loop has `last_start` >= 0, the largest start it may have.
    """

    source: int
    extent: int
    step: int
    last_start: int = -1


Matrix = tuple[tuple[float, ...], ...]
Maps = tuple[tuple[int, Matrix], ...]
"""Linear maps ahead of time: (dimension, matrix [new extent, old extent]), one after the other."""


class Packing(msgspec.Struct, frozen=True):
    """The packed layout: one dimension per loop that indexes the operand, outermost first.

    `maps` are applied to the operand of shape `shape` before, in float64; the loops index the result.
    """

    shape: tuple[int, ...]
    loops: tuple[PackedLoop, ...]
    maps: Maps = ()

    @property
    def packed_shape(self) -> tuple[int, ...]:
        """Shape of the packed array; overlapping last tiles make it larger than the operand."""
        return tuple(loop.extent for loop in self.loops)

    def apply(self, array: NDArray[np.generic]) -> NDArray[np.generic]:
        """The packed copy of an operand.

        Args:
            array: the operand, shape `shape`, any dtype.

        Returns:
            A contiguous array of shape `packed_shape`.

        Raises:
            ValueError: the operand has another shape.
        """
        if array.shape != self.shape:
            raise ValueError(f"packing expects an operand of shape {self.shape}, found {array.shape}")
        array = mapped(array, self.maps)
        order: list[int] = []
        for source in range(array.ndim):
            positions = [position for position, loop in enumerate(self.loops) if loop.source == source]
            array = _taken(array, source, [self.loops[position] for position in positions])
            order += positions
        by_source = array.reshape([self.loops[position].extent for position in order])
        return np.ascontiguousarray(by_source.transpose(np.argsort(order)))


def _taken(array: NDArray[np.generic], dimension: int, loops: Sequence[PackedLoop]) -> NDArray[np.generic]:
    """The array with the values of one dimension in the order of the loops over it, one after the other."""
    found = np.zeros(1, np.int64)
    for loop in loops:
        starts = np.arange(loop.extent, dtype=np.int64) * loop.step
        if loop.last_start >= 0:
            starts = np.minimum(starts, loop.last_start)
        found = np.add.outer(found, starts).ravel()
    if np.array_equal(found, np.arange(array.shape[dimension])):
        return array
    return array.take(found, axis=dimension)


def mapped(array: NDArray[np.generic], maps: Maps) -> NDArray[np.generic]:
    """The array after linear maps along its dimensions: computed in float64, rounded once."""
    if not maps:
        return array
    result = array.astype(np.float64)
    for dimension, matrix in maps:
        before, extent, after = (
            result.shape[:dimension],
            result.shape[dimension],
            result.shape[dimension + 1 :],
        )
        flat = result.reshape(math.prod(before), extent, math.prod(after))
        result = np.matmul(np.array(matrix), flat).reshape(*before, len(matrix), *after)
    return result.astype(array.dtype)
