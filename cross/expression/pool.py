"""Pooling: windows and whole dimensions, by sum, max or min. A mean is a sum and a scale behind it."""

from __future__ import annotations

from collections.abc import Sequence

from cross.errors import ExpressionError
from cross.expression import terms
from cross.expression.data_movement import pad
from cross.expression.tensor import Tensor, compute
from cross.expression.terms import Term, reduce_axis
from cross.expression.window import Pair, Window

# the neutral element of padding; finite, so that no infinity enters generated code
NEUTRAL = {"sum": 0.0, "max": -3.4028234663852886e38, "min": 3.4028234663852886e38}
COMBINERS = {"sum": terms.sum, "max": terms.max, "min": terms.min}


def pool2d(data: Tensor, kernel: Pair, window: Window, combiner: str, name: str = "pool") -> Tensor:
    """Window pooling: data [n, h, w, c] -> [n, oh, ow, c], combined by "sum", "max" or "min"."""
    _check_combiner(name, combiner)
    if len(data.shape) != 4:
        raise ExpressionError(f"pool2d {name}: expected data [n, h, w, c], found shape {data.shape}")
    n, height, width, channels = data.shape
    oh, ow = window.output((height, width), kernel)
    (sh, sw), (dh, dw) = window.strides, window.dilations
    padded = pad(data, (0, *window.before, 0), (0, *window.after, 0), NEUTRAL[combiner])
    kh, kw = reduce_axis(kernel[0], "kh"), reduce_axis(kernel[1], "kw")
    return compute(
        (n, oh, ow, channels),
        lambda b, y, x, c: COMBINERS[combiner](padded[b, y * sh + kh * dh, x * sw + kw * dw, c], (kh, kw)),
        name=name,
    )


def reduce(
    data: Tensor, dimensions: Sequence[int], combiner: str, keep: bool = True, name: str = "reduce"
) -> Tensor:
    """Combine whole dimensions; `keep` leaves them as extent 1. A rank of at least 1 always remains.

    Raises:
        ExpressionError: unknown combiner or dimension.
    """
    _check_combiner(name, combiner)
    rank = len(data.shape)
    if not dimensions or any(not 0 <= dimension < rank for dimension in dimensions):
        raise ExpressionError(
            f"reduce {name}: expected dimensions within 0..{rank - 1}, found {tuple(dimensions)}"
        )
    reduced = {d: reduce_axis(data.shape[d], f"k{d}") for d in sorted(set(dimensions))}
    kept = [d for d in range(rank) if d not in reduced]
    shape = tuple(1 if d in reduced else data.shape[d] for d in range(rank) if keep or d not in reduced)

    def body(*axes: Term) -> Term:
        space = dict(zip(range(rank) if keep else kept, axes, strict=False))
        return COMBINERS[combiner](
            data[tuple(reduced[d] if d in reduced else space[d] for d in range(rank))],
            tuple(reduced.values()),
        )

    return compute(shape or (1,), body, name=name)


def _check_combiner(name: str, combiner: str) -> None:
    if combiner not in COMBINERS:
        raise ExpressionError(
            f"pool {name}: expected a combiner of {', '.join(COMBINERS)}, found {combiner!r}"
        )
