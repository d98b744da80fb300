"""Passes that make a graph smaller without changing what it computes.

Each takes a graph and returns one; constants are combined in float64.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
import numpy as np
from msgspec.structs import replace

from toolkit.model.graph import Array, Graph, GraphBuilder, Node, Value, computed_in
from toolkit.model.source import FLOATS

SMALLEST, LARGEST = float(np.finfo(np.float32).tiny), float(np.finfo(np.float32).max)
CHANNEL_AXIS = {"Conv": 1, "ConvTranspose": 1, "MatMul": -1}


def remove_identities(graph: Graph) -> Graph:
    """Drop Identity nodes (and with them Dropout and casts to the same dtype).

    One stays where a model's output would otherwise be one of its inputs, a constant or another output.
    """
    produced = {name for node in graph.nodes for name in node.outputs}
    names: dict[str, str] = {}  # old value name -> the name that replaces it
    dropped: set[str] = set()

    def resolve(name: str) -> str:
        while name in names:
            name = names[name]
        return name

    for node in graph.nodes:
        if node.op != "Identity":
            continue
        if node.output not in graph.outputs:
            names[node.output] = node.inputs[0]
            dropped.add(node.output)
        elif (origin := resolve(node.inputs[0])) in produced and origin not in graph.outputs:
            names[origin] = node.output
            dropped.add(node.output)
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        if node.op == "Identity" and node.output in dropped:
            continue
        inputs = tuple(resolve(name) for name in node.inputs)
        more = tuple(resolve(name) for name in node.more)
        build.nodes.append(replace(node, inputs=inputs, output=resolve(node.output), more=more))
    return build.finish(graph.inputs, graph.outputs)


def fold_padding(graph: Graph) -> Graph:
    """Pad by zeros, then Conv: the convolution pads itself."""
    readers = graph.consumers()
    producer = {node.output: node for node in graph.nodes}
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        pad = producer.get(node.inputs[0]) if node.op == "Conv" else None
        alone = pad is not None and len(readers[pad.output]) == 1 and pad.output not in graph.outputs
        if pad is not None and alone and _pads_image(pad) and "padding" not in node.attributes:
            more = (*pad.integers("before")[2:], *pad.integers("after")[2:])
            pads = tuple(a + b for a, b in zip(node.integers("pads"), more, strict=True))
            inputs = (pad.inputs[0], *node.inputs[1:])
            node = replace(node, inputs=inputs, attributes={**node.attributes, "pads": pads})
        build.nodes.append(node)
    return build.finish(graph.inputs, graph.outputs)


def _pads_image(node: Node) -> bool:
    if node.op != "Pad" or node.text("mode") != "constant" or node.number("value") != 0.0:
        return False
    return not any(node.integers("before")[:2]) and not any(node.integers("after")[:2])


class _Affine(msgspec.Struct, frozen=True):
    """x * scale + shift, collected over a chain of nodes; both broadcast to the chain's shape."""

    scale: Array
    shift: Array

    def followed_by(self, node: Node, position: int, operand: Array) -> _Affine:
        """With one more node behind, whose constant operand stands at the other position than `position`."""
        with np.errstate(all="ignore"):
            if node.op == "Neg":
                return _Affine(-self.scale, -self.shift)
            if node.op == "Add":
                return _Affine(self.scale, self.shift + operand)
            if node.op == "Sub" and position == 0:
                return _Affine(self.scale, self.shift - operand)
            if node.op == "Sub":
                return _Affine(-self.scale, operand - self.shift)
            factor = operand if node.op == "Mul" else 1.0 / operand
            return _Affine(self.scale * factor, self.shift * factor)

    def is_safe(self) -> bool:
        """Whether floats hold both, so that the chain computes something else in no element."""
        sizes = np.abs(self.scale)
        held = ((sizes >= SMALLEST) & (sizes <= LARGEST)) | (sizes == 0.0)
        return bool(held.all() and (np.abs(self.shift) <= LARGEST).all())


def fold_affine(graph: Graph) -> Graph:
    """Merge chains of constant scales and shifts into one Mul and one Add, and scales into weights.

    Batch normalization behind a convolution becomes the convolution's weights and bias this way; anywhere
    else it stays one Mul and one Add.
    """
    readers = graph.consumers()
    build = GraphBuilder(graph.name, graph.values.values())
    done: set[str] = set()
    for node in graph.nodes:
        if node.output in done:
            continue
        anchored = node.op in CHANNEL_AXIS and graph.values[node.inputs[1]].constant
        affine = _Affine(np.ones(1), np.zeros(1))
        if not anchored:
            joined = _absorbed(graph, node, affine)
            if joined is None:
                build.nodes.append(node)
                continue
            affine = joined
        chain = [node]
        while (following := _only_reader(graph, readers, chain[-1])) is not None:
            joined = _absorbed(graph, following, affine, chain[-1].output)
            if joined is None:
                break
            affine = joined
            chain.append(following)
        done.update(member.output for member in chain)
        _emit_chain(graph, build, chain, affine, anchored)
    return build.finish(graph.inputs, graph.outputs)


def _only_reader(graph: Graph, readers: Mapping[str, list[Node]], node: Node) -> Node | None:
    found = readers[node.output]
    return found[0] if len(found) == 1 and node.output not in graph.outputs else None


def _absorbed(graph: Graph, node: Node, affine: _Affine, chained: str = "") -> _Affine | None:
    """The chain with `node` if that is affine with a constant operand and keeps the shape, else None."""
    if graph.values[node.output].dtype not in FLOATS:
        return None
    if node.op == "Neg":
        return affine.followed_by(node, 0, np.zeros(1))
    if node.op not in ("Add", "Sub", "Mul", "Div"):
        return None
    operands = [graph.values[name] for name in node.inputs]
    if operands[0].constant == operands[1].constant:
        return None
    position = 1 if operands[0].constant else 0
    data = operands[1 - position].data
    assert data is not None
    if node.op == "Div" and position == 1:
        return None
    if chained and node.inputs[position] != chained:
        return None
    if operands[position].shape != graph.values[node.output].shape:
        return None
    joined = affine.followed_by(node, position, data.astype(np.float64))
    return joined if joined.is_safe() else None


def _emit_chain(
    graph: Graph, build: GraphBuilder, chain: list[Node], affine: _Affine, anchored: bool
) -> None:
    """Append the anchor, if there is one, and what is left of the chain behind it."""
    first, last = chain[0], graph.values[chain[-1].output]
    scale = _squeezed(affine.scale) if np.any(affine.scale != 1.0) else None
    shift = _squeezed(affine.shift) if np.any(affine.shift != 0.0) else None
    if len(chain) == 1:
        build.nodes.append(first)
        return
    data = first.inputs[0] if anchored or not graph.values[first.inputs[0]].constant else first.inputs[1]
    name = first.name
    if anchored:
        weight = first.inputs[1]
        if scale is not None and (scaled := _scaled_weight(graph, first, scale)) is not None:
            weight = build.constant(f"{weight}/scaled", scaled)
            scale = None
        alone = scale is None and shift is None
        output = last if alone else _intermediate(graph, build, first)
        data = build.emit(first.op, (data, weight, *first.inputs[2:]), output, first.attributes, name)
        if alone:
            return
    elif scale is None and shift is None:
        scale = np.ones(())
    if scale is not None:
        factor = build.constant(f"{last.name}/factor", scale.astype(computed_in(last.dtype)))
        output = last if shift is None else _intermediate(graph, build, first, last.name)
        data = build.emit("Mul", (data, factor), output, name=chain[-1].name if anchored else name)
    if shift is not None:
        term = build.constant(f"{last.name}/shift", shift.astype(computed_in(last.dtype)))
        build.emit("Add", (data, term), last, name=chain[-1].name)


def _intermediate(graph: Graph, build: GraphBuilder, first: Node, stem: str = "") -> Value:
    value = graph.values[first.output]
    return Value(build.fresh(f"{stem or value.name}/folded"), value.shape, value.dtype)


def _scaled_weight(graph: Graph, anchor: Node, scale: Array) -> Array | None:
    """The anchor's weights times a scale per output channel, or None when the scale is of another shape."""
    output, weight = graph.values[anchor.output], graph.values[anchor.inputs[1]].data
    assert weight is not None
    axis = CHANNEL_AXIS[anchor.op] % len(output.shape)
    aligned = (1,) * (len(output.shape) - scale.ndim) + scale.shape
    if any(extent != 1 for position, extent in enumerate(aligned) if position != axis):
        return None
    factors = np.broadcast_to(scale.reshape(-1), (output.shape[axis],))
    if anchor.op == "ConvTranspose":  # [ci, co / g, kernel...]: a row of factors for each group of inputs
        groups = anchor.integer("group")
        rows = factors.reshape(groups, weight.shape[1]).repeat(weight.shape[0] // groups, axis=0)
        return _product(weight, rows.reshape(*weight.shape[:2], *(1,) * (weight.ndim - 2)))
    kernel = weight.ndim - 1 if anchor.op == "Conv" else 0
    return _product(weight, factors.reshape(-1, *(1,) * kernel))


def _product(weight: Array, factors: Array) -> Array | None:
    """The product in the dtype of the weight, or None where that does not hold it."""
    with np.errstate(over="ignore"):
        product: Array = (weight.astype(np.float64) * factors).astype(weight.dtype)
    return product if np.isfinite(product).all() else None


def _squeezed(array: Array) -> Array:
    """Without leading unit dimensions, which broadcasting supplies."""
    while array.ndim and array.shape[0] == 1:
        array = array[0]
    return array
