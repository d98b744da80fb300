"""Reads with affine indices as numpy views: no element is copied until something is computed from it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import as_strided
from numpy.typing import NDArray

from cross.expression.language.affine import affine
from cross.expression.language.dtypes import FLOATS
from cross.expression.language.tensor import Axis
from cross.expression.language.terms import Term

Array = NDArray[Any]


def read_view(
    array: Array, indices: Sequence[Term], axes: Sequence[Axis], ranges: Sequence[slice]
) -> Array | None:
    """array[indices] for every point of a box, with one dimension an axis.

    A dimension has the length of the axis's range, or 1 when no index depends on the axis. `ranges` are
    the box: slices with start and stop, one an axis. None when an index is not affine in the axes, or leaves
    the array somewhere in the box.
    """
    first: list[int] = []
    strides = [0] * len(axes)
    for index, extent, stride in zip(indices, array.shape, array.strides, strict=True):
        form = affine(index)
        if form is None or not form[0].keys() <= set(axes):
            return None
        steps = [form[0].get(axis, 0) for axis in axes]
        start = form[1] + sum(step * box.start for step, box in zip(steps, ranges, strict=True))
        spans = [step * (box.stop - box.start - 1) for step, box in zip(steps, ranges, strict=True)]
        low = start + sum(span for span in spans if span < 0)
        high = start + sum(span for span in spans if span > 0)
        if low < 0 or high >= extent:
            return None
        first.append(start)
        strides = [total + step * stride for total, step in zip(strides, steps, strict=True)]
    shape = [box.stop - box.start if stride else 1 for box, stride in zip(ranges, strides, strict=True)]
    origin = array[tuple(slice(start, start + 1) for start in first)]
    return as_strided(origin, shape, strides, writeable=False)


def blocks(extents: Sequence[int], elements: int) -> list[tuple[slice, ...]]:
    """A box cut into boxes of at most `elements` points (at least one), in row-major order.

    Trailing dimensions stay whole as long as they fit, the one before them is cut, leading ones go one by
    one.
    """
    room = max(1, elements)
    steps: list[int] = []
    for extent in reversed(extents):
        steps.append(min(extent, room))
        room = max(1, room // extent)
    found: list[tuple[slice, ...]] = [()]
    for extent, step in zip(extents, reversed(steps), strict=True):
        cuts = [slice(start, min(start + step, extent)) for start in range(0, extent, step)]
        found = [(*box, cut) for box in found for cut in cuts]
    return found


def working_dtype(dtype: str) -> np.dtype[Any]:
    """What values of a dtype are computed in here: floats in float64, everything else as it is."""
    return np.dtype(np.float64 if dtype in FLOATS else dtype)
