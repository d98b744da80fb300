"""Importers of quantization: between floats and integers with a scale and a zero point; integer products."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from toolkit.model.body_text import WINDOW
from toolkit.model.graph import GraphBuilder
from toolkit.model.import_arithmetic import cast_to, matmul
from toolkit.model.import_transposed import TRANSPOSED, conv_transpose, transposed_shape
from toolkit.model.import_windows import conv
from toolkit.model.source import INTEGERS, NUMBERS, Importer, Operand, Source

_LARGEST_SUM = 1 << 24  # float32 holds every integer up to here


def dequantize(source: Source, build: GraphBuilder) -> None:
    """DequantizeLinear: (x - zero point) * scale. Zero points of bytes are taken off integers: no pass scales
    them, which would round twice.
    """
    data, scale, zero = source.input(0), source.input(1), source.optional(2)
    exact = data.dtype in ("int8", "uint8") and data.data is None
    if zero is None:
        name = cast_to(source, build, data, "float32")
    else:
        dtype = "int32" if exact else "float32"
        operands = [cast_to(source, build, data, dtype), _aligned(source, build, zero, dtype)]
        name = source.emit(build, "Sub", operands, shape=data.shape, dtype=dtype)
        name = cast_to(source, build, Operand(name, data.shape, dtype), "float32")
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


def conv_integer(source: Source, build: GraphBuilder) -> None:
    """ConvInteger(x, w, zero point of x, of each output channel of w): a convolution with sums in int32."""
    data, weight = source.input(0), source.input(1)
    weight = _centered(source, build, weight, 3, (1,) * (weight.rank - 1))
    zero = _known_zero(source, weight)
    if zero is None:
        data, zero = _centered(source, build, data, 2, ()), 0
    conv(replace(source, inputs=(data, weight)), build, zero)


def conv_transpose_integer(source: Source, build: GraphBuilder) -> None:
    """ConvTransposeInteger(x, w, zero point of x, of each output channel of w): sums in int32."""
    data, weight = source.input(0), source.input(1)
    weight = _centered(source, build, weight, 3, (1,) * (weight.rank - 2))
    zero = _known_zero(source, weight)
    if zero is None:
        data, zero = _centered(source, build, data, 2, ()), 0
    conv_transpose(replace(source, inputs=(data, weight)), build, zero)


def matmul_integer(source: Source, build: GraphBuilder) -> None:
    """MatMulInteger(a, b, zero point of each row of a, of each column of b): a product with sums in int32."""
    zeros = _zeros_of_bytes(source)
    if zeros is not None:
        matmul(replace(source, inputs=source.inputs[:2]), build, {"zeros": zeros})
        return
    if _sums_fit_floats(source):
        _product_of_floats(source, build)
        return
    left, right = source.input(0), _centered(source, build, source.input(1), 3, ())
    zero = _known_zero(source, right)
    if not zero:
        left = left if zero == 0 else _centered(source, build, left, 2, (1,) if left.rank > 1 else ())
        matmul(replace(source, inputs=(left, right)), build)
        return
    assert right.data is not None
    output = replace(source.output, name=build.fresh(f"{source.output.name}/products"))
    matmul(replace(source, inputs=(left, right), outputs=(output,)), build)
    sums = zero * right.data.sum(axis=-2 if right.rank > 1 else None, keepdims=right.rank > 2, dtype=np.int32)
    source.emit(build, "Sub", [output.name, build.constant(f"{right.name}/sums", np.asarray(sums, np.int32))])


def _zeros_of_bytes(source: Source) -> tuple[int, int] | None:
    """The zero points of two computed 8-bit operands, where each is one known number."""
    zeros = []
    for place in (0, 1):
        operand, zero = source.input(place), source.optional(place + 2)
        if operand.data is not None or operand.dtype not in ("int8", "uint8"):
            return None
        if zero is not None and (zero.data is None or zero.data.size != 1):
            return None
        zeros.append(0 if zero is None or zero.data is None else int(zero.data.ravel()[0]))
    return zeros[0], zeros[1]


def _sums_fit_floats(source: Source) -> bool:
    """Whether float32 holds every sum of the products of two computed 8-bit operands."""
    left, right = source.input(0), source.input(1)
    if right.data is not None or {left.dtype, right.dtype} - {"int8", "uint8"}:
        return False
    largest = _largest(left, source.optional(2)) * _largest(right, source.optional(3))
    return left.shape[-1] * largest <= _LARGEST_SUM


def _largest(operand: Operand, zero: Operand | None) -> int:
    """The largest magnitude of an 8-bit operand without its zero point."""
    limits = np.iinfo(operand.dtype)
    if zero is not None and zero.data is None:
        return limits.max - limits.min
    zeros = [0] if zero is None or zero.data is None else [int(item) for item in zero.data.ravel()]
    return max(max(abs(limits.min - item), abs(limits.max - item)) for item in zeros)


def _product_of_floats(source: Source, build: GraphBuilder) -> None:
    """A product of computed integers in float32, where it is exact: no target multiplies wide ones faster."""
    behind = (1,) if source.input(0).rank > 1 else ()
    operands = []
    for place, rows in enumerate((behind, ())):
        centered = _centered(source, build, source.input(place), place + 2, rows, "float32")
        name = cast_to(source, build, centered, "float32")
        operands.append(Operand(name, centered.shape, "float32"))
    output = replace(source.output, name=build.fresh(f"{source.output.name}/floats"), dtype="float32")
    matmul(replace(source, inputs=tuple(operands), outputs=(output,)), build)
    source.emit(build, "Cast", [output.name], {"to": source.output.dtype})


def _known_zero(source: Source, weight: Operand) -> int | None:
    """The data's zero point, if its products with the weights are known, too, and the weights have 8 bits."""
    zero = source.optional(2)
    if weight.data is None or weight.dtype == "int16":
        return None
    if zero is None:
        return 0
    return None if zero.data is None or zero.data.size != 1 else int(zero.data.ravel()[0])


def _centered(
    source: Source,
    build: GraphBuilder,
    operand: Operand,
    position: int,
    behind: tuple[int, ...],
    dtype: str = "int16",
) -> Operand:
    """An 8-bit operand without its zero point, in a wider dtype, or in int8 where that holds a constant.

    A zero point of several numbers has one for each place of a dimension that dimensions `behind` follow.
    """
    zero = source.optional(position)
    if zero is None or (zero.data is not None and not zero.data.any()):
        return operand
    shape = (zero.shape[0], *behind) if zero.rank == 1 else zero.shape
    if operand.data is not None and zero.data is not None:
        data = operand.data.astype(np.int16) - zero.data.astype(np.int16).reshape(shape)
        if data.size and -128 <= data.min() and data.max() <= 127:
            data = data.astype(np.int8)
        name = build.constant(f"{operand.name}/centered", data)
        return Operand(name, operand.shape, str(data.dtype), data)
    wide = cast_to(source, build, operand, dtype)
    subtracted = cast_to(source, build, zero, dtype)
    if shape != zero.shape:
        subtracted = source.emit(build, "Reshape", [subtracted], shape=shape, dtype=dtype)
    name = source.emit(build, "Sub", [wide, subtracted], shape=operand.shape, dtype=dtype)
    return Operand(name, operand.shape, dtype)


def _aligned(source: Source, build: GraphBuilder, operand: Operand, dtype: str = "float32") -> str:
    """A scale or zero point: of the whole tensor, of each place on the axis, or of each block."""
    data, rank = source.input(0), source.input(0).rank
    name = cast_to(source, build, operand, dtype)
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
        raise source.invalid(
            f"{operand.name!r} has shape {list(operand.shape)}, expected {[data.shape[axis]]}"
        )
    shape = (operand.shape[0], *(1,) * (rank - axis - 1))
    return source.emit(build, "Reshape", [name], shape=shape, dtype=dtype)


_SETTINGS = {"axis", "block_size", "output_dtype", "precision", "saturate"}

IMPORTERS: dict[str, Importer] = {
    "QuantizeLinear": Importer(quantize, _SETTINGS, NUMBERS),
    "DequantizeLinear": Importer(dequantize, _SETTINGS, NUMBERS),
    "ConvInteger": Importer(conv_integer, set(WINDOW), INTEGERS),
    "ConvTransposeInteger": Importer(  # of ours: quantized_bodies.py
        conv_transpose_integer, TRANSPOSED, INTEGERS, shape=transposed_shape, like="ConvTranspose"
    ),
    "MatMulInteger": Importer(matmul_integer, dtypes=INTEGERS),
}
