"""Matrix products."""

from __future__ import annotations

from collections.abc import Callable

from cross.errors import ExpressionError
from cross.expression.families.elementwise import broadcast_read, broadcast_shape
from cross.expression.language.functions import reduce_axis, sum, summand
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Term


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


def batch_matmul(left: Tensor, right: Tensor, name: str = "batch_matmul") -> Tensor:
    """left [..., m, k] @ right [..., k, n] -> [..., m, n]; the leading dimensions broadcast as in numpy.

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
        return sum(summand(element, broadcast_read(right, (*outer, k, j))), k)

    return compute((*batch, left.shape[-2], right.shape[-1]), body, name=name)
