"""Matrix products of floats with matrices of bytes: the floats become bytes, too, when the model runs.

As ONNX's DynamicQuantizeLinear and MatMulInteger do, whose importers (import_quantized.py) serve them alone;
here for importers that build loops, with a scale of all data, or one of each row.
"""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace

from toolkit.model.import_quantized import matmul_integer
from toolkit.model.source import Emitter, Operand

_STEPS = 255.0
_SMALLEST_RANGE = 1e-30  # data of zeros alone have a scale, too


class Bytes(msgspec.Struct, frozen=True):
    """A matrix of floats, (integers - zero) * scale: the names of the three; without a zero point it is 0."""

    integers: str
    scale: str
    zero: str


def quantized(nodes: Emitter, data: str, axes: tuple[int, ...]) -> Bytes:
    """The bytes of a float32 matrix; a scale and a zero point hold along the `axes`.

    They span the data and 0.
    """
    whole = nodes.shape(data)
    shape = tuple(1 if axis in axes else size for axis, size in enumerate(whole))

    def number(stem: str, value: float) -> str:
        return nodes.constant(stem, value, "float32")

    nothing = number("nothing", 0.0)
    low, high = (nodes.emit(op, [data], shape, {"axes": axes}) for op in ("ReduceMin", "ReduceMax"))
    low, high = nodes.emit("Min", [low, nothing], shape), nodes.emit("Max", [high, nothing], shape)
    span = nodes.emit("Max", [nodes.emit("Sub", [high, low], shape), number("span", _SMALLEST_RANGE)], shape)
    scale = nodes.emit("Div", [span, number("steps", _STEPS)], shape)
    zero = nodes.emit("Sub", [nothing, nodes.emit("Div", [low, scale], shape)], shape)
    zero = nodes.emit("Round", [nodes.emit("Clip", [zero], shape, {"low": 0.0, "high": _STEPS})], shape)
    moved = nodes.emit("Add", [nodes.emit("RoundedQuotient", [data, scale], whole), zero], whole)
    integers, zero = (
        nodes.emit("Cast", [name], nodes.shape(name), {"to": "uint8"}, "uint8") for name in (moved, zero)
    )
    return Bytes(integers, scale, zero)


def product(nodes: Emitter, left: Bytes, right: Bytes) -> str:
    """left @ right in float32: a sum in int32, times the product of both scales.

    The scale of `right` is one number or one of each column, and so is its zero point.
    """
    build = nodes.build

    def operand(name: str) -> Operand | None:
        if not name:
            return None
        value = build.values[name]
        return Operand(name, value.shape, value.dtype, value.data)

    shape = (nodes.shape(left.integers)[0], nodes.shape(right.integers)[1])
    sums = Operand(build.fresh(f"{nodes.source.name}/sums"), shape, "int32")
    inputs = tuple(operand(name) for name in (left.integers, right.integers, left.zero, right.zero))
    matmul_integer(replace(nodes.source, inputs=inputs, outputs=(sums,)), build)
    scales = (left.scale, right.scale)
    factor = nodes.emit("Mul", scales, np.broadcast_shapes(*(nodes.shape(name) for name in scales)))
    floats = nodes.emit("Cast", [sums.name], shape, {"to": "float32"}, "float32")
    return nodes.emit("Mul", [floats, factor], shape)
