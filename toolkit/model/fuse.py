"""Fusion: the nodes of a physical graph become groups, each one operator.

A group is an anchor (any node), the chain of elementwise nodes behind it that only it feeds and that keep its
shape, and zero padding in front of a window that only it reads. Reshapes compute nothing: they become
aliases. A group runs where its last member stood, so that whatever the chain reads besides is there.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from cross.errors import ExpressionError
from cross.expression.operator import Operator
from cross.expression.tensor import Tensor, placeholder
from cross.expression.transposed import Phases, split_phases
from toolkit.errors import ModelError
from toolkit.model.expressions import COMPARISONS, ELEMENTWISE, Operand, expression
from toolkit.model.graph import Graph, Group, Node, Value
from toolkit.model.layout import WINDOWED
from toolkit.model.weight_layout import group_count, phases_of

TRUTH_READERS = frozenset({"Where", "Not"})


def fuse(graph: Graph) -> Graph:
    """The same graph with `groups` in running order and `aliases` set.

    Raises:
        ModelError: a truth value would have to be stored between groups.
    """
    graph = _with_copies(graph)
    aliases = {node.output: node.inputs[0] for node in graph.nodes if node.op == "Reshape"}
    chains = _chains(graph)
    position = {node.output: number for number, node in enumerate(graph.nodes)}
    chains.sort(key=lambda chain: position[chain[-1].output])
    return replace(graph, groups=tuple(_group(graph, chain) for chain in chains), aliases=aliases)


def _with_copies(graph: Graph) -> Graph:
    """Outputs whose memory would be an input's, a constant's or another output's get a copy of their own."""
    origin = {node.output: node.inputs[0] for node in graph.nodes if node.op == "Reshape"}
    taken = {*graph.inputs, *graph.constants}
    copies: set[str] = set()
    for name in graph.outputs:
        root = name
        while root in origin:
            root = origin[root]
        if root in taken:
            copies.add(name)
        taken.add(root)
    if not copies:
        return graph
    values = dict(graph.values)
    nodes: list[Node] = []
    for node in graph.nodes:
        if node.output in copies:
            shaped = f"{node.output}/shaped"
            values[shaped] = replace(values[node.output], name=shaped, source="")
            nodes.append(replace(node, output=shaped))
            node = Node(f"{node.output}/copy", "Identity", (shaped,), node.output)
        nodes.append(node)
    return replace(graph, nodes=tuple(nodes), values=values)


def _chains(graph: Graph) -> list[list[Node]]:
    """The members of every group, in the order they are computed.

    A comparison is computed inside each Where that reads it, so that truth values are never stored.
    """
    readers = graph.consumers()
    producer = {node.output: node for node in graph.nodes}
    taken: set[str] = set()
    for node in graph.nodes:
        inside = all(reader.op in TRUTH_READERS for reader in readers[node.output])
        if node.op in COMPARISONS and inside and node.output not in graph.outputs:
            taken.add(node.output)

    def members(node: Node) -> list[Node]:
        """The node, with the comparisons that it reads in front."""
        if node.op not in TRUTH_READERS or node.inputs[0] not in taken:
            return [node]
        return [*members(producer[node.inputs[0]]), node]

    chains: list[list[Node]] = []
    for node in graph.nodes:
        if node.op == "Reshape" or node.output in taken:
            continue
        chain = members(node)
        while (following := _next_member(graph, readers, chain[-1], taken)) is not None:
            chain += members(following)
            taken.add(following.output)
        chains.append(chain)
    return chains


def _next_member(graph: Graph, readers: Mapping[str, list[Node]], last: Node, taken: set[str]) -> Node | None:
    found = readers[last.output]
    if len(found) != 1 or last.output in graph.outputs:
        return None
    reader = found[0]
    if reader.output in taken:
        return None
    if last.op == "Pad" and reader.op in WINDOWED and reader.inputs[0] == last.output:
        return reader
    same_shape = graph.values[reader.output].shape == graph.values[last.output].shape
    return reader if reader.op in ELEMENTWISE and same_shape else None


@dataclass(slots=True)
class _Assembly:
    """Collects a group's operands while its expression is built."""

    graph: Graph
    groups: int  # of the group's grouped convolution; 1 without one
    phases: tuple[Phases, ...]  # of the group's transposed convolution; none without one
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def operand(self, name: str, node: Node, position: int) -> Operand:
        """The placeholder of a value, or a number for a constant of one element in elementwise arithmetic."""
        value = self.graph.values[name]
        if value.data is not None and value.elements == 1 and node.op in ELEMENTWISE:
            return float(value.data.reshape(-1)[0])
        if name not in self.tensors:
            shape = self._view(value.shape, node, position)
            self.tensors[name] = placeholder(shape, f"in{len(self.tensors)}", _dtype(value))
        return self.tensors[name]

    def _view(self, shape: tuple[int, ...], node: Node, position: int) -> tuple[int, ...]:
        """The shape in which the group's expression reads a value: the same elements, dimensions split."""
        if node.op in ("Conv", "ConvTranspose") and position == 1:
            return shape
        if self.phases and node.op != "ConvTranspose" and len(shape) > 1:
            rank = len(self.phases) + 2
            shape = split_phases((1,) * (rank - len(shape)) + shape, self.phases)
        return split_channels(shape, self.groups)


def split_channels(shape: tuple[int, ...], groups: int) -> tuple[int, ...]:
    """The shape with its last dimension split into (groups, channels of one); rank at least 1.

    >>> split_channels((1, 7, 7, 8), 2), split_channels((1,), 2), split_channels((), 1)
    ((1, 7, 7, 2, 4), (1, 1), (1,))
    """
    shape = shape or (1,)
    if groups == 1:
        return shape
    last = shape[-1]
    return (*shape[:-1], 1, 1) if last == 1 else (*shape[:-1], groups, last // groups)


def _group(graph: Graph, chain: list[Node]) -> Group:
    groups = max(group_count(node, _weight_rank(graph, node)) for node in chain)
    assembly = _Assembly(graph, groups, _phases(graph, chain))
    made: dict[str, Tensor] = {}
    for node in chain:
        operands = [
            made[name] if name in made else assembly.operand(name, node, position)
            for position, name in enumerate(node.inputs)
        ]
        try:
            made[node.output] = expression(node, operands)
        except ExpressionError as error:
            raise ModelError(
                f"model {graph.name!r}: node {node.name!r} ({node.op}) does not fit its inputs: {error}; "
                "check the model with `onnx.checker`, or export it again"
            ) from error
    output = made[chain[-1].output]
    plain = ELEMENTWISE | {"Pad"}
    anchor = next((node for node in chain if node.op not in plain), chain[-1])
    if output.dtype != "float32":
        raise ModelError(
            f"model {graph.name!r}: node {chain[-1].name!r} ({chain[-1].op}): its truth values are an "
            "output or "
            "go into arithmetic; expected only Where and Not to read them; select 1.0 and 0.0 with a Where"
        )
    constants = [name for name in assembly.tensors if graph.values[name].constant]
    order = list(assembly.tensors)
    operator = Operator(
        anchor.op.lower(),
        tuple(assembly.tensors.values()),
        output,
        frozenset(order.index(name) for name in constants),
    )
    nodes = tuple(dict.fromkeys((anchor.name, *(node.name for node in chain))))
    return Group(anchor.name, operator, tuple(order), chain[-1].output, nodes)


def _weight_rank(graph: Graph, node: Node) -> int:
    return len(graph.values[node.inputs[1]].shape) if node.op in ("Conv", "ConvTranspose") else 0


def _phases(graph: Graph, chain: list[Node]) -> tuple[Phases, ...]:
    for node in chain:
        if node.op == "ConvTranspose":
            return phases_of(node, graph.values[node.inputs[0]].shape[1:-1])
    return ()


def _dtype(value: Value) -> str:
    return str(np.dtype(value.dtype))
