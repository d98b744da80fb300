"""Importers of normalizations that compute their mean and variance from the data."""

from __future__ import annotations

from toolkit.model.graph import Attribute, GraphBuilder
from toolkit.model.source import Importer, Operand, Source


def layer_normalization(source: Source, build: GraphBuilder) -> None:
    """LayerNormalization: over the dimensions from `axis` on; scale and bias follow as a Mul and an Add."""
    data, scale, shift = source.input(0), source.input(1), source.optional(2)
    axis = source.integer("axis", -1)
    if not -data.rank <= axis < data.rank:
        raise source.invalid(f"axis {axis} leaves data of shape {list(data.shape)}")
    axis %= data.rank
    for operand in filter(None, (scale, shift)):
        fits = operand.rank <= data.rank and all(
            extent in (1, whole) for extent, whole in zip(operand.shape[::-1], data.shape[::-1], strict=False)
        )
        if not fits:
            raise source.invalid(
                f"{operand.name!r} has shape {list(operand.shape)}, expected {list(data.shape[axis:])}"
            )
    if source.integer("stash_type", 1) != 1:
        raise source.refuse("stash_type other than 1 (float32) is not supported")
    axes = tuple(range(axis, data.rank))
    attributes: dict[str, Attribute] = {"axes": axes, "epsilon": source.number("epsilon", 1e-5)}
    name = source.emit(build, "Normalize", [data.name], attributes, shape=data.shape)
    name = source.emit(build, "Mul", [name, scale.name], shape=None if shift is None else source.output.shape)
    if shift is not None:
        source.emit(build, "Add", [name, shift.name])


def instance_normalization(source: Source, build: GraphBuilder) -> None:
    """InstanceNormalization: over the image dimensions of each channel."""
    data = source.input(0)
    if data.rank < 3:
        raise source.refuse(f"its data has shape {list(data.shape)}; expected [n, c, image...]")
    attributes: dict[str, Attribute] = {
        "axes": tuple(range(2, data.rank)),
        "epsilon": source.number("epsilon", 1e-5),
    }
    name = source.emit(build, "Normalize", [data.name], attributes, shape=data.shape)
    scale, shift = (_channels(source, build, source.input(i), data.rank) for i in (1, 2))
    name = source.emit(build, "Mul", [name, scale], shape=data.shape)
    source.emit(build, "Add", [name, shift])


def _channels(source: Source, build: GraphBuilder, operand: Operand, rank: int) -> str:
    """A vector of one number per channel against data [n, c, image...].

    Raises:
        ModelError: another number of them.
    """
    channels = source.input(0).shape[1]
    if operand.shape != (channels,):
        raise source.invalid(
            f"{operand.name!r} has shape {list(operand.shape)}, expected {[channels]}, one for each channel"
        )
    view = (operand.shape[0], *(1,) * (rank - 2))
    return source.emit(build, "Reshape", [operand.name], shape=view)


def lp_normalization(source: Source, build: GraphBuilder) -> None:
    """LpNormalization: over the sum of sizes (p = 1) or the Euclidean norm of an axis; 0 where that is 0."""
    data, p = source.input(0), source.integer("p", 2)
    if p not in (1, 2):
        raise source.invalid(f"p must be 1 or 2, found {p}")
    axis = source.integer("axis", -1) % data.rank
    kept = (*data.shape[:axis], 1, *data.shape[axis + 1 :])
    whole: dict[str, Attribute] = {"axes": (axis,)}
    if p == 1:
        name = source.emit(build, "Abs", [data.name], shape=data.shape)
        name = source.emit(build, "ReduceSum", [name], whole, kept)
    else:
        name = source.emit(build, "ReduceL2", [data.name], whole, kept)
    zero, one = (source.number_as(build, "number", value) for value in (0.0, 1.0))
    empty = source.emit(build, "Equal", [name, zero], shape=kept, dtype="bool")
    name = source.emit(build, "Where", [empty, one, name], shape=kept)
    source.emit(build, "Div", [data.name, name])


IMPORTERS: dict[str, Importer] = {
    "LayerNormalization": Importer(layer_normalization, {"axis", "epsilon", "stash_type"}, folds=True),
    "LpNormalization": Importer(lp_normalization, {"axis", "p"}),
    "InstanceNormalization": Importer(instance_normalization, {"epsilon"}, folds=True),
}
