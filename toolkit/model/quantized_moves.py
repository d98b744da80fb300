"""Moves of quantized data stand between integers, not between the floats that they were made of.

    DequantizeLinear -> Transpose -> Conv -> Relu -> Transpose -> QuantizeLinear

as exporters of networks with channels last write it, becomes

    Transpose -> DequantizeLinear -> Conv -> Relu -> QuantizeLinear -> Transpose

which computes the same, and has the groups that quantized_groups.py looks for. So do operators that choose
among elements, such as Slice and MaxPool, when they follow a DequantizeLinear: they choose among integers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from numpy.typing import NDArray

from toolkit.model.body_text import attribute_of
from toolkit.model.live_nodes import live, reads

_MOVES = frozenset({"Flatten", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_CHOICES = _MOVES | {
    "MaxPool", "Slice", "Gather", "Expand", "Tile", "DepthToSpace", "SpaceToDepth", "Resize",
}  # fmt: skip
"""Operators whose results are elements of their first operand, and that ONNX has of integers, too."""
MAX_POOL_OPSET: Final = 12  # its first of integers

MOVED = "/integers"  # ends the names of what is moved in front of a DequantizeLinear

Constants = Mapping[str, NDArray[Any]]


def with_moved_integers(
    nodes: Sequence[Any], outputs: Sequence[str], constants: Constants, opset: int
) -> list[Any]:
    """The nodes (onnx.NodeProto) with moves behind QuantizeLinear and in front of DequantizeLinear."""
    uses = Counter(item for node in nodes for item in reads(node)) + Counter(outputs)
    found: list[Any] = []
    maker: dict[str, Any] = {}
    for node in nodes:
        made = [node]
        if _chooses(node, opset):
            made = _before_dequantizing(node, maker.get(node.input[0]), constants) or made
        elif _is(node, {"QuantizeLinear"}) and _by_one_number(node, constants):
            made = _behind_quantizing(node, maker, uses)
        found += made
        maker |= {item: new for new in made for item in new.output}
    return live(found, outputs)


def _is(node: Any, operators: frozenset[str] | set[str]) -> bool:
    return node.domain in ("", "ai.onnx") and node.op_type in operators


def _chooses(node: Any, opset: int) -> bool:
    """Whether a node's one result holds elements of its first operand, which may be integers."""
    if node.op_type == "MaxPool" and opset < MAX_POOL_OPSET:
        return False
    if node.op_type == "Resize":
        mode = attribute_of(node, "coordinate_transformation_mode", b"half_pixel")
        if attribute_of(node, "mode", b"nearest") != b"nearest" or mode == b"tf_crop_and_resize":
            return False
    return _is(node, _CHOICES) and sum(map(bool, node.output)) == 1


def _by_one_number(node: Any, constants: Constants) -> bool:
    scale = constants.get(node.input[1])
    return scale is not None and scale.ndim == 0


def _before_dequantizing(move: Any, source: Any | None, constants: Constants) -> list[Any]:
    """The move of the integers that `source` scales, and the scaling; nothing where those do not commute."""
    if source is None or not _is(source, {"DequantizeLinear"}) or attribute_of(source, "block_size", 0):
        return []
    axis = None
    if not _by_one_number(source, constants):
        order = list(attribute_of(move, "perm", ()))
        if move.op_type != "Transpose" or not order:
            return []
        axis = order.index(attribute_of(source, "axis", 1) % len(order))
    integers = renamed(move, source.input[0], move.output[0] + MOVED)
    return [integers, renamed(source, integers.output[0], move.output[0], axis=axis)]


def _behind_quantizing(last: Any, maker: Mapping[str, Any], uses: Counter[str]) -> list[Any]:
    """The QuantizeLinear of what was moved in front of it, then the moves of its integers."""
    moves: list[Any] = []
    name = last.input[0]
    while uses[name] == 1 and name in maker and _is(maker[name], _MOVES):
        moves.append(maker[name])
        name = maker[name].input[0]
    steps = [renamed(last, name, f"{last.output[0]}/{len(moves)}" if moves else last.output[0])]
    for place, move in reversed(list(enumerate(moves))):
        result = f"{last.output[0]}/{place}" if place else last.output[0]
        steps.append(renamed(move, steps[-1].output[0], result))
    return steps


def renamed(node: Any, data: str, result: str, *, axis: int | None = None) -> Any:
    """The node on other data, with another name for its result, and another axis if one is given."""
    import onnx

    copy = onnx.NodeProto()
    copy.CopyFrom(node)
    copy.input[0], copy.output[0] = data, result
    if axis is not None:
        kept = [item for item in node.attribute if item.name != "axis"]
        copy.ClearField("attribute")
        copy.attribute.extend([*kept, onnx.helper.make_attribute("axis", axis)])
    return copy
