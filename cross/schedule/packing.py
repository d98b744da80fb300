"""How a constant operand is laid out ahead of time, in the order in which the program reads it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, slots=True)
class PackedLoop:
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


@dataclass(frozen=True, slots=True)
class Packing:
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
        rank = len(self.loops)
        indices: list[NDArray[np.int64]] = [np.zeros((1,) * rank, np.int64) for _ in self.shape]
        for position, loop in enumerate(self.loops):
            starts = np.arange(loop.extent, dtype=np.int64) * loop.step
            if loop.last_start >= 0:
                starts = np.minimum(starts, loop.last_start)
            view = [1] * rank
            view[position] = loop.extent
            indices[loop.source] = indices[loop.source] + starts.reshape(view)
        return np.ascontiguousarray(np.broadcast_to(array[tuple(indices)], self.packed_shape))


def mapped(array: NDArray[np.generic], maps: Maps) -> NDArray[np.generic]:
    """The array after linear maps along its dimensions: computed in float64, rounded once."""
    if not maps:
        return array
    result = array.astype(np.float64)
    for dimension, matrix in maps:
        result = np.moveaxis(np.tensordot(np.array(matrix), result, axes=(1, dimension)), 0, dimension)
    return result.astype(array.dtype)
