"""Importers of what reads or writes at indices, known ahead of time or computed."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from toolkit.model.graph import Attribute, Count, GraphBuilder, Value
from toolkit.model.source import VALUES, Importer, Operand, Source

MOST_COMPARED = 1 << 14  # elements of a line that TopK compares with one another
MOST_DETERMINANT = 5  # rows of a matrix whose determinant is a sum over permutations
REDUCTIONS = {"none": "last", "add": "sum", "mul": "prod", "max": "max", "min": "min"}


def gather(source: Source, build: GraphBuilder) -> None:
    """Gather: a slice where the indices are known and evenly spaced, else a read at each index."""
    data, indices = source.input(0), source.input(1)
    axis = source.integer("axis", 0) % data.rank
    where = _evenly_spaced(source, indices, data.shape[axis]) if indices.rank < 2 else None
    if where is None:
        source.emit(build, "Gather", [data.name, indices.name], {"axis": axis})
        return
    starts, steps = [0] * data.rank, [1] * data.rank
    starts[axis], steps[axis] = where
    shape = (*data.shape[:axis], int(np.prod(indices.shape)), *data.shape[axis + 1 :])
    attributes: dict[str, Attribute] = {"starts": tuple(starts), "steps": tuple(steps), "shape": shape}
    if shape == source.output.shape:
        source.emit(build, "Slice", [data.name], attributes)
        return
    part = source.emit(build, "Slice", [data.name], attributes, shape=shape)
    source.emit(build, "Reshape", [part])


def _evenly_spaced(source: Source, indices: Operand, extent: int) -> tuple[int, int] | None:
    """The first of known indices and their distance; None where they have no such.

    Raises:
        ModelError: an index lies outside.
    """
    if indices.data is None:
        return None
    known = [int(index) for index in indices.data.ravel().tolist()]
    where = [index + extent if index < 0 else index for index in known]
    if not all(0 <= index < extent for index in where):
        raise source.invalid(f"indices {known} leave a dimension of {extent}")
    gaps = {after - before for before, after in pairwise(where)} or {1}
    return (where[0], gaps.pop()) if len(gaps) == 1 and 0 not in gaps else None


def gather_elements(source: Source, build: GraphBuilder) -> None:
    """GatherElements: numpy.take_along_axis."""
    data, indices = source.input(0), source.input(1)
    _check_lines(source, data, indices)
    axis = source.integer("axis", 0) % data.rank
    source.emit(build, "GatherElements", [data.name, indices.name], {"axis": axis})


def _check_lines(source: Source, data: Operand, indices: Operand) -> None:
    """Raises ModelError for indices that do not fit into the other dimensions of the data."""
    axis = source.integer("axis", 0) % data.rank
    fits = indices.rank == data.rank and all(
        own <= whole or d == axis
        for d, (own, whole) in enumerate(zip(indices.shape, data.shape, strict=True))
    )
    if not fits:
        raise source.invalid(
            f"indices of shape {list(indices.shape)} do not fit data of shape {list(data.shape)}"
        )


def gather_tuples(source: Source, build: GraphBuilder) -> None:
    """GatherND."""
    operands = [source.input(0).name, source.input(1).name]
    source.emit(build, "GatherND", operands, {"batches": source.integer("batch_dims", 0)})


def scatter_elements(source: Source, build: GraphBuilder) -> None:
    """ScatterElements, and Scatter as it was called before."""
    data, indices, updates = (source.input(position) for position in range(3))
    _check_lines(source, data, indices)
    axis = source.integer("axis", 0) % data.rank
    attributes: dict[str, Attribute] = {"axis": axis, "combiner": _combiner(source)}
    source.emit(build, "ScatterElements", [data.name, indices.name, updates.name], attributes)


def _combiner(source: Source) -> str:
    reduction = source.text("reduction", "none")
    if reduction not in REDUCTIONS:
        raise source.invalid(f"reduction {reduction!r} is unknown")
    return REDUCTIONS[reduction]


def scatter_tuples(source: Source, build: GraphBuilder) -> None:
    """ScatterND: rows of indices and their updates, each kind as one list."""
    data, indices, updates = (source.input(position) for position in range(3))
    count = indices.shape[-1]
    rows = int(np.prod(indices.shape[:-1]))
    name = source.emit(build, "Reshape", [indices.name], shape=(rows, count), dtype=indices.dtype)
    listed = source.emit(build, "Reshape", [updates.name], shape=(rows, *data.shape[count:]))
    source.emit(build, "ScatterND", [data.name, name, listed], {"combiner": _combiner(source)})


def write_at(source: Source, build: GraphBuilder) -> None:
    """TensorScatter: a cache with an update written along one dimension, for each batch at its own place."""
    data, update = source.input(0), source.input(1)
    mode = source.text("mode", "linear")
    if mode not in ("linear", "circular"):
        raise source.invalid(f"mode {mode!r} is unknown")
    starts = source.optional(2)
    name = (
        starts.name
        if starts
        else build.constant(f"{source.output.name}/starts", np.zeros(data.shape[:1], np.int64))
    )
    attributes: dict[str, Attribute] = {
        "axis": source.integer("axis", -2) % data.rank,
        "circular": int(mode == "circular"),
    }
    source.emit(build, "TensorScatter", [data.name, update.name, name], attributes)


def reverse_sequences(source: Source, build: GraphBuilder) -> None:
    """ReverseSequence."""
    attributes: dict[str, Attribute] = {
        "batch": source.integer("batch_axis", 1),
        "time": source.integer("time_axis", 0),
    }
    source.emit(build, "ReverseSequence", [source.input(0).name, source.input(1).name], attributes)


def top_shape(source: Source) -> tuple[int, ...]:
    """The data's shape with k elements along the axis."""
    shape = list(source.input(0).shape)
    shape[source.integer("axis", -1)] = _count(source)
    return tuple(shape)


def _count(source: Source) -> int:
    """How many elements TopK gives, or at most where that is computed."""
    if source.opset < 10:
        return source.integer("k", 1)
    asked, extent = source.input(1), source.input(0).shape[source.integer("axis", -1)]
    if asked.data is None and asked.interval is None:
        return extent
    most = int(source.bounded(1, "k").high.item())
    return most if asked.data is not None else min(most, extent)


def top(source: Source, build: GraphBuilder) -> None:
    """TopK: the places of the largest or smallest elements, and the elements there."""
    data = source.input(0)
    axis = source.integer("axis", -1) % data.rank
    if data.shape[axis] > MOST_COMPARED:
        raise source.refuse(
            f"the largest of {data.shape[axis]} elements are asked for; at most {MOST_COMPARED} are compared"
        )
    shape = top_shape(source)
    attributes: dict[str, Attribute] = {
        "axis": axis,
        "count": shape[axis],
        "largest": source.integer("largest", 1),
    }
    outputs = [output.name if output else "" for output in (*source.outputs, None)][:2]
    places = Value(outputs[1] or build.fresh(f"{source.name}/places"), shape, "int64", source=outputs[1])
    build.emit("TopPlaces", [data.name], places, attributes, source.name)
    if outputs[0]:
        values = Value(outputs[0], shape, data.dtype, source=outputs[0])
        build.emit("GatherElements", [data.name, places.name], values, {"axis": axis}, source.name)
    if source.opset >= 10 and source.input(1).data is None:
        count = Value(build.fresh(f"{source.name}/count"), (), "int64")
        by = build.emit("Reshape", [source.input(1).name], count, {}, source.name)
        build.counts |= {name: Count(by, axis) for name in outputs if name}


def columns_to_image(source: Source, build: GraphBuilder) -> None:
    """Col2Im: overlapping columns [n, c * kernel, places] added to images."""
    data = source.input(0)
    image = source.known_integers(1, "image shape") or ()
    kernel = source.known_integers(2, "block shape") or ()
    rank = len(image)
    strides = source.integers("strides", (1,) * rank)
    dilations = source.integers("dilations", (1,) * rank)
    pads = source.integers("pads", (0,) * (2 * rank))
    counts = [
        (extent + pads[d] + pads[rank + d] - (kernel[d] - 1) * dilations[d] - 1) // strides[d] + 1
        for d, extent in enumerate(image)
    ]
    channels = data.shape[1] // int(np.prod(kernel))
    split = (data.shape[0], channels, *kernel, *counts)
    name = source.emit(build, "Reshape", [data.name], shape=split)
    attributes: dict[str, Attribute] = {
        "image": image,
        "kernel": kernel,
        "strides": strides,
        "dilations": dilations,
        "before": pads[:rank],
    }
    source.emit(build, "Col2Im", [name], attributes)


def determinant(source: Source, build: GraphBuilder) -> None:
    """Det of small matrices."""
    data = source.input(0)
    if data.shape[-1] > MOST_DETERMINANT:
        raise source.refuse(f"matrices of {data.shape[-1]} rows; at most {MOST_DETERMINANT} are supported")
    source.emit(build, "Det", [data.name])


IMPORTERS: dict[str, Importer] = {
    "Gather": Importer(gather, {"axis"}, VALUES),
    "GatherElements": Importer(gather_elements, {"axis"}, VALUES),
    "GatherND": Importer(gather_tuples, {"batch_dims"}, VALUES),
    "Scatter": Importer(scatter_elements, {"axis"}, VALUES),
    "ScatterElements": Importer(scatter_elements, {"axis", "reduction"}, VALUES),
    "ScatterND": Importer(scatter_tuples, {"reduction"}, VALUES),
    "TensorScatter": Importer(write_at, {"axis", "mode"}, VALUES),
    "ReverseSequence": Importer(reverse_sequences, {"batch_axis", "time_axis"}, VALUES),
    "TopK": Importer(top, {"axis", "k", "largest", "sorted"}, VALUES, extra_outputs=True, shape=top_shape),
    "Col2Im": Importer(columns_to_image, {"dilations", "pads", "strides"}),
    "Det": Importer(determinant),
}
