"""Importers of quantization: between floats and integers with a scale and a zero point."""

from __future__ import annotations

from toolkit.model.graph import GraphBuilder
from toolkit.model.import_arithmetic import cast_to
from toolkit.model.source import NUMBERS, Importer, Operand, Source


def dequantize(source: Source, build: GraphBuilder) -> None:
    """DequantizeLinear: (x - zero point) * scale."""
    data, scale, zero = source.input(0), source.input(1), source.optional(2)
    name = cast_to(source, build, data, "float32")
    if zero is not None:
        name = source.emit(build, "Sub", [name, _aligned(source, build, zero)], shape=data.shape)
    source.emit(build, "Mul", [name, _aligned(source, build, scale)])


def quantize(source: Source, build: GraphBuilder) -> None:
    """QuantizeLinear: x / scale, rounded to even, plus the zero point, within the range of the output."""
    data, scale, zero = source.input(0), source.input(1), source.optional(2)
    operands = [cast_to(source, build, data, "float32"), _aligned(source, build, scale)]
    # one node: folding the scale into what is in front of it would turn some halves the other way
    name = source.emit(build, "RoundedQuotient", operands, shape=data.shape, dtype="float32")
    if zero is not None:
        aligned = _aligned(source, build, zero)
        name = source.emit(build, "Add", [name, aligned], shape=data.shape, dtype="float32")
    source.emit(build, "Cast", [name], {"to": source.output.dtype})


def _aligned(source: Source, build: GraphBuilder, operand: Operand) -> str:
    """A scale or zero point in float32: of the whole tensor, of each place on the axis, or of each block."""
    data, rank = source.input(0), source.input(0).rank
    name = cast_to(source, build, operand, "float32")
    if operand.rank == 0 or operand.shape == (1,):
        return name
    axis, block = source.integer("axis", 1) % rank, source.integer("block_size", 0)
    if block:
        known = build.values[name].data
        if known is None:
            raise source.refuse(f"the blocks of {operand.name!r} are scaled by computed numbers")
        blocks = known.repeat(block, axis=axis).take(range(data.shape[axis]), axis=axis)
        return build.constant(f"{operand.name}/blocks", blocks)
    if operand.shape != (data.shape[axis],):
        raise source.refuse(
            f"{operand.name!r} has shape {list(operand.shape)}, expected {[data.shape[axis]]}",
            "export the model again",
        )
    shape = (operand.shape[0], *(1,) * (rank - axis - 1))
    return source.emit(build, "Reshape", [name], shape=shape, dtype="float32")


_SETTINGS = frozenset({"axis", "block_size", "output_dtype", "precision", "saturate"})

IMPORTERS: dict[str, Importer] = {
    "QuantizeLinear": Importer(quantize, _SETTINGS, NUMBERS),
    "DequantizeLinear": Importer(dequantize, _SETTINGS, NUMBERS),
}
