"""Products of the same rows with several constant matrices, as of queries, keys and values, are one product.

    x @ q, x @ k, x @ v        slices of        x @ [q k v]

For GPUs, which start one kernel in place of three and have more blocks at a time. On two cores of an Emerald
Rapids Xeon slices of wider rows made a BERT and a ViT-tiny 0.97 to 0.99 times as fast. Only where what
follows reads elements wherever they are: what is computed element by element is done with the product. Start
at `shared_for`.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from boards.target import Target
from toolkit.model.fuse import fuse
from toolkit.model.graph import Array, Attribute, Graph, GraphBuilder, Node, Value, verify
from toolkit.model.heads import has_plain_weights, read_through_shapes

READERS = frozenset({"MatMul", "Transpose"})


class _Product(msgspec.Struct, frozen=True):
    """A product with constant weights, the bias that is added, if any, and the value that has its results."""

    node: Node
    bias: str | None
    result: str


def shared_for(graph: Graph, target: Target) -> Graph:
    """The fused graph with products shared where the target is a GPU."""
    shared = graph if target.gpu is None else share_products(graph)
    if shared.nodes == graph.nodes:
        return graph
    return replace(verify(fuse(verify(shared))), counts=graph.counts)


def share_products(graph: Graph) -> Graph:
    """The physical graph with one product where several of the same rows have constant weights.

    Those of different attentions, as of what an encoder made, stay apart: the results of all would be kept.
    """
    first: dict[str, list[_Product]] = {}  # by the first product's result
    gone: set[str] = set()
    for run in _runs(graph):
        if len(run) > 1:
            first[run[0].node.output] = run
            gone.update(product.result for product in run)
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        if node.output in first:
            _emit(graph, build, first[node.output])
        elif node.output not in gone:
            build.nodes.append(node)
    return build.finish(graph.inputs, graph.outputs)


def _runs(graph: Graph) -> list[list[_Product]]:
    """Products of the same rows, between which nothing else is multiplied."""
    readers, producers = graph.consumers(), {node.output: node for node in graph.nodes}
    runs: list[list[_Product]] = []
    last: tuple[str, tuple[int, ...]] | None = None
    for node in graph.nodes:
        if node.op not in ("Conv", "MatMul"):
            continue
        data, shape = node.inputs[0], graph.values[node.inputs[0]].shape
        while (made := producers.get(data)) is not None and made.op == "Reshape":
            data = made.inputs[0]
        if (data, shape) != last:
            runs.append([])
            last = data, shape
        product = _product(graph, readers, node)
        if product is not None:
            runs[-1].append(product)
    return runs


def _product(graph: Graph, readers: Mapping[str, list[Node]], node: Node) -> _Product | None:
    """The product that a node is, where it may share a kernel with others."""
    if not has_plain_weights(graph, node):
        return None
    columns = graph.values[node.inputs[1]].shape[1]
    name, bias = node.output, None
    behind = read_through_shapes(graph, readers, name)
    if len(behind) == 1 and behind[0].op == "Add":
        (adding,) = behind
        known = [item for item in adding.inputs if graph.values[item].constant]
        shapes = {graph.values[item].shape for item in (*adding.inputs, adding.output) if item not in known}
        if len(known) != 1 or graph.values[known[0]].shape != (columns,) or len(shapes) != 1:
            return None
        name, bias = adding.output, known[0]
        behind = read_through_shapes(graph, readers, name)
    moves = bool(behind) and all(reader.op in READERS for reader in behind)
    return _Product(node, bias, name) if moves else None


def _known(graph: Graph, name: str) -> Array:
    data = graph.values[name].data
    assert data is not None
    return data


def _emit(graph: Graph, build: GraphBuilder, products: list[_Product]) -> None:
    """One product for several, and each one's results as a slice."""
    first = products[0].node
    data = graph.values[first.inputs[0]]
    weights = [_known(graph, item.node.inputs[1]) for item in products]
    columns = [weight.shape[1] for weight in weights]
    rows, whole = data.shape[0], sum(columns)
    weight = build.constant(f"{first.inputs[1]}/shared", np.concatenate(weights, axis=1))
    made = Value(build.fresh(f"{first.output}/shared"), (rows, whole), data.dtype)
    name = build.emit("MatMul", [data.name, weight], made, name=first.name)
    if any(item.bias is not None for item in products):
        shifts = [
            np.zeros(count, np.float32) if item.bias is None else _known(graph, item.bias)
            for item, count in zip(products, columns, strict=True)
        ]
        shift = build.constant(f"{first.output}/shifts", np.concatenate(shifts))
        shifted = Value(build.fresh(f"{first.output}/shifted"), made.shape, data.dtype)
        name = build.emit("Add", [name, shift], shifted, name=first.name)
    start = 0
    for item, count in zip(products, columns, strict=True):
        shape, value = (rows, count), graph.values[item.result]
        own = value if value.shape == shape else Value(build.fresh(f"{item.result}/part"), shape, data.dtype)
        attributes: dict[str, Attribute] = {"starts": (0, start), "steps": (1, 1), "shape": shape}
        part = build.emit("Slice", [name], own, attributes, item.node.name)
        if own is not value:
            build.emit("Reshape", [part], value, name=item.node.name)
        start += count
