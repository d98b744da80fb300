"""Scales of input channels that are computed, as squeeze-and-excitation has them, go into the weights.

    conv1x1(x * s, w) = conv1x1(x, s * w)        x [1, h, w, ci], s [1, 1, 1, ci], w [1, 1, ci, co]

Where a layer has more pixels than output channels there are fewer weights than elements, and nothing that
large is written and read once more. Products with matrices are the same with rows in place of pixels.
"""

from __future__ import annotations

import math

from msgspec.structs import replace

from toolkit.model.graph import Graph, GraphBuilder, Node, Value

FEWER = 2
"""Times as many elements as weights, at least: weights that are computed are not packed. An estimate."""
BOUNDED = frozenset({"Sigmoid", "HardSigmoid", "Tanh"})
_KEEPS_BOUNDS = frozenset({"Add", "Sub", "Mul", "Div"})  # by a constant


def scale_weights(graph: Graph) -> Graph:
    """The physical graph in which scales of what a pointwise convolution or a product reads are its weights'.

    Only scales that are bounded: others might overflow with weights where they do not with elements.
    """
    readers, producers = graph.consumers(), {node.output: node for node in graph.nodes}
    folded: dict[str, tuple[str, str, str]] = {}  # by a product of elements and scales: its node, and these
    for node in graph.nodes:
        alone = len(readers[node.output]) == 1 and node.output not in graph.outputs
        operands = _scaled(graph, node) if node.op == "Mul" and alone else None
        if (
            operands is not None
            and _takes_scales(graph, readers[node.output][0], node.output)
            and _is_bounded(graph, producers, operands[1])
        ):
            folded[node.output] = (node.name, *operands)
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        if node.output in folded:
            continue
        if node.inputs and node.inputs[0] in folded:
            name, data, scale = folded[node.inputs[0]]
            weights = _scaled_weights(graph, build, name, node.inputs[1], scale)
            node = replace(node, inputs=(data, weights, *node.inputs[2:]))
        build.nodes.append(node)
    return build.finish(graph.inputs, graph.outputs)


def _scaled(graph: Graph, node: Node) -> tuple[str, str] | None:
    """The elements and the computed scales of a product with one scale for each channel, the last axis."""
    shape = graph.values[node.output].shape
    for data, scale in (node.inputs, node.inputs[::-1]):
        factors = graph.values[scale]
        channels = factors.shape[-1:] == shape[-1:] == (factors.elements,)
        if channels and not factors.constant and graph.values[data].shape == shape:
            return data, scale
    return None


def _takes_scales(graph: Graph, node: Node, name: str) -> bool:
    """Whether a node is a product of `name` with clearly fewer constant weights, each channel by its own."""
    if node.op not in ("Conv", "MatMul") or node.inputs[0] != name or len(set(node.inputs)) < 2:
        return False
    data, weight = (graph.values[item] for item in node.inputs[:2])
    pointwise = node.op == "MatMul" or not any(node.integers("pads"))
    rank = len(node.integers("strides")) if node.op == "Conv" else 0
    # a depthwise convolution's weights have a dimension less, a grouped one's another
    shaped = len(weight.shape) == rank + 2 and math.prod(weight.shape[:-2]) == 1
    floats = data.dtype == weight.dtype == "float32"
    few = FEWER * weight.elements <= data.elements
    return bool(pointwise and shaped and floats and few and weight.constant and len(data.shape) > 1)


def _is_bounded(graph: Graph, producers: dict[str, Node], name: str) -> bool:
    """Whether a value is a function that is bounded, in another shape or scaled and shifted by constants."""
    node = producers.get(name)
    if node is None:
        return False
    if node.op == "Clip":
        return math.isfinite(node.number("low")) and math.isfinite(node.number("high"))
    if node.op == "Reshape":
        return _is_bounded(graph, producers, node.inputs[0])
    if node.op in _KEEPS_BOUNDS and (node.op != "Div" or graph.values[node.inputs[1]].constant):
        computed = [item for item in node.inputs if not graph.values[item].constant]
        return len(computed) == 1 and _is_bounded(graph, producers, computed[0])
    return node.op in BOUNDED


def _scaled_weights(graph: Graph, build: GraphBuilder, name: str, weights: str, scale: str) -> str:
    """Weights of which each row is scaled, by a node with this name."""
    weight, factors = graph.values[weights], graph.values[scale]
    column = Value(build.fresh(f"{scale}/column"), (factors.elements, 1), factors.dtype)
    scaled = Value(build.fresh(f"{weights}/{name}"), weight.shape, weight.dtype)
    return build.emit("Mul", [weights, build.emit("Reshape", [scale], column)], scaled, name=name)
