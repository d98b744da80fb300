"""Pooling: windows and whole dimensions, by sum, max or min. A mean is a sum and a scale behind it."""

from __future__ import annotations

from collections.abc import Sequence

from cross.errors import ExpressionError
from cross.expression.families.conv import IMAGE_AXES, kernel_axes, padded_image, seen
from cross.expression.families.window import Window
from cross.expression.language import functions
from cross.expression.language.functions import reduce_axis
from cross.expression.language.operations import neutral_value
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Term

COMBINERS = {"sum": functions.sum, "prod": functions.product, "max": functions.max, "min": functions.min}


def pool2d(data: Tensor, kernel: Sequence[int], window: Window, combiner: str, name: str = "pool") -> Tensor:
    """Window pooling: data [n, h, w, c] -> [n, oh, ow, c], combined by "sum", "max" or "min"."""
    _check_combiner(name, combiner)
    if len(data.shape) != 4:
        raise ExpressionError(f"pool2d {name}: expected data [n, h, w, c], found shape {data.shape}")
    return pool(data, kernel, window, combiner, name)


def pool(data: Tensor, kernel: Sequence[int], window: Window, combiner: str, name: str = "pool") -> Tensor:
    """Window pooling of the window's rank: data [n, image..., c] -> [n, output..., c].

    Raises:
        ExpressionError: unknown combiner, or data of another rank.
    """
    _check_combiner(name, combiner)
    rank = window.rank
    if len(data.shape) != rank + 2:
        raise ExpressionError(
            f"pool {name}: expected data with {rank} image dimensions between batch and channels, found "
            f"shape {data.shape}"
        )
    batch, *image, channels = data.shape
    padded = padded_image(data, window, neutral_value(combiner, data.dtype))
    taps = kernel_axes(kernel)

    def body(b: Term, *axes: Term) -> Term:
        *place, c = axes
        return COMBINERS[combiner](padded[(b, *seen(place, taps, window), c)], taps)

    shape = (batch, *window.output(image, kernel), channels)
    return compute(shape, body, name, ("b", *IMAGE_AXES[rank], "c"))


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
