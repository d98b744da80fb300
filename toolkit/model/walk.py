"""What importers of nodes with graphs of their own ask of the walk over a model, and what they share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import msgspec
import numpy as np
from msgspec.structs import replace

from toolkit.model.bounds import Interval
from toolkit.model.function_bodies import OnnxNode, rename
from toolkit.model.graph import Array, Graph, GraphBuilder, Value
from toolkit.model.live_nodes import live, reads
from toolkit.model.refusals import NodeRefused


class Walk(Protocol):
    """The walk in onnx_import.py."""

    path: Path
    inputs: tuple[str, ...]  # of the model
    builder: GraphBuilder
    read: set[str]
    refused: list[NodeRefused]  # of all graphs

    def visit(self, node: OnnxNode) -> None:
        """Walk one more node."""

    def inside(self, graph: Any, node: OnnxNode, inputs: Sequence[Value]) -> Walk:
        """A walk for an inner graph of a node, in which all values from around are known."""

    def know(self, name: str, data: Array) -> None:
        """Note a constant."""

    def made(self, value: Value) -> None:
        """Note the type of a value that a node computes."""

    def interval(self, name: str) -> Interval | None:
        """Between what the elements of a value lie that sizes may be computed from, if that is known."""

    def refuse(self, node: OnnxNode, what: str, remedy: str) -> NodeRefused:
        """The error for a node."""


class Inner(msgspec.Struct, frozen=True):
    """An inner graph that has been walked: its results, and what it reads from around it."""

    walk: Walk
    results: tuple[str, ...]
    captured: tuple[str, ...]

    def value(self, name: str) -> Value:
        return self.walk.builder.values[name]

    def finished(self, inputs: Sequence[str]) -> Graph:
        """The graph, in which no result is an input or a constant."""
        return self.walk.builder.finish(inputs, list(dict.fromkeys(self.results)))


def walked(
    walk: Walk, node: OnnxNode, graph: Any, inputs: Sequence[Value], known: Mapping[str, Array]
) -> Inner:
    """Walk an inner graph; each result is copied, so that none is an input, a constant or another one."""
    inner = walk.inside(graph, node, inputs)
    for name, data in known.items():
        inner.know(name, data)
    count = len(walk.refused)
    for proto in live(graph.node, [item.name for item in graph.output]):
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
    return Inner(inner, tuple(results), captured)


def output(walk: Walk, node: OnnxNode, name: str, like: Value, stack: tuple[int, ...] = ()) -> Value:
    value = Value(
        name or walk.builder.fresh(f"{node.name}/unread"), (*stack, *like.shape), like.dtype, source=name
    )
    if not value.elements:
        what = f"its value {value.name!r} of the shape {list(value.shape)} has no elements"
        raise walk.refuse(node, what, "export the model without it")
    walk.made(walk.builder.values[walk.builder.add(value)])
    return value


def check_same(walk: Walk, node: OnnxNode, one: Value, other: Value) -> None:
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        raise walk.refuse(
            node,
            f"{one.name!r} is {one.dtype}{list(one.shape)} at one time and {other.dtype}{list(other.shape)} "
            "at another; expected sizes that do not change while the model runs",
            "export the model with fixed shapes",
        )


def carried_values(walk: Walk, begin: Sequence[str], formal: Sequence[str]) -> list[Value]:
    """The inputs of a body that begin as values from around it."""
    values = [walk.builder.values[name] for name in begin]
    return [
        replace(value, name=own, data=None, source="") for value, own in zip(values, formal, strict=False)
    ]


def visit(walk: Walk, node: OnnxNode, proto: Any) -> None:
    """Walk a node that stands for a part of `node`."""
    walk.visit(OnnxNode(proto, node.name, node.opsets))


def moved(walk: Walk, node: OnnxNode, name: str, axis: int) -> str:
    """The value with an axis in front."""
    import onnx

    rank = len(walk.builder.values[name].shape)
    if axis % rank == 0:
        return name
    result = walk.builder.fresh(f"{name}/slices")
    walk.read.add(result)
    perm = [axis % rank, *(other for other in range(rank) if other != axis % rank)]
    visit(walk, node, onnx.helper.make_node("Transpose", [name], [result], perm=perm))
    return result


def as_slice(walk: Walk, node: OnnxNode, name: str) -> str:
    """The value as the one slice of a stack."""
    import onnx

    value, result = walk.builder.values[name], walk.builder.fresh(f"{name}/slice")
    walk.know(f"{result}/shape", np.array((1, *value.shape), np.int64))
    walk.read.add(result)
    visit(walk, node, onnx.helper.make_node("Reshape", [name, f"{result}/shape"], [result]))
    return result


def inlined(walk: Walk, node: OnnxNode, graph: Any, given: Mapping[str, str], scope: str) -> list[str]:
    """Walk the nodes of an inner graph as if they stood around it; the names of its results there.

    `given` names the values that its inputs are; its own values get `scope` before their names.
    """
    import onnx

    outputs = [item.name for item in graph.output]
    nodes = live(graph.node, outputs)
    own = [
        *(tensor.name for tensor in graph.initializer),
        *(item for proto in nodes for item in proto.output),
    ]
    names = dict(given) | {item: f"{scope}/{item}" for item in own if item}
    for tensor in graph.initializer:
        walk.know(names[tensor.name], onnx.numpy_helper.to_array(tensor))
    made = []
    for proto in nodes:
        copy = onnx.NodeProto()
        copy.CopyFrom(proto)
        rename(copy, names, {})
        made.append(OnnxNode(copy, proto.name or node.name, node.opsets))
    results = [names.get(item, item) for item in outputs]
    walk.read.update(results, *(reads(inner.proto) for inner in made))
    for inner in made:
        walk.visit(inner)
    return results
