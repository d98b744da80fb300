"""If and Scan: the walk over the nodes of their graphs, and the choices and loops they become.

The graphs may read any value from around them: constants are constants there too, other values become inputs
of the graph. Their sizes must be the same in every run of a loop, and in both branches.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any, Final

import numpy as np

from toolkit.errors import ModelError
from toolkit.model.function_bodies import OnnxNode
from toolkit.model.graph import Choose, Repeat, Value
from toolkit.model.import_loop import loop
from toolkit.model.walk import (
    Inner,
    Walk,
    as_slice,
    carried_values,
    check_same,
    inlined,
    moved,
    output,
    visit,
    walked,
)


def choose(walk: Walk, node: OnnxNode) -> None:
    """If: with a known condition the nodes of one branch, else a choice."""
    graphs = {item.name: item.g for item in node.proto.attribute}
    condition = walk.builder.values[node.proto.input[0]]
    if condition.data is not None:
        _inline(walk, node, graphs["then_branch" if condition.data.all() else "else_branch"])
        return
    branches = [_branch(walk, node, graphs[name], name) for name in ("then_branch", "else_branch")]
    captured = tuple(dict.fromkeys((*branches[0].captured, *branches[1].captured)))
    finished = []
    for branch in branches:
        for name in captured:
            branch.walk.builder.add(walk.builder.values[name])
        finished.append(branch.finished(captured))
    values = [
        output(walk, node, name, branches[0].value(own))
        for name, own in zip_longest(node.proto.output, branches[0].results, fillvalue="")
    ]
    for value, own in zip(values, branches[1].results, strict=True):
        check_same(walk, node, value, branches[1].value(own))
    walk.builder.control(Choose(*finished), [condition.name, *captured], values, node.name)


def _branch(walk: Walk, node: OnnxNode, graph: Any, name: str) -> Inner:
    """A branch of an If whose condition is not known.

    Raises:
        NodeRefused: it cannot be computed with these shapes; that the condition is known would help.
    """
    try:
        return walked(walk, node, graph, (), {})
    except ModelError as error:
        deciding = sorted(_inputs_of(walk, node.proto.input[0]))
        if not deciding:
            raise
        example = " ".join(f"--constant '{item}=NUMBER'" for item in deciding)
        raise walk.refuse(
            node,
            f"its {name} cannot be computed: {str(error).removeprefix(f'model {walk.path}: ')}",
            f"where one branch alone ever runs, give what decides it, {example}",
        ) from error


def _inputs_of(walk: Walk, name: str) -> set[str]:
    """The model's inputs that a value is computed from."""
    makers = {made: item for item in walk.builder.nodes for made in item.outputs}
    found, pending = set[str](), [name]
    while pending:
        item = pending.pop()
        found |= {item}.intersection(walk.inputs)
        pending += makers.pop(item).inputs if item in makers else ()
    return found


def _inline(walk: Walk, node: OnnxNode, graph: Any) -> None:
    """The nodes of an inner graph without inputs in the place of the node."""
    import onnx

    results = inlined(walk, node, graph, {}, node.scope)
    for item, name in zip(results, node.proto.output, strict=True):
        if name:
            visit(walk, node, onnx.helper.make_node("Identity", [item], [name]))


def scan(walk: Walk, node: OnnxNode) -> None:
    """Scan: slices of inputs along an axis, and stacks of results along one."""
    if node.opset < 9:
        _scan_batches(walk, node)
        return
    _scan(walk, node)


def _scan_batches(walk: Walk, node: OnnxNode) -> None:
    """A Scan of opset 8, which is one for each element of a batch.

    Raises:
        NodeRefused: its sequences differ in length.
    """
    import onnx

    lengths, *names = node.proto.input
    settings = {item.name: onnx.helper.get_attribute_value(item) for item in node.proto.attribute}
    batch, extent = walk.builder.values[names[-1]].shape[:2]
    known = walk.builder.values[lengths].data if lengths else np.array(extent)
    if known is None or (known != extent).any():
        raise walk.refuse(
            node, f"its sequences are not all of {extent} slices", "export the model with a newer opset"
        )
    rest = {"num_scan_inputs": settings["num_scan_inputs"], "body": settings["body"]}
    if "directions" in settings:
        rest["scan_input_directions"] = settings["directions"]
    parts: list[list[str]] = [[] for _ in node.proto.output]
    for row in range(batch):
        scope = f"{node.scope}/{row}"
        inputs = [f"{scope}/in{place}" for place in range(len(names))]
        outputs = [f"{scope}/out{place}" for place in range(len(parts))]
        walk.know(f"{scope}/row", np.array(row))
        walk.read.update(inputs, outputs)
        for name, own in zip(names, inputs, strict=True):
            visit(walk, node, onnx.helper.make_node("Gather", [name, f"{scope}/row"], [own], axis=0))
        one = onnx.helper.make_node("Scan", inputs, outputs, **rest)
        _scan(walk, OnnxNode(one, node.name, node.opsets))
        for part, name in zip(parts, outputs, strict=True):
            part.append(as_slice(walk, node, name))
    for part, name in zip(parts, node.proto.output, strict=True):
        if name:
            visit(walk, node, onnx.helper.make_node("Concat", part, [name], axis=0))


def _scan(walk: Walk, node: OnnxNode) -> None:
    """A Scan of opset 9 or later."""
    import onnx

    settings = {item.name: onnx.helper.get_attribute_value(item) for item in node.proto.attribute}
    graph, slices = settings["body"], int(settings["num_scan_inputs"])
    states, values = len(node.proto.input) - slices, walk.builder.values
    names = [item.name for item in graph.input]
    axes = settings.get("scan_input_axes", [0] * slices)
    whole = [
        moved(walk, node, name, axis) for name, axis in zip(node.proto.input[states:], axes, strict=True)
    ]
    count = values[whole[0]].shape[0]
    if any(values[name].shape[0] != count for name in whole):
        raise walk.refuse(node, "its inputs have different numbers of slices", "export the model again")
    begin = list(node.proto.input[:states])
    carried = carried_values(walk, begin, names)
    rows = [
        Value(own, values[name].shape[1:], values[name].dtype)
        for name, own in zip(whole, names[states:], strict=True)
    ]
    inner = walked(walk, node, graph, [*carried, *rows], {})
    for own, new in zip(carried, inner.results, strict=False):
        check_same(walk, node, own, inner.value(new))
    stacks = len(inner.results) - states
    directions = [
        *settings.get("scan_input_directions", [0] * slices),
        *settings.get("scan_output_directions", [0] * stacks),
    ]
    body, backwards = inner.finished([*names, *inner.captured]), tuple(way != 0 for way in directions)
    repeat = Repeat(body, count, states, slices, inner.results, backwards)
    places = [0] * states + list(settings.get("scan_output_axes", [0] * stacks))
    outputs, moves = [], []
    for number, (name, result) in enumerate(zip(node.proto.output, inner.results, strict=True)):
        stack = (count,) if number >= states else ()
        axis = places[number] % (len(inner.value(result).shape) + 1)
        outputs.append(output(walk, node, "" if axis else name, inner.value(result), stack))
        if axis and name:
            moves.append((outputs[-1].name, name, axis))
    walk.builder.control(repeat, [*begin, *whole, *inner.captured], outputs, node.name)
    for source, name, axis in moves:
        rank = len(values[source].shape)
        perm = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
        visit(walk, node, onnx.helper.make_node("Transpose", [source], [name], perm=perm))


CONTROLS: Final[dict[str, Callable[[Walk, OnnxNode], None]]] = {"If": choose, "Loop": loop, "Scan": scan}
