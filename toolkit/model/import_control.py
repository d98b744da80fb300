"""If, Loop and Scan: the walk over the nodes of their graphs, and the loops and choices they become.

The graphs may read any value from around them: constants are constants there too, other values become inputs
of the graph. Their sizes must be the same in every run of a loop, and in both branches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import zip_longest
from typing import Any, Protocol

import numpy as np

from toolkit.model.function_bodies import OnnxNode
from toolkit.model.graph import Array, Choose, Graph, GraphBuilder, Repeat, Value
from toolkit.model.live_nodes import reads
from toolkit.model.refusals import NodeRefused

MOST_RUNS = (1 << 31) - 1


class Walk(Protocol):
    """What this file asks of the walk in onnx_import.py."""

    builder: GraphBuilder
    read: set[str]
    refused: list[NodeRefused]  # of all graphs

    def visit(self, node: OnnxNode) -> None:
        """Walk one more node."""

    def inside(self, graph: Any, node: OnnxNode, inputs: Sequence[Value]) -> Walk:
        """A walk that has been over all nodes of an inner graph, whose formal inputs are these values."""

    def know(self, name: str, data: Array) -> None:
        """Note a constant."""

    def made(self, value: Value) -> None:
        """Note the type of a value that a node computes."""

    def refuse(self, node: OnnxNode, what: str, remedy: str) -> NodeRefused:
        """The error for a node."""


@dataclass(frozen=True, slots=True)
class _Inner:
    """An inner graph that has been walked: its results, and what it reads from around it."""

    walk: Walk
    results: tuple[str, ...]
    captured: tuple[str, ...]

    def value(self, name: str) -> Value:
        return self.walk.builder.values[name]

    def finished(self, inputs: Sequence[str]) -> Graph:
        """The graph, in which no result is an input or a constant."""
        return self.walk.builder.finish(inputs, list(dict.fromkeys(self.results)))


def _walked(
    walk: Walk, node: OnnxNode, graph: Any, inputs: Sequence[Value], known: Mapping[str, Array]
) -> _Inner:
    """Walk an inner graph; each result is copied, so that none is an input, a constant or another one."""
    inner = walk.inside(graph, node, inputs)
    for name, data in known.items():
        inner.know(name, data)
    count = len(walk.refused)
    for proto in graph.node:
        inner.visit(OnnxNode(proto, proto.name or node.name, node.opsets))
    if len(walk.refused) > count:
        raise walk.refused.pop()
    build = inner.builder
    results: list[str] = []
    for item in graph.output:
        if item.name not in build.values:
            raise walk.refuse(node, f"its graph does not compute {item.name!r}", "export the model again")
        if item.name in build.counts:
            what = f"the size of its graph's result {item.name!r} depends on data"
            raise walk.refuse(node, what, "export the model with fixed shapes")
        value = build.values[item.name]
        copy = replace(value, name=build.fresh(f"{item.name}/result"), data=None, source="")
        results.append(build.emit("Identity", [item.name], copy, name=node.name))
    own = {item.name for item in inputs} | {output for made in build.nodes for output in made.outputs}
    read = dict.fromkeys(name for made in build.nodes for name in made.inputs)
    for name in read:
        if name not in own and name not in build.values:
            what = f"its graph reads {name!r}, which a graph in it computes"
            raise walk.refuse(node, what, "export the model with fewer graphs in graphs")
    captured = tuple(name for name in read if name not in own and not build.values[name].constant)
    return _Inner(inner, tuple(results), captured)


def choose(walk: Walk, node: OnnxNode) -> None:
    """If: with a known condition the nodes of one branch, else a choice."""
    graphs = {item.name: item.g for item in node.proto.attribute}
    condition = walk.builder.values[node.proto.input[0]]
    if condition.data is not None:
        _inline(walk, node, graphs["then_branch" if condition.data.all() else "else_branch"])
        return
    branches = [_walked(walk, node, graphs[name], (), {}) for name in ("then_branch", "else_branch")]
    captured = tuple(dict.fromkeys((*branches[0].captured, *branches[1].captured)))
    finished = []
    for branch in branches:
        for name in captured:
            branch.walk.builder.add(walk.builder.values[name])
        finished.append(branch.finished(captured))
    values = [
        _output(walk, node, name, branches[0].value(own))
        for name, own in zip_longest(node.proto.output, branches[0].results, fillvalue="")
    ]
    for value, own in zip(values, branches[1].results, strict=True):
        _check_same(walk, node, value, branches[1].value(own))
    walk.builder.control(Choose(*finished), [condition.name, *captured], values, node.name)


def _inline(walk: Walk, node: OnnxNode, graph: Any) -> None:
    """The nodes of an inner graph without inputs, as if they stood around it."""
    import onnx

    for tensor in graph.initializer:
        walk.know(tensor.name, onnx.numpy_helper.to_array(tensor))
    walk.read.update(item for proto in graph.node for item in reads(proto))
    walk.read.update(item.name for item in graph.output)
    for proto in graph.node:
        walk.visit(OnnxNode(proto, proto.name or node.name, node.opsets))
    for item, name in zip(graph.output, node.proto.output, strict=True):
        if name:
            _visit(walk, node, onnx.helper.make_node("Identity", [item.name], [name]))


def _output(walk: Walk, node: OnnxNode, name: str, like: Value, stack: tuple[int, ...] = ()) -> Value:
    value = Value(
        name or walk.builder.fresh(f"{node.name}/unread"), (*stack, *like.shape), like.dtype, source=name
    )
    if not value.elements:
        what = f"its value {value.name!r} of the shape {list(value.shape)} has no elements"
        raise walk.refuse(node, what, "export the model without it")
    walk.made(walk.builder.values[walk.builder.add(value)])
    return value


def _check_same(walk: Walk, node: OnnxNode, one: Value, other: Value) -> None:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        raise walk.refuse(
            node,
            f"{one.name!r} is {one.dtype}{list(one.shape)} at one time and {other.dtype}{list(other.shape)} "
            "at another; expected sizes that do not change while the model runs",
            "export the model with fixed shapes",
        )


def loop(walk: Walk, node: OnnxNode) -> None:
    """Loop: a trip count that is known, and a condition that may depend on data.

    The condition is true in every run that begins, so that the body has it as a constant.
    """
    graph = next(item.g for item in node.proto.attribute if item.name == "body")
    count_name, condition_name, *begin = (*node.proto.input, "", "")[: max(len(node.proto.input), 2)]
    runs = _trip_count(walk, node, count_name, condition_name)
    number, state, *formal = [item.name for item in graph.input]
    carried = _carried(walk, begin, formal)
    inner = _walked(walk, node, graph, [Value(number, (), "int64"), *carried], {state: np.array(True)})
    for own, new in zip(carried, inner.results[1:], strict=False):
        _check_same(walk, node, own, inner.value(new))
    stacked = inner.results[1 + len(begin) :]
    computed = condition_name != "" and walk.builder.values[condition_name].data is None
    conditional = computed or not _is_always_true(inner, 0)
    if stacked and (conditional or runs == MOST_RUNS):
        what = "it stacks as many slices as its condition lets it; expected sizes that are known"
        raise walk.refuse(node, what, "export the model without it")
    hidden = [_counter(walk, node, inner, number)]
    if conditional:
        first = condition_name or walk.builder.constant(f"{node.name}/condition", np.array(True))
        build, like = inner.walk.builder, inner.value(inner.results[0])
        tested = build.add(replace(like, name=build.fresh(f"{state}/carried")))
        hidden.insert(0, (tested, inner.results[0], first))
    states = [*hidden, *zip(formal, inner.results[1:], begin, strict=False)]
    inner = replace(inner, results=(*(new for _, new, _ in states), *stacked))
    body = inner.finished([*(own for own, _, _ in states), *inner.captured])
    repeat = Repeat(body, runs, len(states), 0, inner.results, (False,) * len(stacked), conditional)
    names = ["" for _ in hidden] + list(node.proto.output)
    outputs = [
        _output(walk, node, name, inner.value(new), (runs,) if place >= len(states) else ())
        for place, (name, new) in enumerate(zip_longest(names, inner.results, fillvalue=""))
    ]
    begins = [name for _, _, name in states]
    walk.builder.control(repeat, [*begins, *inner.captured], outputs, node.name)


def _trip_count(walk: Walk, node: OnnxNode, count_name: str, condition_name: str) -> int:
    """How often a loop runs at most.

    Raises:
        NodeRefused: that depends on data, or it never runs.
    """
    count = walk.builder.values[count_name].data if count_name else np.array(MOST_RUNS)
    if count is None:
        what = f"its trip count {count_name!r} depends on data"
        raise walk.refuse(node, what, "give it a constant trip count, at most so many runs, and a condition")
    condition = walk.builder.values[condition_name].data if condition_name else None
    runs = min(int(count.item()), MOST_RUNS)
    if runs < 1 or (condition is not None and not condition.all()):
        raise walk.refuse(node, "it never runs", "export the model without it")
    return runs


def _carried(walk: Walk, begin: Sequence[str], formal: Sequence[str]) -> list[Value]:
    """The inputs of a body that begin as values from around it."""
    values = [walk.builder.values[name] for name in begin]
    return [
        replace(value, name=own, data=None, source="") for value, own in zip(values, formal, strict=False)
    ]


def _counter(walk: Walk, node: OnnxNode, inner: _Inner, number: str) -> tuple[str, str, str]:
    """The number of the run, carried: the body's input, what follows it, and what it begins with."""
    build = inner.walk.builder
    one = build.constant(f"{number}/one", np.array(1, np.int64))
    following = build.emit("Add", [number, one], Value(build.fresh(f"{number}/next"), (), "int64"))
    return number, following, walk.builder.constant(f"{node.name}/first", np.array(0, np.int64))


def _is_always_true(inner: _Inner, position: int) -> bool:
    """Whether a result is a copy of a constant that holds."""
    copy = next(made for made in inner.walk.builder.nodes if made.output == inner.results[position])
    data = inner.value(copy.inputs[0]).data
    return data is not None and bool(data.all())


def scan(walk: Walk, node: OnnxNode) -> None:
    """Scan: slices of inputs along an axis, and stacks of results along one."""
    import onnx

    if node.opset < 9:
        raise walk.refuse(
            node, "before opset 9 its sequences have lengths", "export the model with a newer opset"
        )
    settings = {item.name: onnx.helper.get_attribute_value(item) for item in node.proto.attribute}
    graph, slices = settings["body"], int(settings["num_scan_inputs"])
    states, values = len(node.proto.input) - slices, walk.builder.values
    names = [item.name for item in graph.input]
    axes = settings.get("scan_input_axes", [0] * slices)
    whole = [
        _moved(walk, node, name, axis) for name, axis in zip(node.proto.input[states:], axes, strict=True)
    ]
    count = values[whole[0]].shape[0]
    if any(values[name].shape[0] != count for name in whole):
        raise walk.refuse(node, "its inputs have different numbers of slices", "export the model again")
    begin = list(node.proto.input[:states])
    carried = _carried(walk, begin, names)
    rows = [
        Value(own, values[name].shape[1:], values[name].dtype)
        for name, own in zip(whole, names[states:], strict=True)
    ]
    inner = _walked(walk, node, graph, [*carried, *rows], {})
    for own, new in zip(carried, inner.results, strict=False):
        _check_same(walk, node, own, inner.value(new))
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
        outputs.append(_output(walk, node, "" if axis else name, inner.value(result), stack))
        if axis and name:
            moves.append((outputs[-1].name, name, axis))
    walk.builder.control(repeat, [*begin, *whole, *inner.captured], outputs, node.name)
    for source, name, axis in moves:
        rank = len(values[source].shape)
        perm = [*range(1, axis + 1), 0, *range(axis + 1, rank)]
        _visit(walk, node, onnx.helper.make_node("Transpose", [source], [name], perm=perm))


def _visit(walk: Walk, node: OnnxNode, proto: Any) -> None:
    walk.visit(OnnxNode(proto, node.name, node.opsets))


def _moved(walk: Walk, node: OnnxNode, name: str, axis: int) -> str:
    """The value with an axis in front."""
    import onnx

    rank = len(walk.builder.values[name].shape)
    if axis % rank == 0:
        return name
    moved = walk.builder.fresh(f"{name}/slices")
    walk.read.add(moved)
    perm = [axis % rank, *(other for other in range(rank) if other != axis % rank)]
    _visit(walk, node, onnx.helper.make_node("Transpose", [name], [moved], perm=perm))
    return moved


CONTROLS: dict[str, Callable[[Walk, OnnxNode], None]] = {"If": choose, "Loop": loop, "Scan": scan}
