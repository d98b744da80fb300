"""Matrix products."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable

from cross.errors import ExpressionError
from cross.expression.families.elementwise import broadcast_read, broadcast_shape
from cross.expression.language.functions import reduce_axis, sum, summand
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Term, call, cast


def dense(
    data: Tensor, weight: Tensor, name: str = "dense", product: Callable[[Term, Term], Term] = summand
) -> Tensor:
    """data [m, k] @ weight [k, n] -> [m, n]; the last dimension is contiguous, for vectors over n.

    `product` of an element and a weight is summed.

    Raises:
        ExpressionError: ranks or inner dimensions do not fit.
    """
    if len(data.shape) != 2 or len(weight.shape) != 2 or data.shape[1] != weight.shape[0]:
        raise ExpressionError(
            f"dense {name}: expected shapes [m, k] and [k, n], found {data.shape} and {weight.shape}"
        )
    k = reduce_axis(data.shape[1], "k")
    return compute(
        (data.shape[0], weight.shape[1]), lambda i, j: sum(product(data[i, k], weight[k, j]), k), name=name
    )


def dense_blocks(
    data: Tensor, words: Tensor, scales: Tensor, zeros: Tensor, bits: int, name: str = "dense"
) -> Tensor:
    """data [m, k] @ ((weights - zeros) * scales) [k, n] -> [m, n], of blocks of rows with a scale and a zero.

    scales and zeros are [k / block, n] of data's dtype; words are bytes [k / block, block, n] or, of 4 bits,
    [k / block, block / 2, n], of two rows the first in the low bits.

    Raises:
        ExpressionError: the shapes do not fit.
    """
    each = 8 // bits  # weights in a byte
    blocks, size, columns = words.shape
    fits = scales.shape == zeros.shape == (blocks, columns)
    if not fits or len(data.shape) != 2 or data.shape[1] != blocks * size * each:
        raise ExpressionError(
            f"dense {name}: expected shapes [m, k], [k / block, block / {each}, n] and twice [k / block, n], "
            f"found {data.shape}, {words.shape}, {scales.shape} and {zeros.shape}"
        )
    outer, inner = reduce_axis(blocks, "kb"), reduce_axis(size, "k")

    def body(i: Term, j: Term) -> Term:
        byte = words[outer, inner, j]
        parts = [byte] if each == 1 else [call("&", byte, 15), call(">>", byte, 4)]
        first = outer * (size * each) + inner * each
        terms = [
            data[i, first + place] * (cast(data.dtype, part) - zeros[outer, j])
            for place, part in enumerate(parts)
        ]
        return sum(scales[outer, j] * functools.reduce(operator.add, terms), (outer, inner))

    return compute((data.shape[0], columns), body, name=name)


def batch_matmul(
    left: Tensor,
    right: Tensor,
    name: str = "batch_matmul",
    product: Callable[[Term, Term], Term] = summand,
) -> Tensor:
    """left [..., m, k] @ right [..., k, n] -> [..., m, n]; the leading dimensions broadcast as in numpy.

    `product` of two elements is summed.

    Raises:
        ExpressionError: ranks, inner or leading dimensions do not fit.
    """
    if len(left.shape) < 2 or len(right.shape) < 2 or left.shape[-1] != right.shape[-2]:
        raise ExpressionError(
            f"batch_matmul {name}: expected shapes [..., m, k] and [..., k, n], found {left.shape} and "
            f"{right.shape}"
        )
    batch = broadcast_shape(left.shape[:-2], right.shape[:-2])
    k = reduce_axis(left.shape[-1], "k")

    def body(*axes: Term) -> Term:
        outer, i, j = axes[:-2], axes[-2], axes[-1]
        element = broadcast_read(left, (*outer, i, k))
        return sum(product(element, broadcast_read(right, (*outer, k, j))), k)

    return compute((*batch, left.shape[-2], right.shape[-1]), body, name=name)
