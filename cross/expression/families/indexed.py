"""Reading and writing at indices that are read from tensors, beyond gathers (data_movement.py).

No index leaves its tensor, whatever the data: see `data_movement.at_index` and `nearest`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cross.expression.families.data_movement import at_index
from cross.expression.families.pool import COMBINERS
from cross.expression.language import functions
from cross.expression.language.dtypes import INDEX
from cross.expression.language.functions import (
    equal,
    logical_and,
    logical_or,
    maximum,
    minimum,
    reduce_axis,
)
from cross.expression.language.operations import COMBINERS as OPERATORS
from cross.expression.language.operations import neutral_value
from cross.expression.language.tensor import Axis, Tensor, compute
from cross.expression.language.terms import Term, call, cast, constant, select


def nearest(index: Term, extent: int) -> Term:
    """The index in 0 .. extent - 1 that is nearest."""
    return minimum(maximum(index, 0), extent - 1)


def gather_tuples(data: Tensor, indices: Tensor, batches: int) -> Tensor:
    """ONNX's GatherND: rows of `indices` name places in the dimensions behind the `batches` shared."""
    count, outer = indices.shape[-1], len(indices.shape) - 1
    shape = (*indices.shape[:-1], *data.shape[batches + count :])

    def body(*axes: Term) -> Term:
        rows = axes[:outer]
        places = [at_index(indices[(*rows, item)], data.shape[batches + item]) for item in range(count)]
        return data[(*axes[:batches], *places, *axes[outer:])]

    if not shape:
        return compute((1,), lambda one: body(), name="gather_tuples")
    return compute(shape, body, name="gather_tuples")


def reverse_sequences(data: Tensor, lengths: Tensor, batch: int, time: int) -> Tensor:
    """The first `lengths[b]` elements of each sequence the other way round, along the dimension `time`."""

    def body(*axes: Term) -> Term:
        here, length = axes[time], cast(INDEX, lengths[axes[batch]])
        place = nearest(select(here < length, length - 1 - here, here), data.shape[time])
        return data[(*axes[:time], place, *axes[time + 1 :])]

    return compute(data.shape, body, name="reverse_sequences")


def write_at(data: Tensor, update: Tensor, starts: Tensor, dimension: int, circular: bool) -> Tensor:
    """`data` with `update` written from `starts[b]` on along a dimension, around its end if circular."""
    extent, length = data.shape[dimension], update.shape[dimension]

    def body(*axes: Term) -> Term:
        distance = axes[dimension] - cast(INDEX, starts[axes[0]])
        if circular:
            distance = select(distance < 0, distance + extent, distance)
        written = logical_and(distance >= 0, distance < length)
        place = nearest(distance, length)
        return select(written, update[(*axes[:dimension], place, *axes[dimension + 1 :])], data[axes])

    return compute(data.shape, body, name="write_at")


def scatter_elements(data: Tensor, indices: Tensor, updates: Tensor, dimension: int, combiner: str) -> Tensor:
    """`data` with each update written where its index says along one dimension.

    Updates of one place are combined with what is there ("sum", "prod", "max", "min"), or the last one stays
    ("last"). Every element looks at all updates of its line.
    """
    update = reduce_axis(indices.shape[dimension], "update")

    def at(axes: Sequence[Term], place: Term) -> tuple[Term, ...]:
        others = (nearest(axis, extent) for axis, extent in zip(axes, indices.shape, strict=True))
        return tuple(place if d == dimension else other for d, other in enumerate(others))

    def hits(axes: Sequence[Term]) -> Term:
        lines = enumerate(zip(axes, indices.shape, data.shape, strict=True))
        reached = [axis < own for d, (axis, own, whole) in lines if d != dimension and own < whole]
        index = at_index(indices[at(axes, update)], data.shape[dimension])
        return logical_and(*reached, equal(index, axes[dimension]))

    return _scattered(data, hits, lambda axes, place: updates[at(axes, place)], update, combiner)


def scatter_tuples(data: Tensor, indices: Tensor, updates: Tensor, combiner: str) -> Tensor:
    """ONNX's ScatterND, of rows [n, k] of indices and updates [n, rest of data]; see `scatter_elements`."""
    rows, count = indices.shape
    update = reduce_axis(rows, "update")

    def hits(axes: Sequence[Term]) -> Term:
        return logical_and(
            *(equal(at_index(indices[update, item], data.shape[item]), axes[item]) for item in range(count))
        )

    return _scattered(data, hits, lambda axes, place: updates[(place, *axes[count:])], update, combiner)


def _scattered(
    data: Tensor,
    hits: Callable[[Sequence[Term]], Term],
    value: Callable[[Sequence[Term], Term], Term],
    update: Axis,
    combiner: str,
) -> Tensor:
    """`data` and the updates that hit each of its elements: `value` gives one at a position of `update`."""
    if combiner == "last":
        last = compute(
            data.shape,
            lambda *axes: functions.max(select(hits(axes), update + 0, constant(-1, INDEX)), update),
            name="last",
        )

        def chosen(*axes: Term) -> Term:
            found = last[axes]
            return select(found >= 0, value(axes, nearest(found, update.extent)), data[axes])

        return compute(data.shape, chosen, name="scattered")
    neutral = constant(neutral_value(combiner, data.dtype), data.dtype)
    total = compute(
        data.shape,
        lambda *axes: COMBINERS[combiner](select(hits(axes), value(axes, update), neutral), update),
        name="updates",
    )
    return compute(
        data.shape, lambda *axes: call(OPERATORS[combiner], data[axes], total[axes]), name="scattered"
    )


def largest_places(data: Tensor, dimension: int, count: int, largest: bool) -> Tensor:
    """The places (int64) of the `count` largest or smallest elements along a dimension, in order of size.

    Equal elements keep their order. Each element is compared with all others of its line.
    """
    extent = data.shape[dimension]
    other, element = reduce_axis(extent, "other"), reduce_axis(extent, "element")

    def along(axes: Sequence[Term], place: Term) -> tuple[Term, ...]:
        return (*axes[:dimension], place, *axes[dimension + 1 :])

    def before(*axes: Term) -> Term:
        own, rival = data[axes], data[along(axes, other)]
        wins = own < rival if largest else rival < own
        tie = logical_and(equal(own, rival), other < axes[dimension])
        return functions.sum(select(logical_or(wins, tie), constant(1, INDEX), constant(0, INDEX)), other)

    rank = compute(data.shape, before, name="rank")
    shape = (*data.shape[:dimension], count, *data.shape[dimension + 1 :])

    def place(*axes: Term) -> Term:
        same = equal(rank[along(axes, element)], axes[dimension])
        return functions.sum(select(same, element + 0, constant(0, INDEX)), element)

    return compute(shape, place, name="places")


def columns_to_image(
    columns: Tensor, image: Sequence[int], kernel: Sequence[int], geometry: Sequence[Sequence[int]]
) -> Tensor:
    """ONNX's Col2Im: [n, c, image...] from columns [n, c, kernel..., places...], whose overlaps are added.

    `geometry` has the strides, dilations and pads in front of each dimension of the image.
    """
    strides, dilations, pads = geometry
    rank = len(image)
    taps = [reduce_axis(extent, f"k{d}") for d, extent in enumerate(kernel)]
    counts = columns.shape[2 + rank :]

    def body(*axes: Term) -> Term:
        conditions: list[Term] = []
        places: list[Term] = []
        for d in range(rank):
            distance = axes[2 + d] + pads[d] - taps[d] * dilations[d]
            stride = strides[d]
            quotient = distance // stride
            conditions += [distance >= 0, equal(distance % stride, 0), quotient < counts[d]]
            places.append(nearest(quotient, counts[d]))
        value = columns[(*axes[:2], *taps, *places)]
        return functions.sum(select(logical_and(*conditions), value, 0), taps)

    return compute((*columns.shape[:2], *image), body, name="image")


def determinant(data: Tensor) -> Tensor:
    """The determinants of matrices [..., n, n] by the sum over permutations, for small n."""
    size = data.shape[-1]

    def minor(axes: Sequence[Term], row: int, columns: tuple[int, ...]) -> Term:
        if len(columns) == 1:
            return data[(*axes, row, columns[0])]
        total: Term | None = None
        for position, column in enumerate(columns):
            rest = columns[:position] + columns[position + 1 :]
            product = data[(*axes, row, column)] * minor(axes, row + 1, rest)
            signed = product if position % 2 == 0 else -product
            total = signed if total is None else total + signed
        assert total is not None
        return total

    shape, columns = data.shape[:-2], tuple(range(size))
    if not shape:
        return compute((1,), lambda one: minor((), 0, columns), name="determinant")
    return compute(shape, lambda *axes: minor(axes, 0, columns), name="determinant")
