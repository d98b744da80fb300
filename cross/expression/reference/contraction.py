"""The reference's fast path: a sum of products of two affine reads, as matrix products.

Convolutions, matrix products, batched and depthwise ones all have this form; where words hold several numbers
(BYTE_PRODUCTS), the numbers of a word are one more summed axis. Axes fall into four groups:
batch (space, in both reads), rows (space, in the first), columns (space, in the second) and the summed ones.
Each block of the first read is copied to [batch, rows, summed] (for a convolution this is im2col), of the
second to [batch, summed, columns], and the rest is BLAS in float64.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.operations import BYTE_PRODUCTS, numbers_in, numbers_of
from cross.expression.language.tensor import Axis, AxisKind, Read, Reduce, Tensor
from cross.expression.language.terms import Binary, Call, Cast, Term
from cross.expression.reference.strided import blocks, read_view, working_dtype

Array = NDArray[Any]

BLOCK_ELEMENTS = 1 << 23  # of each of the three matrices: 64 MiB
_EXACT = 2**53  # float64 holds every integer up to here


def contract(stage: Tensor, memory: Mapping[Tensor, Array], block_elements: int) -> Array | None:
    """A computed tensor in its working dtype; None when it has not the form, or not exactly in float64."""
    if (form := _factors(stage)) is None:
        return None
    function, reads = form
    axes = (*stage.axes, *stage.reduce_axes)
    arrays, indices = [memory[read.tensor] for read in reads], [read.indices for read in reads]
    if function:
        dtypes = numbers_in(function)
        arrays = [numbers_of(array, dtype) for array, dtype in zip(arrays, dtypes, strict=True)]
        number = Axis("number", arrays[0].shape[-1], AxisKind.REDUCE)
        axes, indices = (*axes, number), [(*item, number) for item in indices]
    whole = [slice(0, axis.extent) for axis in axes]
    left, right = (read_view(*item, axes, whole) for item in zip(arrays, indices, strict=True))
    if left is None or right is None:
        return None
    summed = math.prod(axis.extent for axis in axes[len(stage.axes) :])
    if working_dtype(stage.dtype).kind != "f" and not _is_exact(left, right, summed):
        return None
    result = _matrix_products(left, right, len(stage.axes), block_elements)
    # A summed axis on which neither read depends repeats the same terms.
    repeats = [
        axis.extent // max(left.shape[position], right.shape[position])
        for position, axis in enumerate(axes)
        if position >= len(stage.axes)
    ]
    result *= math.prod(repeats)
    if working_dtype(stage.dtype).kind != "f":
        result = result.astype(np.int64).astype(stage.dtype)  # by way of int64: too large values wrap
    return np.array(np.broadcast_to(result, stage.shape), order="C")


def _factors(stage: Tensor) -> tuple[str, tuple[Read, Read]] | None:
    """The reads whose products are added up, and which of BYTE_PRODUCTS makes them; "": a multiplication."""
    match stage.body:
        case Reduce("sum", Binary("*", left, right), _):
            function, reads = "", (_read(left), _read(right))
        case Reduce("sum", Call(function, (Read() as left, Read() as right)), _) if function in BYTE_PRODUCTS:
            return function, (left, right)
        case _:
            return None
    return (function, (reads[0], reads[1])) if reads[0] is not None and reads[1] is not None else None


def _read(term: Term) -> Read | None:
    """The read behind a factor; a cast counts as nothing where it changes no value."""
    if isinstance(term, Cast) and np.can_cast(term.value.dtype, term.dtype, "safe"):
        term = term.value
    return term if isinstance(term, Read) and term.dtype != "bool" else None


def _is_exact(left: Array, right: Array, summed: int) -> bool:
    bound = int(summed)
    for view in (left, right):
        bound *= max(abs(int(view.min())), abs(int(view.max())))
    return bound < _EXACT


def _matrix_products(left: Array, right: Array, space: int, block_elements: int) -> Array:
    """The sum over the trailing dimensions of left * right, whose first `space` dimensions broadcast.

    The result keeps length 1 in a dimension that neither of the two has.
    """
    batch = [d for d in range(space) if left.shape[d] > 1 and right.shape[d] > 1]
    columns = [d for d in range(space) if left.shape[d] == 1 and right.shape[d] > 1]
    rows = [d for d in range(space) if d not in batch and d not in columns]
    summed = list(range(space, left.ndim))
    lengths = [max(pair) for pair in zip(left.shape, right.shape, strict=True)]
    first = _arranged(left, [*batch, *rows, *summed], lengths)
    second = _arranged(right, [*batch, *summed, *columns], lengths)
    order = [*batch, *rows, *columns]
    result = np.empty([lengths[d] for d in order])
    depth = math.prod(lengths[d] for d in summed)
    every = (slice(None),) * len(summed)
    for box in blocks([lengths[d] for d in (*batch, *rows)], block_elements // depth):
        inside = box[: len(batch)]
        matrices = math.prod(cut.stop - cut.start for cut in inside)
        a = np.ascontiguousarray(first[box], np.float64).reshape(matrices, -1, depth)
        for cuts in blocks([lengths[d] for d in columns], block_elements // (depth * matrices)):
            b = np.ascontiguousarray(second[(*inside, *every, *cuts)], np.float64)
            b = b.reshape(matrices, depth, -1)
            place = result[(*box, *cuts)]
            place[...] = (a @ b).reshape(place.shape)
    return result.transpose(np.argsort(order))


def _arranged(view: Array, order: Sequence[int], lengths: Sequence[int]) -> Array:
    """The view with the dimensions of `order` only, broadcast to their lengths; the others have length 1."""
    others = [d for d in range(view.ndim) if d not in order]
    kept = view.transpose([*order, *others]).squeeze(tuple(range(len(order), view.ndim)))
    return np.broadcast_to(kept, [lengths[d] for d in order])
