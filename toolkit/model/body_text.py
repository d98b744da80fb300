"""Definitions of operators in ONNX's text format, from what is known of a node."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

OPSET = 21  # of the operators in the bodies: the first in which DequantizeLinear has blocks

Types = Mapping[str, Any]
"""The onnx.TypeProto of each value that a node reads."""

Body = Callable[[Any, Types], str | None]
"""The nodes between inputs i0, i1 ... and outputs o0, o1 ... of an onnx.NodeProto; None: not of this one."""


class BodyRefused(Exception):
    """A node of an operator that is known, but not as this one is; the text says what of it."""


WINDOW: Final = {
    "auto_pad": "string",
    "dilations": "ints",
    "group": "int",
    "kernel_shape": "ints",
    "pads": "ints",
    "strides": "ints",
}
"""The attributes of a convolution and their kinds."""


def function_of(node: Any, types: Types, body: Body) -> Any | None:
    """The onnx.FunctionProto that a node stands for; None: for none."""
    import onnx

    text = body(node, types)
    if text is None:
        return None
    formal = ", ".join(f"i{position}" for position in range(len(node.input)))
    results = ", ".join(f"o{position}" for position in range(len(node.output)))
    header = f'<domain: "defined", opset_import: ["" : {OPSET}]>'
    return onnx.parser.parse_function(f"{header} {node.op_type} ({formal}) => ({results}) {{ {text} }}")


def is_given(node: Any, position: int) -> bool:
    """Whether an input is there."""
    return position < len(node.input) and bool(node.input[position])


def attribute_of(node: Any, key: str, default: Any) -> Any:
    """The value of an attribute."""
    import onnx

    found = [onnx.helper.get_attribute_value(item) for item in node.attribute if item.name == key]
    return found[0] if found else default


def rank_of(node: Any, types: Types, position: int) -> int:
    """The number of dimensions of an input."""
    return len(types[node.input[position]].tensor_type.shape.dim)


def passed_on(node: Any, kinds: Mapping[str, str]) -> str:
    """The attributes of these names and kinds that the node has, as those of a node of the body."""
    present = [item.name for item in node.attribute if item.name in kinds]
    return f"<{', '.join(f'{key} : {kinds[key]} = @{key}' for key in present)}>" if present else ""
