"""What the heads of an attention make is read where it is by a product whose constant weights say from where.

    transpose(y) @ w        y [b, h, t, d], w [h * d, n]

is a convolution of images [h, t] of d channels by a window [h, 1], whose results have a height of 1. Queries
and values are read where they are, too (chains.py); keys alone are moved, as vectors lie along their rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from toolkit.model.graph import Attribute, Graph, GraphBuilder, Node, Value

BY_HEADS = {3: (1, 0, 2), 4: (0, 2, 1, 3)}
"""Permutations of [h, t, d] and [b, h, t, d]: to rows of all heads side by side."""


def read_by_heads(graph: Graph) -> Graph:
    """The physical graph without copies of what heads make for products with constant weights."""
    readers = graph.consumers()
    found: dict[str, Node] = {}  # the transpose in front, by the product's result
    for node in graph.nodes:
        if node.op == "Transpose" and node.integers("perm") == BY_HEADS.get(len(node.integers("perm"))):
            product = _product(graph, readers, node)
            if product is not None:
                found[product.output] = node
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        if node.output in found:
            _emit_convolution(graph, build, found[node.output], node)
        else:
            build.nodes.append(node)
    return build.finish(graph.inputs, graph.outputs)


def _product(graph: Graph, readers: Mapping[str, list[Node]], node: Node) -> Node | None:
    """The product of matrices that alone reads what a node moved, rows of all heads side by side, with
    constant weights."""
    *_, heads, width = graph.values[node.output].shape
    behind = read_through_shapes(graph, readers, node.output)
    if len(behind) != 1 or not has_plain_weights(graph, behind[0]):
        return None
    (product,) = behind
    return product if graph.values[product.inputs[0]].shape[1] == heads * width else None


def has_plain_weights(graph: Graph, node: Node) -> bool:
    """Whether a node is a product of a computed matrix and a constant one, both of float32."""
    if node.op != "MatMul" or node.attributes:
        return False
    data, weight = (graph.values[name] for name in node.inputs)
    known = weight.constant and weight.quantized is None and not data.constant
    return known and len(data.shape) == len(weight.shape) == 2 and data.dtype == weight.dtype == "float32"


def read_through_shapes(graph: Graph, readers: Mapping[str, list[Node]], name: str) -> list[Node]:
    """What reads a value, also in other shapes; nothing where it is an output in one of them."""
    found: list[Node] = []
    names = [name]
    for known in names:  # grows
        if known in graph.outputs:
            return []
        names += [reader.output for reader in readers[known] if reader.op == "Reshape"]
        found += [reader for reader in readers[known] if reader.op != "Reshape"]
    return found


def _emit_convolution(graph: Graph, build: GraphBuilder, node: Node, product: Node) -> None:
    """The product, of what a node would have moved."""
    *batch, rows, heads, width = graph.values[node.output].shape
    value, weight = graph.values[product.output], graph.values[product.inputs[1]]
    assert weight.data is not None
    window = weight.data.reshape(heads, 1, width, weight.shape[1])
    weights = build.constant(f"{weight.name}/heads", window, weight.source)
    images, results = (*(batch or [1]), heads, rows, width), (*(batch or [1]), 1, rows, weight.shape[1])
    image = Value(build.fresh(f"{node.inputs[0]}/image"), images, value.dtype)
    data = build.emit("Reshape", [node.inputs[0]], image)
    attributes: dict[str, Attribute] = {
        "kernel": (heads, 1), "strides": (1, 1), "pads": (0, 0, 0, 0), "dilations": (1, 1), "group": 1,
    }  # fmt: skip
    made = Value(build.fresh(f"{product.output}/image"), results, value.dtype)
    build.emit("Reshape", [build.emit("Conv", [data, weights], made, attributes, product.name)], value)
