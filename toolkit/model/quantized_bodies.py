"""Operators on quantized tensors as ONNX functions: integer products and sums, then a rescaling.

A quantized tensor is three operands, (integers - zero point) * scale. Convolutions
and matrix products sum in int32; the float32 of that sum is multiplied by one factor, input scale * weight
scale / output scale, rounded to even, moved by the zero point and cut to the output's range, as ONNX Runtime
does. Averages and interpolated images are such sums, too. Other operators compute in float32 between
DequantizeLinear and QuantizeLinear.

Sources: ONNX's QLinearConv and QLinearMatMul; github.com/microsoft/onnxruntime, docs/ContribOperators.md.
"""

from __future__ import annotations

import math
from typing import Any, Final

from toolkit.model.body_text import (
    WINDOW,
    Body,
    BodyRefused,
    Types,
    attribute_of,
    is_given,
    passed_on,
    rank_of,
)
from toolkit.model.microsoft import DOMAIN

_FLOAT, _UINT8, _INT32 = 1, 2, 6  # of onnx.TensorProto
MOST_ADDED: Final = 1 << 16  # bytes: float32 holds their sum exactly
_POOL = {key: kind for key, kind in WINDOW.items() if key != "group"} | {
    "ceil_mode": "int",
    "count_include_pad": "int",
}
_WINDOWS = WINDOW | {"output_padding": "ints", "output_shape": "ints"}
_RESIZE = {
    "antialias": "int",
    "axes": "ints",
    "coordinate_transformation_mode": "string",
    "cubic_coeff_a": "float",
    "exclude_outside": "int",
    "keep_aspect_ratio_policy": "string",
    "mode": "string",
}
_LSTM = {
    "activation_alpha": "floats",
    "activation_beta": "floats",
    "activations": "strings",
    "clip": "float",
    "direction": "string",
    "hidden_size": "int",
    "input_forget": "int",
    "layout": "int",  # which its importer refuses
}


def _conv(node: Any, types: Types) -> str:
    """QLinearConv(x, scale, zero, w, scale, zero, output scale, zero, bias); w may have a scale a channel.

    QLinearConvTranspose likewise.
    """
    per_channel = [-1, *(1,) * (rank_of(node, types, 0) - 2)]
    lines = [f"c = {_sums(node)} (i0, i3, i2, i5)"]
    lines.append(f"place = Constant <value_ints = {per_channel}> ()")
    lines.append("bias = Reshape (i8, place) s = Add (c, bias)" if is_given(node, 8) else "s = Identity (c)")
    lines.append(_factor("i1", "i4", "i6") + " m = Reshape (f, place)")
    return " ".join((*lines, _rescaled(node, types, "s", "m", 7)))


def _sums(node: Any) -> str:
    """The convolution of integers in a quantized one, with its attributes."""
    op = "ConvTransposeInteger" if "ConvTranspose" in node.op_type else "ConvInteger"
    return f"{op} {passed_on(node, _WINDOWS)}"


def _matmul(node: Any, types: Types) -> str:
    """QLinearMatMul(a, scale, zero, b, scale, zero, output scale, zero): of a by row, of b by column."""
    lines = ["c = MatMulInteger (i0, i3, i2, i5)"]
    rows = rank_of(node, types, 0) > 1 and rank_of(node, types, 1) == 1
    lines.append(
        "rows = Constant <value_ints = [-1, 1]> () r = Reshape (i1, rows)" if rows else "r = Identity (i1)"
    )
    lines.append(_factor("r", "i4", "i6"))
    return " ".join((*lines, _rescaled(node, types, "c", "f", 7)))


def _gemm(node: Any, types: Types) -> str:
    """QGemm(a, scale, zero, b, scale, zero, bias, output scale, zero); without output scale a float32."""
    lines = []
    for position, name in ((0, "A"), (3, "B")):
        order = [1, 0] if attribute_of(node, f"trans{name}", 0) else [0, 1]
        lines.append(f"t{position} = Transpose <perm = {order}> (i{position})")
    zero = "i5" if is_given(node, 5) else ""
    lines.append(f"c = MatMulInteger (t0, t3, i2, {zero})" if zero else "c = MatMulInteger (t0, t3, i2)")
    lines.append("s = Add (c, i6)" if is_given(node, 6) else "s = Identity (c)")
    alpha = float(attribute_of(node, "alpha", 1.0))
    lines.append(f"alpha = Constant <value = float {{{alpha!r}}}> () scaled = Mul (i1, alpha)")
    if not is_given(node, 7):
        return " ".join((*lines, f"p = Mul (scaled, i4) x = Cast <to = {_FLOAT}> (s) o0 = Mul (x, p)"))
    lines.append(_factor("scaled", "i4", "i7"))
    return " ".join((*lines, _rescaled(node, types, "s", "f", 8)))


def _matmul_to_float(node: Any, types: Types) -> str:
    """MatMulIntegerToFloat(a, b, scale of a, scale of b, zero of a, zero of b, bias)."""
    zeros = [f"i{position}" if is_given(node, position) else "" for position in (4, 5)]
    return _float_product(node, "i0", "i1", ("i2", "i3"), zeros, 6)


def _conv_to_float(node: Any, types: Types) -> str:
    """ConvIntegerToFloat(x, w, scale of x, of w, zero of x, of w, bias in floats), or a transposed one."""
    lines, operands = _with_zeros(node, types)
    lines.append(f"c = {_sums(node)} ({operands}) x = Cast <to = {_FLOAT}> (c)")
    per_channel = [-1, *(1,) * (rank_of(node, types, 0) - 2)]
    lines.append(f"place = Constant <value_ints = {per_channel}> () p = Mul (i2, i3) f = Reshape (p, place)")
    if not is_given(node, 6):
        return " ".join((*lines, "o0 = Mul (x, f)"))
    return " ".join((*lines, "y = Mul (x, f) bias = Reshape (i6, place) o0 = Add (y, bias)"))


def _gemm_to_float(node: Any, types: Types) -> str:
    """GemmIntegerToFloat(a, b, scale of a, of b, zero of a, of b, bias in floats), transA and transB."""
    lines, operands = _with_zeros(node, types)
    for position, name in enumerate("AB"):
        order = [1, 0] if attribute_of(node, f"trans{name}", 0) else [0, 1]
        lines.append(f"t{position} = Transpose <perm = {order}> (i{position})")
    products = operands.replace("i0, i1", "t0, t1")
    lines.append(f"c = MatMulInteger ({products}) x = Cast <to = {_FLOAT}> (c) p = Mul (i2, i3)")
    return " ".join((*lines, "y = Mul (x, p) o0 = Add (y, i6)" if is_given(node, 6) else "o0 = Mul (x, p)"))


def _with_zeros(node: Any, types: Types) -> tuple[list[str], str]:
    """The operands of an integer product whose zero points are the inputs 4 and 5; absent ones are 0."""
    lines, names = [], ["i0", "i1"]
    for position in (4, 5):
        unsigned = types[node.input[position - 4]].tensor_type.elem_type == _UINT8
        if not is_given(node, position):
            lines.append(f"n{position} = Constant <value = {'uint8' if unsigned else 'int8'} {{0}}> ()")
        names.append(f"i{position}" if is_given(node, position) else f"n{position}")
    return lines, ", ".join(names)


def _dynamic_matmul(node: Any, types: Types) -> str:
    """DynamicQuantizeMatMul(a in float32, b, scale, zero, bias)."""
    zeros = ["z", "i3" if is_given(node, 3) else ""]
    product = _float_product(node, "q", "i1", ("a", "i2"), zeros, 4)
    return f"q, a, z = DynamicQuantizeLinear (i0) {product}"


def _dynamic_lstm(node: Any, types: Types) -> str:
    """DynamicQuantizeLSTM, with its inputs, as the one that has an importer (import_recurrent.py)."""
    given = ", ".join(f"i{place}" if is_given(node, place) else '""' for place in range(len(node.input)))
    results = ", ".join(f"o{place}" for place in range(len(node.output)))
    return f"{results} = {node.op_type} {passed_on(node, _LSTM)} ({given})"


def _matmul_of_bits(node: Any, types: Types) -> str:
    """MatMulNBits(a, b [n, blocks, bytes], scales, zeros, -, bias): a @ ((b - zeros) * scales)'.

    Weights lie in the bits of their bytes, the first in the lowest; so do zeros, which may be floats instead.
    """
    bits, block = (int(attribute_of(node, key, default)) for key, default in (("bits", 4), ("block_size", 0)))
    rows, columns = (int(attribute_of(node, key, 0)) for key in "KN")
    if bits not in (2, 4, 8) or block < 1:
        raise BodyRefused(f"it has weights of {bits} bits in blocks of {block}; expected 2, 4 or 8 bits")
    if is_given(node, 4):
        raise BodyRefused("its weights are ordered by g_idx; expected blocks of neighbouring rows")
    blocks, zeros = -(-rows // block), types[node.input[3]] if is_given(node, 3) else None
    per_block = f"Constant <value_ints = {[columns, blocks]}>"
    lines = [_unpacked("q", "i1", bits, columns, blocks * block), f"per = {per_block} ()"]
    lines.append("s = Reshape (i2, per) scale = Transpose <perm = [1, 0]> (s)")
    scaled = f"w = DequantizeLinear <axis = 0, block_size = {block}> (q, scale, zero)"
    if zeros is None:
        middle = f"z = Constant <value = uint8 {{{1 << (bits - 1)}}}> () size = Shape (scale)"
        lines.append(f"{middle} zero = Expand (z, size) {scaled}")
    elif zeros.tensor_type.elem_type == _UINT8:
        lines.append(f"{_unpacked('zero', 'i3', bits, columns, blocks)} {scaled}")
    else:
        kind = types[node.input[2]].tensor_type.elem_type
        shapes = {"one": [blocks, 1, columns], "each": [blocks, block, columns], "all": [-1, columns]}
        lines += [f"{name} = Constant <value_ints = {shape}> ()" for name, shape in shapes.items()]
        lines.append(f"z = Reshape (i3, per) t = Transpose <perm = [1, 0]> (z) f = Cast <to = {kind}> (q)")
        lines.append("g = Reshape (f, each) zb = Reshape (t, one) sb = Reshape (scale, one)")
        lines.append("d = Sub (g, zb) m = Mul (d, sb) w = Reshape (m, all)")
    known = "w"
    if rows != blocks * block:
        known, ends = (
            "known",
            f"from = Constant <value_ints = [0]> () to = Constant <value_ints = [{rows}]> ()",
        )
        lines.append(f"{ends} known = Slice (w, from, to, from)")
    if not is_given(node, 5):
        return " ".join((*lines, f"o0 = MatMul (i0, {known})"))
    return " ".join((*lines, f"y = MatMul (i0, {known}) o0 = Add (y, i5)"))


def _unpacked(name: str, source: str, bits: int, columns: int, length: int) -> str:
    """uint8 [length, columns] of the numbers in the bytes of each column's row, the lowest bits first."""
    lines = [
        f"{name}Row = Constant <value_ints = {[columns, -1, 1]}> () {name}B = Reshape ({source}, {name}Row)"
    ]
    lines.append(f"{name}Mask = Constant <value = uint8 {{{(1 << bits) - 1}}}> ()")
    parts = range(0, 8, bits)
    for shift in parts:
        moved = f'{name}H{shift} = BitShift <direction = "RIGHT"> ({name}B, {name}S{shift})'
        lines.append(f"{name}S{shift} = Constant <value = uint8 {{{shift}}}> () {moved}")
        lines.append(f"{name}P{shift} = BitwiseAnd ({name}H{shift}, {name}Mask)")
    joined = ", ".join(f"{name}P{shift}" for shift in parts)
    lines.append(f"{name}All = Concat <axis = 2> ({joined})")
    lines.append(
        f"{name}Flat = Constant <value_ints = {[columns, -1]}> () {name}R = Reshape ({name}All, {name}Flat)"
    )
    for end, value in (("From", 0), ("To", length), ("Axis", 1)):
        lines.append(f"{name}{end} = Constant <value_ints = [{value}]> ()")
    lines.append(f"{name}K = Slice ({name}R, {name}From, {name}To, {name}Axis)")
    return " ".join((*lines, f"{name} = Transpose <perm = [1, 0]> ({name}K)"))


def _float_product(
    node: Any, left: str, right: str, scales: tuple[str, str], zeros: list[str], bias: int
) -> str:
    """A matrix product of integers as float32, and a bias if that input is there."""
    operands = ", ".join((left, right, *zeros)).rstrip(", ")
    if not zeros[0] and zeros[1]:  # the text format has no absent operand between others
        operands = f"{left}, {right}, none, {zeros[1]}"
    lines = ["none = Constant <value = uint8 {0}> ()"] if "none" in operands else []
    lines.append(f"c = MatMulInteger ({operands}) x = Cast <to = {_FLOAT}> (c)")
    result = "o0" if not is_given(node, bias) else "y"
    lines.append(f"p = Mul ({scales[0]}, {scales[1]}) {result} = Mul (x, p)")
    return " ".join((*lines, f"o0 = Add (y, i{bias})" if result == "y" else ""))


def _factor(left: str, right: str, output: str) -> str:
    """f = left * right / output, of scales, in float32."""
    casts = " ".join(
        f"f{place} = Cast <to = {_FLOAT}> ({name})" for place, name in enumerate((left, right, output))
    )
    return f"{casts} f01 = Mul (f0, f1) f = Div (f01, f2)"


def _rescaled(node: Any, types: Types, value: str, factor: str, zero: int) -> str:
    """o0 from an int32 sum: times a factor, rounded, plus the zero point, in the zero point's dtype."""
    return f"x = Cast <to = {_FLOAT}> ({value}) y = Mul (x, {factor}) {_rounded(node, types, zero)}"


def _rounded(node: Any, types: Types, zero: int) -> str:
    """o0 from a float y."""
    lines = "rounded = Round (y)"
    if not is_given(node, zero):
        return f"{lines} o0 = Cast <to = 2> (rounded)"
    dtype = types[node.input[zero]].tensor_type.elem_type
    return f"{lines} z = Cast <to = {_FLOAT}> (i{zero}) t = Add (rounded, z) o0 = Cast <to = {dtype}> (t)"


def _in_float(op: str, operands: int = 1, kinds: dict[str, str] | None = None) -> Body:
    """The operator in float32 of dequantized operands, each with scale and zero point; quantized again."""

    def body(node: Any, types: Types) -> str | None:
        if attribute_of(node, "channels_last", 0):
            return None
        lines = [_dequantized(node, 3 * place, f"x{place}") for place in range(operands)]
        names = ", ".join(f"x{place}" for place in range(operands))
        lines.append(f"y = {op} {passed_on(node, kinds or {})} ({names})")
        return " ".join((*lines, _quantized(node, 3 * operands)))

    return body


def _averaged(op: str) -> Body:
    """A pool (x, scale, zero, output scale, zero) as a convolution by ones: integer sums, then a quotient.

    The quotient is exact midway between two steps where one scale is the other, or a power of 2 times it:
    float32 holds the scaled sum and the count. In float32 from the start where a window may reach past the
    padding, or its sum past what float32 holds exactly.
    """
    in_float = _in_float(op, kinds=_POOL)

    def body(node: Any, types: Types) -> str | None:
        channels, *image = (dim.dim_value for dim in types[node.input[0]].tensor_type.shape.dim[1:])
        window = attribute_of(node, "kernel_shape", image)
        count = math.prod(window)
        by_rule = attribute_of(node, "auto_pad", b"NOTSET") != b"NOTSET" or attribute_of(node, "ceil_mode", 0)
        channels_last = attribute_of(node, "channels_last", 0)
        if channels_last or by_rule or not channels * count or count > MOST_ADDED:
            return in_float(node, types)
        settings = passed_on(node, {key: WINDOW[key] for key in ("dilations", "pads", "strides")})[1:-1]
        lines = ["one = Constant <value = int8 {1}> ()", _expanded("ones", [channels, 1, *window])]
        grouped = f"<{', '.join(filter(None, (f'group = {channels}', settings)))}>"
        lines.append(f"c = ConvInteger {grouped} (i0, ones{', i2' if is_given(node, 2) else ''})")
        if any(attribute_of(node, "pads", [])) and not attribute_of(node, "count_include_pad", 0):
            lines += [_expanded("inside", [1, 1, *image]), _expanded("window", [1, 1, *window])]
            lines.append(f"n = ConvInteger {f'<{settings}>'} (inside, window)")
        else:
            lines.append(f"n = Constant <value = int32 {{{count}}}> ()")
        lines.append(f"count = Cast <to = {_FLOAT}> (n) f0 = Cast <to = {_FLOAT}> (i1)")
        lines.append(f"f1 = Cast <to = {_FLOAT}> (i3) f = Div (f0, f1) x = Cast <to = {_FLOAT}> (c)")
        lines.append("scaled = Mul (x, f) y = Div (scaled, count)")
        return " ".join((*lines, _rounded(node, types, 4)))

    return body


def interpolates(node: Any) -> bool:
    """Whether a Resize weighs elements, of opset 11 or later, all of them inside of the image."""
    mode = attribute_of(node, "coordinate_transformation_mode", b"half_pixel")
    return (
        attribute_of(node, "mode", b"nearest") != b"nearest"
        and mode != b"tf_crop_and_resize"
        and len(node.input) > 2
    )


def _resized(node: Any, types: Types) -> str:
    """A Resize (x, scale, zero, output scale, zero, region, scales, sizes): sums of weighted integers.

    They are exact where weights are multiples of a power of 2: halves between steps are rounded to even.
    """
    moved = f"z0 = Cast <to = {_INT32}> (i2) m = Sub (n, z0)" if is_given(node, 2) else "m = Identity (n)"
    lines = [f"n = Cast <to = {_INT32}> (i0) {moved} b = Cast <to = {_FLOAT}> (m)"]
    how = [f"i{place}" if is_given(node, place) else '""' for place in range(5, len(node.input))]
    lines.append(f"r = Resize {passed_on(node, _RESIZE)} (b, {', '.join(how)})")
    lines.append(f"f0 = Cast <to = {_FLOAT}> (i1) f1 = Cast <to = {_FLOAT}> (i3) f = Div (f0, f1)")
    return " ".join((*lines, "y = Mul (r, f)", _rounded(node, types, 4)))


def _expanded(name: str, shape: list[int]) -> str:
    """A tensor of ones."""
    return f"{name}Size = Constant <value_ints = {shape}> () {name} = Expand (one, {name}Size)"


def _concat(node: Any, types: Types) -> str:
    """QLinearConcat(output scale, zero, then each tensor with scale and zero)."""
    starts = range(2, len(node.input), 3)
    lines = [_dequantized(node, start, f"x{start}") for start in starts]
    names = ", ".join(f"x{start}" for start in starts)
    lines.append(f"y = Concat <axis : int = @axis> ({names})")
    return " ".join((*lines, _quantized(node, 0)))


def _dequantized(node: Any, position: int, name: str) -> str:
    zero = f", i{position + 2}" if is_given(node, position + 2) else ""
    return f"{name} = DequantizeLinear (i{position}, i{position + 1}{zero})"


def _quantized(node: Any, position: int) -> str:
    zero = f", i{position + 1}" if is_given(node, position + 1) else ""
    return f"o0 = QuantizeLinear (y, i{position}{zero})"


OWN = "tune-for-board"
TO_FLOAT = {
    "Conv": ("ConvIntegerToFloat", OWN),
    "ConvTranspose": ("ConvTransposeIntegerToFloat", OWN),
    "Gemm": ("GemmIntegerToFloat", OWN),
    "MatMul": ("MatMulIntegerToFloat", DOMAIN),
}
"""What a product of dequantized operands becomes: the operator and its domain, of which OWN is in no file."""

BODIES: dict[str, Body] = {
    "QLinearConv": _conv,
    "QLinearMatMul": _matmul,
    f"{OWN}.ConvIntegerToFloat": _conv_to_float,
    f"{OWN}.ConvTransposeIntegerToFloat": _conv_to_float,
    f"{OWN}.QLinearConvTranspose": _conv,
    f"{OWN}.GemmIntegerToFloat": _gemm_to_float,
    f"{OWN}.QLinearResize": _resized,
} | {
    f"{DOMAIN}.{op}": body
    for op, body in {
        "QGemm": _gemm,
        "MatMulIntegerToFloat": _matmul_to_float,
        "MatMulNBits": _matmul_of_bits,
        "DynamicQuantizeMatMul": _dynamic_matmul,
        "DynamicQuantizeLSTM": _dynamic_lstm,
        "QLinearAdd": _in_float("Add", 2),
        "QLinearMul": _in_float("Mul", 2),
        "QLinearSigmoid": _in_float("Sigmoid"),
        "QLinearLeakyRelu": _in_float("LeakyRelu", kinds={"alpha": "float"}),
        "QLinearSoftmax": _in_float("Softmax", kinds={"axis": "int"}),
        "QLinearAveragePool": _averaged("AveragePool"),
        "QLinearGlobalAveragePool": _averaged("GlobalAveragePool"),
        "QLinearConcat": _concat,
    }.items()
}
