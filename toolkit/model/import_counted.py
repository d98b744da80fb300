"""Importers of outputs whose size depends on data: Compress, NonZero, Unique, NonMaxSuppression, Range and
ConstantOfShape.

Such an output has room for the most elements there may be, and a count: see `Count` in graph.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from toolkit.model.constants import fill_of
from toolkit.model.graph import Array, Attribute, Count, GraphBuilder, Repeat, Value, computed_in
from toolkit.model.import_indexed import MOST_COMPARED
from toolkit.model.refusals import TENSORS_ONLY
from toolkit.model.source import FLOATS, INTEGERS, VALUES, Emitter, Importer, Operand, Source

MOST_ROWS = 2048  # that Unique compares with one another along an axis: a table of all pairs


class _Counting(Emitter, frozen=True):
    """Emits outputs of a node of which only some elements count, and what counts them."""

    def output(
        self, operand: Operand, op: str, inputs: Sequence[str], attributes: dict[str, Attribute], count: Count
    ) -> None:
        """One of the node's outputs, of which only some elements count."""
        self.source.give(self.build, operand, op, inputs, attributes)
        self.build.counts[operand.name] = count

    def places(self, mask: str, most: int) -> tuple[str, str]:
        """The first places at which a list of truth values holds: int64 [most]; and how many do: int64."""
        (length,) = self.build.values[mask].shape
        columns = math.isqrt(length - 1) + 1
        rows = -(-length // columns)
        ones = self.emit("Cast", [mask], (length,), {"to": "int64"}, "int64")
        if rows * columns > length:
            pads: dict[str, Attribute] = {"mode": "constant", "value": 0}
            pads |= {"before": (0,), "after": (rows * columns - length,)}
            ones = self.emit("Pad", [ones], (rows * columns,), pads)
        sums: dict[str, Attribute] = {"exclusive": 0, "reverse": 0}
        table = self.shaped(ones, (rows, columns))
        within = self.emit("CumSum", [table], (rows, columns), {"axis": 1, **sums})
        ends = self.part(within, 1, columns - 1, columns)
        across = self.emit("CumSum", [self.shaped(ends, (rows,))], (rows,), {"axis": 0, **sums})
        found = self.emit("TruePlaces", [within, across], (most,), {"count": most})
        return found, self.count(self.part(across, 0, rows - 1, rows))

    def count(self, one: str) -> str:
        """A value of one element as the count of this node's outputs: a scalar."""
        name = self.build.fresh(f"{self.source.output.name}/count")
        return self.build.emit("Reshape", [one], Value(name, (), "int64"), {}, self.source.name)


def _along(source: Source, data: Operand) -> tuple[tuple[int, ...], int]:
    """The shape of the data, flat without an axis, and the dimension that the node works along."""
    if "axis" not in source.attributes:
        return (math.prod(data.shape),), 0
    return data.shape, source.integer("axis", 0) % data.rank


def compressed_shape(source: Source) -> tuple[int, ...]:
    """Room for as many elements as may be kept; with a known condition for those that are."""
    shape, axis = _along(source, source.input(0))
    condition = source.input(1)
    kept = min(math.prod(condition.shape), shape[axis])
    if condition.data is not None:
        kept = int(np.count_nonzero(condition.data[: shape[axis]]))
    return (*shape[:axis], kept, *shape[axis + 1 :])


def compress(source: Source, build: GraphBuilder) -> None:
    """Compress: the slices along an axis for which the condition holds."""
    nodes, data, condition = _Counting(source, build), source.input(0), source.input(1)
    shape, axis = _along(source, data)
    output = source.output
    if not math.prod(output.shape):
        nothing = np.zeros(output.shape, output.dtype)
        build.add(Value(output.name, output.shape, output.dtype, nothing, output.name))
        return
    name = nodes.shaped(data.name, shape) if shape != data.shape else data.name
    if condition.data is not None:
        places = nodes.constant("places", np.flatnonzero(condition.data[: shape[axis]]))
        source.emit(build, "Gather", [name, places], {"axis": axis})
        return
    if condition.shape[0] > shape[axis]:
        raise source.invalid(f"its condition has {condition.shape[0]} elements for {shape[axis]}")
    places, count = nodes.places(condition.name, condition.shape[0])
    nodes.output(output, "Gather", [name, places], {"axis": axis}, Count(count, axis))


def places_shape(source: Source) -> tuple[int, ...]:
    """Room for the places of all elements."""
    data = source.input(0)
    return data.rank, math.prod(data.shape)


def non_zero(source: Source, build: GraphBuilder) -> None:
    """NonZero: the indices of the elements that are not 0, one row for each dimension."""
    nodes, data = _Counting(source, build), source.input(0)
    if not data.rank:
        raise source.refuse("its data has no dimension", "give its data a dimension in the model")
    most = math.prod(data.shape)
    mask = data.name
    if data.dtype != "bool":
        mask = nodes.emit("Cast", [mask], data.shape, {"to": "bool"}, "bool")
    places, count = nodes.places(nodes.shaped(mask, (most,)), most)
    steps = [math.prod(data.shape[d + 1 :]) for d in range(data.rank)]
    columns = [
        nodes.constant(stem, own)
        for stem, own in (("steps", np.c_[steps]), ("sizes", np.c_[list(data.shape)]))
    ]
    whole = nodes.emit("Div", [nodes.shaped(places, (1, most)), columns[0]], (data.rank, most))
    nodes.output(source.output, "Mod", [whole, columns[1]], {}, Count(count, 1))


def unique_shape(source: Source) -> tuple[int, ...]:
    """Room for all elements, or slices, to be different."""
    return _along(source, source.input(0))[0]


def unique(source: Source, build: GraphBuilder) -> None:
    """Unique: the different elements, or slices along an axis; where they begin, which each is, how many."""
    nodes, data = _Counting(source, build), source.input(0)
    shape, axis = _along(source, data)
    extent, width = shape[axis], math.prod(shape) // shape[axis]
    most = MOST_COMPARED if width == 1 else MOST_ROWS
    if extent > most:
        raise source.refuse(
            f"{extent} elements or slices are compared with one another; expected at most {most}"
        )
    name = nodes.shaped(data.name, shape) if shape != data.shape else data.name
    rows = name
    if axis:
        rows = nodes.transposed(name, (axis, *(d for d in range(len(shape)) if d != axis)))
    rows = nodes.shaped(rows, (extent, width))
    table = [nodes.emit("FirstDifference", [rows], (extent, extent), dtype="int64")] if width > 1 else []
    first = nodes.emit("FirstEqual", [rows, *table], (extent,), dtype="int64")
    own = nodes.constant("own", np.arange(extent))
    begins = nodes.emit("Equal", [first, own], (extent,), dtype="bool")
    ones = nodes.emit("Cast", [begins], (extent,), {"to": "int64"}, "int64")
    count = Count(nodes.count(nodes.emit("ReduceSum", [ones], (1,), {"axes": (0,)})), 0)
    attributes: dict[str, Attribute] = {"ordered": source.integer("sorted", 1)}
    rank = nodes.emit("RankOfKind", [rows, first, *table], (extent,), attributes, "int64")
    places = nodes.emit("PlacesOfKinds", [rank, first], (extent,))
    nodes.output(source.output, "Gather", [name, places], {"axis": axis}, Count(count.by, axis))
    more = [None if item is None else Operand(item.name, (extent,), "int64") for item in source.outputs[1:]]
    indices, inverse, sizes = (*more, None, None, None)[:3]
    if indices is not None:
        nodes.output(indices, "Identity", [places], {}, count)
    if inverse is not None:
        source.give(build, inverse, "Identity", [rank])
    if sizes is not None:
        nodes.output(sizes, "SizesOfKinds", [rank], {}, count)


def _selections(source: Source) -> int:
    """How many boxes of a class NonMaxSuppression chooses at most.

    Raises:
        ModelError: none.
    """
    asked, most = source.optional(2), source.input(0).shape[1]
    if asked is None:
        most = 0
    elif asked.data is not None or asked.interval is not None:
        most = min(most, int(source.bounded(2, "number of boxes").high.item()))
    if most < 1:
        raise source.refuse(
            "it selects no box, as its max_output_boxes_per_class is 0", "export the model without it"
        )
    return most


def selected_shape(source: Source) -> tuple[int, ...]:
    """Room for as many boxes of each class in each image as are asked for."""
    images, classes, _ = source.input(1).shape
    return images * classes * _selections(source), 3


def suppress(source: Source, build: GraphBuilder) -> None:
    """NonMaxSuppression: a loop takes the box of the best score of each class as often as boxes are asked
    for; the scores of those that overlap it become minus infinity.
    """
    nodes, boxes, scores = _Counting(source, build), source.input(0), source.input(1)
    images, classes = scores.shape[:2]
    most, lines = _selections(source), images * classes
    best, values = _selecting(nodes, boxes, scores, most)
    lowest = nodes.constant("nothing", -math.inf, computed_in(scores.dtype))
    valid = nodes.emit("Greater", [values, lowest], (most, images, classes, 1), dtype="bool")
    asked = source.input(2)
    if asked.data is None:
        step = nodes.constant("step", np.arange(most).reshape(most, 1, 1, 1))
        early = nodes.emit("Less", [step, nodes.shaped(asked.name, ())], (most, 1, 1, 1), dtype="bool")
        valid = nodes.emit("And", [valid, early], (most, images, classes, 1))

    def by_class(name: str) -> str:
        """A value of each step as a list, all steps of a class together."""
        return nodes.shaped(nodes.transposed(nodes.shaped(name, (most, lines)), (1, 0)), (lines * most,))

    rows = lines * most
    places, total = nodes.places(by_class(valid), rows)
    line = nodes.emit("Div", [places, nodes.constant("steps", most)], (rows,))
    image = nodes.emit("Div", [line, nodes.constant("classes", classes)], (rows,))
    kind = nodes.emit("Mod", [line, nodes.constant("classes", classes)], (rows,))
    box = nodes.emit("Gather", [by_class(best), places], (rows,), {"axis": 0})
    columns = [nodes.shaped(name, (rows, 1)) for name in (image, kind, box)]
    nodes.output(source.output, "Concat", columns, {"axis": 1}, Count(total, 0))


def _selecting(nodes: _Counting, boxes: Operand, scores: Operand, most: int) -> tuple[str, str]:
    """The loop: the box that each step takes of each class, and its score: [most, images, classes, 1]."""
    source, build = nodes.source, nodes.build
    images, classes = scores.shape[:2]
    begin, dtype = _candidates(nodes, scores, source.optional(4)), computed_in(scores.dtype)
    share = source.optional(3)
    threshold = nodes.constant("threshold", [0.0], dtype) if share is None else nodes.shaped(share.name, (1,))

    inner = GraphBuilder(f"{source.name}/selection")
    state = inner.add(Value("scores", scores.shape, scores.dtype))
    outside = {"boxes": boxes.name, "threshold": threshold}
    given = [inner.add(replace(build.values[name], name=own, source="")) for own, name in outside.items()]
    best = inner.emit("ArgMax", [state], Value("best", (images, classes, 1), "int64"), {"axis": 2, "last": 0})
    value = inner.emit(
        "GatherElements", [state, best], Value("value", (images, classes, 1), scores.dtype), {"axis": 2}
    )
    attributes: dict[str, Attribute] = {"centers": source.integer("center_point_box", 0)}
    rest = inner.emit(
        "WithoutOverlaps",
        [state, given[0], best, given[1]],
        Value("rest", scores.shape, scores.dtype),
        attributes,
    )
    results = (rest, best, value)
    computed = [own for own in given if not inner.values[own].constant]
    body = inner.finish([state, *computed], results)
    outer = [outside[own] for own in computed]
    outputs = [
        Value(build.fresh(f"{source.name}/rest"), scores.shape, scores.dtype),
        Value(build.fresh(f"{source.name}/best"), (most, images, classes, 1), "int64"),
        Value(build.fresh(f"{source.name}/values"), (most, images, classes, 1), scores.dtype),
    ]
    repeat = Repeat(body, most, 1, 0, results, (False, False))
    _, chosen, values = build.control(repeat, [begin, *outer], outputs, source.name)
    return chosen, values


def _candidates(nodes: _Counting, scores: Operand, least: Operand | None) -> str:
    """Finite scores where they are more than the least one that is asked for, else minus infinity."""
    dtype = computed_in(scores.dtype)
    smallest = np.finfo(dtype).min
    if scores.data is not None and (least is None or least.data is not None):
        kept = scores.data > (-math.inf if least is None or least.data is None else least.data.reshape(()))
        return nodes.constant("scores", np.where(kept, np.maximum(scores.data, smallest), -math.inf), dtype)
    nothing = nodes.constant("nothing", -math.inf, dtype)
    if scores.data is not None:
        finite = nodes.constant("finite", np.maximum(scores.data, smallest), dtype)
    else:
        lowest = nodes.constant("lowest", smallest, dtype)
        finite = nodes.emit("Max", [scores.name, lowest], scores.shape, dtype=scores.dtype)
    bound = nothing if least is None else nodes.shaped(least.name, ())
    taken = nodes.emit("Greater", [scores.name, bound], scores.shape, dtype="bool")
    return nodes.emit("Where", [taken, finite, nothing], scores.shape, dtype=scores.dtype)


def _progression(source: Source) -> Array:
    """The longest that a Range may be.

    Raises:
        ModelError: nothing says how long it may be.
    """
    start, delta = source.known(0, "start"), source.known(2, "delta")
    assert start is not None and delta is not None
    if delta.item() < 1:
        raise source.refuse(
            f"its limit is computed, and its delta is {delta.item()}; expected 1 or more", TENSORS_ONLY
        )
    most = source.bounded(1, "limit").high
    numbers = np.arange(int(start.item()), int(most.item()), int(delta.item()))
    return numbers.astype(source.input(1).dtype)


def range_shape(source: Source) -> tuple[int, ...]:
    """Room for all numbers up to the largest limit."""
    return (len(_progression(source)),)


def range_(source: Source, build: GraphBuilder) -> None:
    """Range up to a limit that is computed and has a bound."""
    nodes, numbers = _Counting(source, build), _progression(source)
    start, delta = (source.input(position).data for position in (0, 2))
    assert start is not None and delta is not None
    limit = nodes.emit("Cast", [nodes.shaped(source.input(1).name, ())], (), {"to": "int64"}, "int64")
    above = nodes.emit("Add", [limit, nodes.constant("above", delta.item() - 1 - start.item())], ())
    count = nodes.emit("Div", [above, nodes.constant("delta", delta.item())], ())
    count = nodes.emit("Max", [count, nodes.constant("none", 0)], ())
    known = nodes.constant("numbers", numbers, source.output.dtype)
    nodes.output(source.output, "Identity", [known], {}, Count(count, 0))


def _open_dimension(source: Source) -> int:
    """The one dimension of a ConstantOfShape whose extent is not known.

    Raises:
        ModelError: there are several, or nothing says how large it may be.
    """
    interval = source.bounded(0, "shape")
    (places,) = np.nonzero(interval.low != interval.high)
    if len(places) != 1:
        raise source.refuse(f"{len(places)} of its dimensions depend on data; expected one", TENSORS_ONLY)
    return int(places[0])


def filled_shape(source: Source) -> tuple[int, ...]:
    """Room for the most elements there may be."""
    return tuple(max(0, int(extent)) for extent in source.bounded(0, "shape").high)


def fill(source: Source, build: GraphBuilder) -> None:
    """ConstantOfShape of a shape that is computed and has a bound."""
    nodes, dimension = _Counting(source, build), _open_dimension(source)
    shape = source.output.shape
    number = fill_of(source.attributes.get("value"))
    count = nodes.count(nodes.part(source.input(0).name, 0, dimension, dimension + 1))
    known = nodes.constant("numbers", np.full(shape, number.item()), computed_in(source.output.dtype))
    nodes.output(source.output, "Identity", [known], {}, Count(count, dimension))


IMPORTERS: dict[str, Importer] = {
    "Range": Importer(range_, set(), frozenset({"int16", "int32", "int64"}), shape=range_shape),
    "ConstantOfShape": Importer(fill, {"value"}, VALUES, shape=filled_shape),
    "Compress": Importer(compress, {"axis"}, VALUES, shape=compressed_shape),
    "NonZero": Importer(non_zero, set(), VALUES, shape=places_shape),
    "Unique": Importer(unique, {"axis", "sorted"}, VALUES, extra_outputs=True, shape=unique_shape),
    "NonMaxSuppression": Importer(suppress, {"center_point_box"}, FLOATS | INTEGERS, shape=selected_shape),
}
