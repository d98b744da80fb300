"""Operators of the domain com.microsoft that exporters and ONNX Runtime's optimizer write, as ONNX functions.

Source: github.com/microsoft/onnxruntime, docs/ContribOperators.md. Start at `function`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

DOMAIN = "com.microsoft"
OPSET = 20  # of the operators in the bodies: the first that has Gelu

_Types = Mapping[str, Any]


def function(node: Any, types: _Types) -> Any | None:
    """The onnx.FunctionProto that a node of this domain stands for; None for an operator not known here.

    `types` has the onnx.TypeProto of each of the node's inputs.
    """
    import onnx

    if node.op_type not in _BODIES:
        return None
    given = [bool(item) for item in node.input]
    formal = [f"i{position}" for position in range(len(given))]
    results = [f"o{position}" for position in range(len(node.output))]
    header = f'<domain: "{DOMAIN}", opset_import: ["" : {OPSET}]>'
    body = _BODIES[node.op_type](node, types)
    signature = f"{node.op_type} ({', '.join(formal)}) => ({', '.join(results)})"
    return onnx.parser.parse_function(f"{header} {signature} {{ {body} }}")


def _given(node: Any, position: int) -> bool:
    return position < len(node.input) and bool(node.input[position])


def _attribute(node: Any, key: str, default: Any) -> Any:
    import onnx

    found = [onnx.helper.get_attribute_value(item) for item in node.attribute if item.name == key]
    return found[0] if found else default


def _rank(node: Any, types: _Types, position: int) -> int:
    return len(types[node.input[position]].tensor_type.shape.dim)


def _gelu(node: Any, types: _Types) -> str:
    """Gelu, BiasGelu and FastGelu, the one with a tangent: of the sum of both inputs."""
    kind = "tanh" if node.op_type == "FastGelu" else "none"
    total = "s = Add (i0, i1)" if _given(node, 1) else "s = Identity (i0)"
    return f'{total} o0 = Gelu <approximate = "{kind}"> (s)'


def _quick_gelu(node: Any, types: _Types) -> str:
    alpha = float(_attribute(node, "alpha", 1.702))
    return f"a = Constant <value = float {{{alpha!r}}}> () p = Mul (i0, a) g = Sigmoid (p) o0 = Mul (i0, g)"


def _fused_conv(node: Any, types: _Types) -> str:
    """A convolution, a sum with the fourth input, an activation."""
    keys = {"auto_pad", "dilations", "group", "kernel_shape", "pads", "strides"}
    present = [item.name for item in node.attribute if item.name in keys]
    settings = ", ".join(f"{key} : {_KINDS.get(key, 'ints')} = @{key}" for key in present)
    operands = "i0, i1, i2" if _given(node, 2) else "i0, i1"
    lines = [f"c = Conv <{settings}> ({operands})" if settings else f"c = Conv ({operands})"]
    lines.append("s = Add (c, i3)" if _given(node, 3) else "s = Identity (c)")
    activation = _attribute(node, "activation", b"").decode()
    parameters = [float(value) for value in _attribute(node, "activation_params", [])]
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


def _fused_matmul(node: Any, types: _Types) -> str:
    """alpha * A' @ B', where ' transposes the last two dimensions, or moves the first one behind them."""
    lines = []
    for position, name in enumerate("AB"):
        order = list(range(_rank(node, types, position)))
        if len(order) > 1 and _attribute(node, f"transBatch{name}", 0):
            order = [*order[1:-1], 0, order[-1]]
        if len(order) > 1 and _attribute(node, f"trans{name}", 0):
            order[-2:] = order[-1], order[-2]
        lines.append(f"t{position} = Transpose <perm = {order}> (i{position})")
    alpha = float(_attribute(node, "alpha", 1.0))
    lines.append(f"p = MatMul (t0, t1) a = Constant <value = float {{{alpha!r}}}> () o0 = Mul (p, a)")
    return " ".join(lines)


def _skip_layer_normalization(node: Any, types: _Types) -> str:
    """LayerNormalization of input + skip + bias, and that sum as the fourth output."""
    lines = ["t = Add (i0, i1)", "s = Add (t, i4)" if _given(node, 4) else "s = Identity (t)"]
    lines.append(_layer_normalization(node, "s", "i2", "i3" if _given(node, 3) else ""))
    return " ".join((*lines, _identity(node, "s", 3)))


def _embed_layer_normalization(node: Any, types: _Types) -> str:
    """LayerNormalization of the sum of the embeddings of words, positions and segments."""
    lines = ["e = Gather (i2, i0)"]
    if _given(node, 8):
        lines.append("p = Gather (i3, i8)")
    else:
        lines.append(
            "z = Constant <value = int64[1] {0}> () one = Constant <value = int64[1] {1}> () "
            "two = Constant <value = int64[1] {2}> () size = Shape (i0) n = Slice (size, one, two) "
            "p = Slice (i3, z, n, z)"
        )
    lines.append("a = Add (e, p)")
    segments = _given(node, 1) and _given(node, 4)
    lines.append("g = Gather (i4, i1) s = Add (a, g)" if segments else "s = Identity (a)")
    lines.append(_layer_normalization(node, "s", "i5", "i6"))
    if len(node.output) > 1 and node.output[1]:
        mask = "i7" if _given(node, 7) else "none"
        if mask == "none":
            lines.append("t = Cast <to = 6> (i0) none = Sub (t, t)")
        axis = "axis = Constant <value = int64[1] {1}> ()"
        lines.append(f"{axis} o1 = ReduceSum <keepdims = 0> ({mask}, axis)")
    return " ".join((*lines, _identity(node, "s", 2)))


def _layer_normalization(node: Any, data: str, scale: str, shift: str) -> str:
    epsilon = float(_attribute(node, "epsilon", 1e-12))
    operands = f"{data}, {scale}, {shift}" if shift else f"{data}, {scale}"
    return f"o0 = LayerNormalization <epsilon = {epsilon:.12e}> ({operands})"


def _identity(node: Any, value: str, output: int) -> str:
    read = len(node.output) > output and node.output[output]
    return f"o{output} = Identity ({value})" if read else ""


_KINDS = {"auto_pad": "string", "group": "int"}
_BODIES: dict[str, Callable[[Any, _Types], str]] = {
    "Gelu": _gelu,
    "BiasGelu": _gelu,
    "FastGelu": _gelu,
    "QuickGelu": _quick_gelu,
    "FusedConv": _fused_conv,
    "FusedMatMul": _fused_matmul,
    "SkipLayerNormalization": _skip_layer_normalization,
    "EmbedLayerNormalization": _embed_layer_normalization,
}
OPERATORS = frozenset(_BODIES)
