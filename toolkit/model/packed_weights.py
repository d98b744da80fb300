"""Matrices of weights that stay the integers that they are in the file, and are scaled where they are read.

A product with few rows does little with each weight: how fast memory is decides its time, and 4 bits take an
eighth of a float32's. With many rows a weight is used again and again; then it is scaled once, ahead of time.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from toolkit.model.graph import Array, Graph, GraphBuilder, Node, QuantizedWeights

MOST_ROWS = 4
"""Of the left matrix. Scaling a vector of weights takes about four instructions; multiply-adds of more rows
would take longer than reading float32 from memory. An estimate."""
_ITEMS = ("int4", "uint4", "int8", "uint8")


def quantized_weights(operands: Sequence[Array | None], axis: int, block: int) -> QuantizedWeights | None:
    """The matrix that a DequantizeLinear of these constants gives, if it is scaled by column or by blocks."""
    integers, scale, zero = (*operands, None)[:3]
    if integers is None or scale is None or integers.ndim != 2 or str(integers.dtype) not in _ITEMS:
        return None
    if scale.dtype != np.float32 or (axis % 2 != 0 if block else scale.ndim == 1 and axis % 2 != 1):
        return None
    rows, columns = integers.shape
    if not integers.size or (block and rows % block):
        return None
    shape = (rows // block if block else 1, columns)
    zeros = np.zeros((), np.float32) if zero is None else zero.astype(np.float32)
    return QuantizedWeights(integers, *(np.broadcast_to(item, shape).copy() for item in (scale, zeros)))


def pack_weights(graph: Graph) -> Graph:
    """The physical graph in which products with few rows read weights as the integers of the file."""
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        if node.op == "MatMul" and _may_pack(graph, node):
            _pack(graph, node, build)
        else:
            build.nodes.append(node)
    return build.finish(graph.inputs, graph.outputs)


def _may_pack(graph: Graph, node: Node) -> bool:
    left, right = (graph.values[name] for name in node.inputs)
    few = len(left.shape) == 2 and left.shape[0] <= MOST_ROWS and not left.constant
    known = right.quantized
    return few and left.dtype == "float32" and known is not None and known.integers.shape == right.shape


def _pack(graph: Graph, node: Node, build: GraphBuilder) -> None:
    left, name = node.inputs
    known = graph.values[name].quantized
    assert known is not None
    integers, zeros = known.integers.astype(np.int16), known.zeros
    lowest, highest = int(integers.min()), int(integers.max())
    low = (
        0 if lowest >= 0 else -8 if lowest >= -8 and highest < 8 else -128
    )  # what the bytes are counted from
    bits = 4 if highest - low < 16 and known.block % 2 == 0 else 8
    groups: Array = (integers - low).astype(np.uint8).reshape(-1, known.block, integers.shape[1])
    if bits == 4:
        groups = groups[:, ::2] | groups[:, 1::2] << 4
    words = build.constant(f"{name}/bytes", np.ascontiguousarray(groups))
    scales, moved = (
        build.constant(f"{name}/scales", known.scales),
        build.constant(f"{name}/zeros", zeros - low),
    )
    output = graph.values[node.output]
    build.emit("MatMulBlocks", (left, words, scales, moved), output, {"bits": bits}, node.name)
