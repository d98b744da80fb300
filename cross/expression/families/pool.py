"""Pooling: windows and whole dimensions, by sum, max or min. A mean is a sum and a scale behind it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cross.errors import ExpressionError
from cross.expression.families.conv import IMAGE_AXES, kernel_axes, padded_image, seen
from cross.expression.families.window import Window
from cross.expression.language import functions
from cross.expression.language.dtypes import INDEX
from cross.expression.language.functions import equal, logical_and, maximum, minimum, reduce_axis
from cross.expression.language.operations import neutral_value
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Term, constant, select

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


def pool_places(data: Tensor, kernel: Sequence[int], window: Window, column_major: bool) -> Tensor:
    """Where the first largest element of each window of `pool` is: int64 [n, output..., c].

    A place counts the elements of data as [n, c, image...], without padding; with `column_major` the first
    dimension of the image runs fastest.
    """
    extreme = pool(data, kernel, window, "max", "extreme")
    batch, *image, channels = data.shape
    padded, taps = padded_image(data, window, neutral_value("max", data.dtype)), kernel_axes(kernel)

    def body(b: Term, *axes: Term) -> Term:
        *place, c = axes
        there = seen(place, taps, window)
        own = [index - before for index, before in zip(there, window.before, strict=True)]
        inside = [term for index, e in zip(own, image, strict=True) for term in (index >= 0, index < e)]
        largest = logical_and(equal(padded[(b, *there, c)], extreme[(b, *axes)]), *inside)
        return functions.min(
            select(largest, flat_index((b, c, *own), (batch, channels, *image)), absent), taps
        )

    absent = constant(data.elements - 1, INDEX)  # where all are NaN
    places = compute(extreme.shape, body, "places", ("b", *IMAGE_AXES[window.rank], "c"))
    if not column_major:
        return places

    def turned(*axes: Term) -> Term:
        plane, *own = split_index(places[axes], (batch * channels, *image))
        return flat_index((plane, *own[::-1]), (batch * channels, *image[::-1]))

    return compute(places.shape, turned, "turned")


def unpool(
    data: Tensor, places: Tensor, kernel: Sequence[int], window: Window, output: Sequence[int]
) -> Tensor:
    """Each element of data [n, image..., c] at its place of `pool_places` in [n, output..., c], else 0.

    A place outside of the element's own window is left out; of several elements for a place the last stays.
    """
    batch, *image, channels = data.shape
    reach = [-(-k // s) for k, s in zip(kernel, window.strides, strict=True)]
    behind = [reduce_axis(extent, f"behind{d}") for d, extent in enumerate(reach)]

    def body(b: Term, *axes: Term) -> Term:
        *here, c = axes
        own: list[Term] = []
        fits: list[Term] = []
        for d, stride in enumerate(window.strides):
            distance = here[d] + window.before[d]
            index = distance // stride - behind[d]
            fits += [index >= 0, index < image[d], distance - index * stride < kernel[d]]
            own.append(minimum(maximum(index, 0), image[d] - 1))
        flat = flat_index((b, c, *here), (batch, channels, *output))
        hit = logical_and(*fits, equal(places[(b, *own, c)], flat))
        return functions.max(select(hit, flat_index(own, image), constant(-1, INDEX)), behind)

    shape = (batch, *output, channels)
    names = ("b", *IMAGE_AXES[window.rank], "c")
    last = compute(shape, body, "last", names)

    def chosen(b: Term, *axes: Term) -> Term:
        found = last[(b, *axes)]
        inside = minimum(maximum(found, 0), math.prod(image) - 1)
        value = data[(b, *split_index(inside, image), axes[-1])]
        return select(found >= 0, value, constant(0, data.dtype))

    return compute(shape, chosen, "unpool", names)


def flat_index(indices: Sequence[Term], shape: Sequence[int]) -> Term:
    """The place of an element among all in row-major order."""
    flat = indices[0]
    for index, extent in zip(indices[1:], shape[1:], strict=True):
        flat = flat * extent + index
    return flat


def split_index(flat: Term, shape: Sequence[int]) -> list[Term]:
    """The indices of the element at a place in row-major order."""
    indices: list[Term] = []
    for extent in reversed(shape[1:]):
        indices.append(flat % extent)
        flat = flat // extent
    return [flat, *indices[::-1]]


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
