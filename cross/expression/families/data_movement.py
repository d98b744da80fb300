"""Moving elements without computing: pad, transpose, slice, concatenate, window views.

Every function takes and returns tensors; what is out of range stands in the branch of a `select` that is
not taken, so that each stage can be inlined into its consumer.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence

from cross.errors import ExpressionError
from cross.expression.language.dtypes import INDEX
from cross.expression.language.functions import logical_and, maximum, minimum
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Term, call, cast, select

LONGEST_CHAIN = 16  # of selects one in another, which are walked recursively


def pad(
    data: Tensor, before: Sequence[int], after: Sequence[int], value: float = 0.0, name: str = "pad"
) -> Tensor:
    """Surround `data` by `value`; `before` and `after` count elements per dimension; free without padding."""
    if not any(before) and not any(after):
        return data
    shape = tuple(b + extent + a for b, extent, a in zip(before, data.shape, after, strict=True))

    def body(*axes: Term) -> Term:
        conditions: list[Term] = []
        for axis, extent, b, a in zip(axes, data.shape, before, after, strict=True):
            if b:
                conditions.append(axis >= b)
            if a:
                conditions.append(axis < b + extent)
        inner = data[tuple(axis - b for axis, b in zip(axes, before, strict=True))]
        return select(logical_and(*conditions), inner, value)

    return compute(shape, body, name=name)


def words(
    data: Tensor, before: Sequence[int], after: Sequence[int], value: int, name: str = "words"
) -> Tensor:
    """Bytes [n, c, image...], c at most 4, as int32 [n, image..., 1], the first channel in the lowest bits.

    They are surrounded by `value`, as often as `before` and `after` say for each dimension of the image.
    """
    batch, channels, *image = data.shape
    shape = [b + extent + a for b, extent, a in zip(before, image, after, strict=True)]

    def body(n: Term, *axes: Term) -> Term:
        place = [axis - b for axis, b in zip(axes, before, strict=False)]
        inside = [axis >= b for axis, b in zip(axes, before, strict=False) if b]
        ends = zip(axes, before, image, after, strict=False)
        inside += [axis < b + extent for axis, b, extent, a in ends if a]
        parts = [call("&", cast("int32", data[(n, c, *place)]), 255) for c in range(channels)]
        shifted = [call("<<", part, 8 * c) if c else part for c, part in enumerate(parts)]
        word = functools.reduce(lambda left, right: call("|", left, right), shifted)
        return select(logical_and(*inside), word, value) if inside else word

    return compute((batch, *shape, 1), body, name=name)


def row_words(data: Tensor, count: int, name: str = "row_words") -> Tensor:
    """Bytes [..., rows, n] as words of `count` bytes [..., rows / count, n], the first row lowest."""
    *outer, rows, columns = data.shape

    def body(*axes: Term) -> Term:
        *places, row, column = axes
        parts = [cast("int32", data[(*places, row * count + r, column)]) for r in range(count)]
        shifted = [call("<<", call("&", part, 255), 8 * r) for r, part in enumerate(parts)]
        return cast(f"int{8 * count}", functools.reduce(lambda left, right: call("|", left, right), shifted))

    return compute((*outer, rows // count, columns), body, name=name)


def at_index(index: Term, extent: int) -> Term:
    """An index that is read: a negative one counts from the end, others are clamped to the extent."""
    place = cast(INDEX, index)
    return maximum(minimum(select(place < 0, place + extent, place), extent - 1), 0)


def gather(data: Tensor, indices: Tensor, axis: int, name: str = "gather") -> Tensor:
    """data[..., indices, ...]: the dimensions of `indices` instead of the dimension `axis` of `data`."""
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    end = axis + len(indices.shape)

    def body(*axes: Term) -> Term:
        place = at_index(indices[axes[axis:end]], data.shape[axis])
        return data[(*axes[:axis], place, *axes[end:])]

    return compute(shape, body, name=name)


def look_up(table: Tensor, places: Tensor, name: str = "look_up") -> Tensor:
    """The element of a table of 256 for each 8-bit integer, counted from the least one of its dtype."""
    least = -128 if places.dtype == "int8" else 0
    return compute(places.shape, lambda *axes: table[cast(INDEX, places[axes]) - least,], name=name)


def resample(
    data: Tensor,
    operands: Sequence[Tensor],
    axes: Sequence[int],
    weighted: Sequence[int],
    name: str = "resample",
) -> Tensor:
    """Weighted sums of `taps` elements along each of the `axes`; where `weighted` is 0, of single elements.

    `operands` are for each axis the places [new extent, taps] of the elements, and if weighted their weights
    of the same shape.
    """
    rest = list(operands)
    taps = [(axis, rest.pop(0), rest.pop(0) if is_weighted else None)
            for axis, is_weighted in zip(axes, weighted, strict=True)]  # fmt: skip
    shape = list(data.shape)
    for axis, places, _ in taps:
        shape[axis] = places.shape[0]

    def summed(own: tuple[Term, ...], at: tuple[Term, ...], left: int) -> Term:
        if left == len(taps):
            return data[at]
        axis, places, weights = taps[left]
        found = []
        for tap in range(places.shape[1]):
            place = cast(INDEX, places[own[axis], tap])
            inside = maximum(minimum(place, data.shape[axis] - 1), 0)
            part = summed(own, (*at[:axis], inside, *at[axis + 1 :]), left + 1)
            found.append(part if weights is None else part * weights[own[axis], tap])
        return functools.reduce(operator.add, found)

    return compute(tuple(shape), lambda *own: summed(own, own, 0), name=name)


def gather_elements(data: Tensor, indices: Tensor, axis: int, name: str = "gather") -> Tensor:
    """data[..., indices[i, j, ...], ...]: of the dimension `axis`, the element that `indices` names there."""

    def body(*axes: Term) -> Term:
        place = at_index(indices[axes], data.shape[axis])
        return data[(*axes[:axis], place, *axes[axis + 1 :])]

    return compute(indices.shape, body, name=name)


def reflect_pad(
    data: Tensor, before: Sequence[int], after: Sequence[int], name: str = "reflect_pad"
) -> Tensor:
    """Mirror `data` at its borders, which are not repeated (ONNX mode "reflect"), dimension by dimension.

    Raises:
        ExpressionError: the padding of a dimension is not smaller than its extent.
    """
    for dimension, (b, a) in enumerate(zip(before, after, strict=True)):
        extent = data.shape[dimension]
        if max(b, a) >= extent:
            raise ExpressionError(
                f"reflect_pad {name}: dimension {dimension} has {extent} elements, found padding ({b}, {a}); "
                f"expected at most {extent - 1}"
            )
        if b or a:
            data = _border_pad(data, dimension, b, a, reflect=True, name=name)
    return data


def wrap_pad(data: Tensor, before: Sequence[int], after: Sequence[int], name: str = "wrap_pad") -> Tensor:
    """Go on at the other border of `data`, as if it repeated without end (ONNX mode "wrap")."""
    shape = tuple(b + extent + a for b, extent, a in zip(before, data.shape, after, strict=True))

    def place(axis: Term, extent: int, count: int) -> Term:
        return (axis + (-count % extent)) % extent

    return compute(
        shape,
        lambda *axes: data[
            tuple(
                place(axis, extent, b) if extent != own else axis
                for axis, extent, own, b in zip(axes, data.shape, shape, before, strict=True)
            )
        ],
        name=name,
    )


def edge_pad(data: Tensor, before: Sequence[int], after: Sequence[int], name: str = "edge_pad") -> Tensor:
    """Repeat the border of `data` (ONNX mode "edge"), one dimension at a time."""
    for dimension, (b, a) in enumerate(zip(before, after, strict=True)):
        if b or a:
            data = _border_pad(data, dimension, b, a, reflect=False, name=name)
    return data


def _border_pad(data: Tensor, dimension: int, before: int, after: int, reflect: bool, name: str) -> Tensor:
    extent = data.shape[dimension]
    shape = (*data.shape[:dimension], before + extent + after, *data.shape[dimension + 1 :])

    def body(*axes: Term) -> Term:
        axis = axes[dimension]

        def read(index: Term | int) -> Term:
            return data[(*axes[:dimension], index, *axes[dimension + 1 :])]

        result = read(axis - before)
        if after:
            mirrored = (2 * (extent - 1) + before) - axis if reflect else extent - 1
            result = select(axis < before + extent, result, read(mirrored))
        if before:
            result = select(axis >= before, result, read(before - axis if reflect else 0))
        return result

    return compute(shape, body, name=name)


def transpose(data: Tensor, permutation: Sequence[int], name: str = "transpose") -> Tensor:
    """numpy.transpose: dimension i of the result is dimension permutation[i] of `data`."""
    if sorted(permutation) != list(range(len(data.shape))):
        raise ExpressionError(
            f"transpose {name}: expected a permutation of {len(data.shape)} dimensions, found "
            f"{tuple(permutation)}"
        )
    place = [list(permutation).index(dimension) for dimension in range(len(permutation))]
    shape = tuple(data.shape[dimension] for dimension in permutation)
    return compute(shape, lambda *axes: data[tuple(axes[position] for position in place)], name=name)


def pieces(whole: Sequence[int], parts: Sequence[int]) -> list[list[int]] | None:
    """For each extent of `whole` the positions of the neighbouring `parts` that it is the product of.

    None where the same elements in the same order have dimensions that cut across.

    >>> pieces((6, 4), (2, 3, 4)), pieces((1, 6, 1, 4), (6, 4, 1)), pieces((2, 12), (6, 4))
    ([[0, 1], [2]], [[], [0], [], [1]], None)
    """
    found: list[list[int]] = []
    position = 0
    for extent in whole:
        own, product = [], 1
        while product < extent and position < len(parts):
            own.append(position)
            product *= parts[position]
            position += 1
        if product != extent:
            return None
        found.append(own)
    return found if set(parts[position:]) <= {1} else None


def split_dimensions(data: Tensor, shape: Sequence[int], name: str = "split") -> Tensor:
    """The same elements in dimensions of which each one of data's is some (`pieces`): indices stay affine.

    Raises:
        ExpressionError: they cut across data's.
    """
    own = pieces(data.shape, shape)
    if own is None:
        raise ExpressionError(f"split {name}: {tuple(shape)} does not split the dimensions {data.shape}")

    def index(axes: Sequence[Term], places: Sequence[int]) -> Term | int:
        total: Term | int = 0
        for place in places:
            total = total * shape[place] + axes[place]
        return total

    return compute(tuple(shape), lambda *axes: data[tuple(index(axes, places) for places in own)], name)


def expand(data: Tensor, shape: Sequence[int], name: str = "expand") -> Tensor:
    """Repeat the dimensions of extent 1 up to `shape`, which has the same rank.

    Raises:
        ExpressionError: another dimension would change.
    """
    if len(shape) != len(data.shape) or any(
        own not in (1, wanted) for own, wanted in zip(data.shape, shape, strict=True)
    ):
        raise ExpressionError(
            f"expand {name}: expected a shape that differs from {data.shape} where that has 1 only, found "
            f"{tuple(shape)}"
        )

    def body(*axes: Term) -> Term:
        return data[tuple(0 if own == 1 else axis for own, axis in zip(data.shape, axes, strict=True))]

    return compute(tuple(shape), body, name=name)


def strided_slice(
    data: Tensor, starts: Sequence[int], steps: Sequence[int], shape: Sequence[int], name: str = "slice"
) -> Tensor:
    """result[i...] = data[starts + steps * i...]; steps may be negative.

    Raises:
        ExpressionError: the slice leaves the tensor.
    """
    for dimension, (start, step, count) in enumerate(zip(starts, steps, shape, strict=True)):
        last = start + step * (count - 1)
        if not (0 <= start < data.shape[dimension] and 0 <= last < data.shape[dimension]):
            raise ExpressionError(
                f"slice {name}: dimension {dimension} has {data.shape[dimension]} elements, found a slice "
                f"from {start} "
                f"to {last}"
            )
    return compute(
        tuple(shape),
        lambda *axes: data[
            tuple(axis * step + start for axis, start, step in zip(axes, starts, steps, strict=True))
        ],
        name=name,
    )


def concat(parts: Sequence[Tensor], dimension: int, name: str = "concat") -> Tensor:
    """numpy.concatenate along one dimension, as selects over the parts: a chain, or a tree of many."""
    shape = list(parts[0].shape)
    offsets = [0]
    for part in parts:
        others = [extent for i, extent in enumerate(part.shape) if i != dimension]
        expected = [extent for i, extent in enumerate(shape) if i != dimension]
        if others != expected:
            raise ExpressionError(
                f"concat {name}: expected parts equal but for dimension {dimension}, found {parts[0].shape} "
                f"and {part.shape}"
            )
        offsets.append(offsets[-1] + part.shape[dimension])
    shape[dimension] = offsets[-1]

    def body(*axes: Term) -> Term:
        def read(part: Tensor, offset: int) -> Term:
            return part[(*axes[:dimension], axes[dimension] - offset, *axes[dimension + 1 :])]

        def choose(first: int, last: int) -> Term:
            """The element among the parts first, ..., last."""
            if first == last:
                return read(parts[first], offsets[first])
            middle = first if len(parts) <= LONGEST_CHAIN else (first + last) // 2
            inside = axes[dimension] < offsets[middle + 1]
            return select(inside, choose(first, middle), choose(middle + 1, last))

        return choose(0, len(parts) - 1)

    return compute(tuple(shape), body, name=name)
