"""Operators of the domain com.microsoft that exporters and ONNX Runtime's optimizer write, as ONNX functions.

Source: github.com/microsoft/onnxruntime, docs/ContribOperators.md. `BODIES` has the text of each body by
operator; function_bodies.py puts inputs i0, i1 ... and outputs o0, o1 ... around it.
"""

from __future__ import annotations

from typing import Any

from toolkit.model.body_text import WINDOW, Body, Types, attribute_of, is_given, passed_on, rank_of

DOMAIN = "com.microsoft"


def _gelu(node: Any, types: Types) -> str:
    """Gelu, BiasGelu and FastGelu, the one with a tangent: of the sum of both inputs."""
    kind = "tanh" if node.op_type == "FastGelu" else "none"
    total = "s = Add (i0, i1)" if is_given(node, 1) else "s = Identity (i0)"
    return f'{total} o0 = Gelu <approximate = "{kind}"> (s)'


def _quick_gelu(node: Any, types: Types) -> str:
    alpha = float(attribute_of(node, "alpha", 1.702))
    return f"a = Constant <value = float {{{alpha!r}}}> () p = Mul (i0, a) g = Sigmoid (p) o0 = Mul (i0, g)"


def _fused_conv(node: Any, types: Types) -> str:
    """A convolution, a sum with the fourth input, an activation."""
    settings = passed_on(node, WINDOW)
    operands = "i0, i1, i2" if is_given(node, 2) else "i0, i1"
    lines = [f"c = Conv {settings} ({operands})"]
    lines.append("s = Add (c, i3)" if is_given(node, 3) else "s = Identity (c)")
    activation = attribute_of(node, "activation", b"").decode()
    parameters = [float(value) for value in attribute_of(node, "activation_params", [])]
    names = {"LeakyRelu": ("alpha",), "HardSigmoid": ("alpha", "beta")}.get(activation, ())
    if activation == "Clip":
        low, high = parameters
        lines.append(
            f"l = Constant <value = float {{{low!r}}}> () h = Constant <value = float {{{high!r}}}> ()"
        )
        lines.append("o0 = Clip (s, l, h)")
    elif names:
        text = ", ".join(f"{name} = {value!r}" for name, value in zip(names, parameters, strict=False))
        lines.append(f"o0 = {activation} <{text}> (s)")
    else:
        lines.append(f"o0 = {activation or 'Identity'} (s)")
    return " ".join(lines)


def _fused_matmul(node: Any, types: Types) -> str:
    """alpha * A' @ B', where ' transposes the last two dimensions, or moves the first one behind them."""
    lines = []
    for position, name in enumerate("AB"):
        order = list(range(rank_of(node, types, position)))
        if len(order) > 1 and attribute_of(node, f"transBatch{name}", 0):
            order = [*order[1:-1], 0, order[-1]]
        if len(order) > 1 and attribute_of(node, f"trans{name}", 0):
            order[-2:] = order[-1], order[-2]
        lines.append(f"t{position} = Transpose <perm = {order}> (i{position})")
    alpha = float(attribute_of(node, "alpha", 1.0))
    lines.append(f"p = MatMul (t0, t1) a = Constant <value = float {{{alpha!r}}}> () o0 = Mul (p, a)")
    return " ".join(lines)


def _skip_layer_normalization(node: Any, types: Types) -> str:
    """LayerNormalization of input + skip + bias, and that sum as the fourth output."""
    lines = ["t = Add (i0, i1)", "s = Add (t, i4)" if is_given(node, 4) else "s = Identity (t)"]
    lines.append(_layer_normalization(node, "s", "i2", "i3" if is_given(node, 3) else ""))
    return " ".join((*lines, _identity(node, "s", 3)))


def _embed_layer_normalization(node: Any, types: Types) -> str:
    """LayerNormalization of the sum of the embeddings of words, positions and segments."""
    lines = ["e = Gather (i2, i0)"]
    if is_given(node, 8):
        lines.append("p = Gather (i3, i8)")
    else:
        lines.append(
            "z = Constant <value = int64[1] {0}> () one = Constant <value = int64[1] {1}> () "
            "two = Constant <value = int64[1] {2}> () size = Shape (i0) n = Slice (size, one, two) "
            "p = Slice (i3, z, n, z)"
        )
    lines.append("a = Add (e, p)")
    segments = is_given(node, 1) and is_given(node, 4)
    lines.append("g = Gather (i4, i1) s = Add (a, g)" if segments else "s = Identity (a)")
    lines.append(_layer_normalization(node, "s", "i5", "i6"))
    if len(node.output) > 1 and node.output[1]:
        mask = "i7" if is_given(node, 7) else "none"
        if mask == "none":
            lines.append("t = Cast <to = 6> (i0) none = Sub (t, t)")
        axis = "axis = Constant <value = int64[1] {1}> ()"
        lines.append(f"{axis} o1 = ReduceSum <keepdims = 0> ({mask}, axis)")
    return " ".join((*lines, _identity(node, "s", 2)))


def _layer_normalization(node: Any, data: str, scale: str, shift: str) -> str:
    epsilon = float(attribute_of(node, "epsilon", 1e-12))
    operands = f"{data}, {scale}, {shift}" if shift else f"{data}, {scale}"
    return f"o0 = LayerNormalization <epsilon = {epsilon:.12e}> ({operands})"


def _identity(node: Any, value: str, output: int) -> str:
    read = len(node.output) > output and node.output[output]
    return f"o{output} = Identity ({value})" if read else ""


BODIES: dict[str, Body] = {
    f"{DOMAIN}.{op}": body
    for op, body in {
        "Gelu": _gelu,
        "BiasGelu": _gelu,
        "FastGelu": _gelu,
        "QuickGelu": _quick_gelu,
        "FusedConv": _fused_conv,
        "FusedMatMul": _fused_matmul,
        "SkipLayerNormalization": _skip_layer_normalization,
        "EmbedLayerNormalization": _embed_layer_normalization,
    }.items()
}
