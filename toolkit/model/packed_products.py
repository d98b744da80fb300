"""Products of bytes, four at a time: what processors have instructions for.

Four neighbouring channels of 8-bit data are one word of 32 bits, and so are their weights; a convolution or
matrix product sums `dot4` of words instead of products of bytes. Nothing moves: the data are the same bytes.
The instructions take data without sign and weights with one: signed data have their sign bits flipped where
they are read, which adds 128 to each, and 128 times the weights is taken away behind the sum.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolkit.model.graph import Array, Graph, GraphBuilder, Node, Value

BYTES = 4  # in a word
_SIGNS = -0x7F7F7F80  # 0x80808080, the sign bit of each byte, as an int32
_DATA = ("int8", "uint8")


def pack_products(graph: Graph) -> Graph:
    """The physical graph with products of bytes packed where the channels fill words."""
    producer = {node.output: node for node in graph.nodes}
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        padded = node.inputs and node.inputs[0] in producer and producer[node.inputs[0]].op == "Pad"
        if node.op in ("Conv", "MatMul") and not padded and _may_pack(graph, node):
            _pack(graph, node, build)
        else:
            build.nodes.append(node)
    return build.finish(graph.inputs, graph.outputs)


def packed_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """The shape of a tensor of bytes in words."""
    return (*shape[:-1], shape[-1] // BYTES)


def _may_pack(graph: Graph, node: Node) -> bool:
    """Whether 8-bit data are multiplied by known int8 weights [..., ci, co] and ci fills words."""
    data, weight = (graph.values[name] for name in node.inputs[:2])
    if data.dtype not in _DATA or weight.dtype != "int8" or weight.data is None or data.constant:
        return False
    rank = len(node.integers("strides")) + 2 if node.op == "Conv" else 2
    fits = len(weight.shape) == rank and (node.op == "Conv" or len(data.shape) == 2)
    return fits and data.shape[-1] == weight.shape[-2] and data.shape[-1] % BYTES == 0


def _pack(graph: Graph, node: Node, build: GraphBuilder) -> None:
    name, output = node.inputs[1], graph.values[node.output]
    weight = graph.values[name].data
    assert weight is not None
    signed = graph.values[node.inputs[0]].dtype == "int8"
    attributes = {**node.attributes, "packed": 1, "signs": _SIGNS if signed else 0}
    if node.attributes.get("padding"):  # of signed data it is flipped like them
        attributes["padding"] = _repeated(node.integer("padding"))
    words = build.constant(f"{name}/words", _words(weight))
    if not signed:
        build.emit(node.op, (node.inputs[0], words), output, attributes, node.name)
        return
    value = Value(build.fresh(f"{node.output}/shifted"), output.shape, output.dtype)
    build.emit(node.op, (node.inputs[0], words), value, attributes, node.name)
    sums = 128 * weight.sum(axis=tuple(range(weight.ndim - 1)), dtype=np.int32)
    build.emit("Sub", (value.name, build.constant(f"{name}/signs", sums)), output, name=node.name)


def _words(weight: Array) -> Array:
    """[..., ci, co] of int8 as [..., ci / 4, co] of int32, the first channel in the lowest bits."""
    *outer, read, written = weight.shape
    groups = weight.reshape(*outer, read // BYTES, BYTES, written)
    packed = np.ascontiguousarray(np.moveaxis(groups, -2, -1)).view("<i4")
    return np.asarray(packed[..., 0], np.int32)


def _repeated(byte: int) -> int:
    """A byte four times, as an int32."""
    return int(np.array([byte] * BYTES, np.int64).astype(np.uint8).view("<i4")[0])
