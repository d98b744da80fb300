"""Fusion: the nodes of a physical graph become groups, each one operator.

A group is an anchor (any node), the chain of elementwise nodes behind it that only it feeds (chains.py), and
what only it reads in front of a window: zero padding, moved elements. Reshapes compute nothing: they become
aliases. A group runs where its last member stood, so that whatever the chain reads besides is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from cross.errors import ExpressionError
from cross.expression.families.data_movement import split_dimensions
from cross.expression.families.transposed import Phases, split_phases
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Tensor, placeholder
from cross.expression.language.terms import constant
from cross.expression.rewrites.half_storage import with_half_storage
from toolkit.errors import ModelError
from toolkit.model.chains import MOVES, READERS_IN_PLACE, Chain, chains, viewed
from toolkit.model.expressions import ELEMENTWISE, Operand, expression
from toolkit.model.graph import STORED, Graph, Group, Node, Region, computed_in
from toolkit.model.parts import share_memory
from toolkit.model.weight_layout import group_count, packed_shape, phases_of


def fuse(graph: Graph) -> Graph:
    """The same graph with `steps` in running order and `aliases` set."""
    graph = _with_copies(graph)
    aliases = {node.output: node.inputs[0] for node in graph.nodes if node.op == "Reshape"}
    graph = replace(graph, aliases=aliases)
    found = chains(graph)
    groups = {chain.members[-1].output: _group(graph, chain) for chain in found}
    steps: list[Group | Region] = []
    for node in graph.nodes:
        if node.control is not None:
            steps.append(Region(node.name, node.control, node.inputs, node.outputs))
        elif node.output in groups:
            steps.append(groups[node.output])

    def copying(graph: Graph, node: Node) -> Group:
        return _group(graph, Chain((node,), node))

    return share_memory(replace(graph, steps=tuple(steps)), found, copying)


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


class _Views(msgspec.Struct, frozen=True):
    """In which shapes a group's expression reads and writes values: the same elements, other dimensions."""

    graph: Graph
    base: tuple[int, ...]  # the shape of the anchor's result, as the graph has it
    groups: int = 1  # of the group's grouped convolution
    phases: tuple[Phases, ...] = ()  # of the group's transposed convolution
    front: frozenset[str] = frozenset()  # results in front of an anchor that moves or combines elements

    def of(self, name: str, node: Node, position: int) -> tuple[int, ...]:
        """The shape of the operand of a node at a position."""
        shape = self.graph.values[name].shape
        if node.op in ("Conv", "ConvTranspose") and position >= 1:
            return shape
        if "packed" in node.attributes:
            in_words = position or self.graph.values[name].dtype == _word(node)
            return shape if in_words else packed_shape(shape, node.integer("packed"))
        result = self.graph.values[node.output].shape
        if node.op in ELEMENTWISE and result != self.base and node.output not in self.front:
            shape = viewed(shape, result, self.base) or shape
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


def _views(graph: Graph, chain: Chain) -> _Views:
    base = graph.values[chain.anchor.output].shape
    groups = max(group_count(node, _weight_rank(graph, node)) for node in chain.members)
    return _Views(graph, base, groups, _phases(graph, chain.members), _front(chain))


def _group(graph: Graph, chain: Chain) -> Group:
    """The group of a chain."""
    views = _views(graph, chain)
    tensors: dict[tuple[str, tuple[int, ...]], Tensor] = {}
    made: dict[str, Tensor] = {}

    def operand(name: str, node: Node, position: int) -> Operand:
        """What was made in the group, a number for a constant of one element, or the value's placeholder."""
        source = name
        while source not in made and source in graph.aliases:
            source = graph.aliases[source]
        if source in made:
            shape = graph.values[name].shape
            moved = node.op in READERS_IN_PLACE and made[source].shape != shape
            return split_dimensions(made[source], shape) if moved else made[source]
        value = graph.values[name]
        condition = node.op == "Where" and position == 0  # which is read from a tensor
        several = node.op in ELEMENTWISE and len(node.inputs) > 1
        if value.data is not None and value.elements == 1 and several and not condition:
            return constant(value.data.reshape(-1)[0].item(), computed_in(value.dtype))
        key = name, views.of(name, node, position)
        if key not in tensors:
            packed = "packed" in node.attributes and position < 2
            dtype = _word(node) if packed else computed_in(value.dtype)
            tensors[key] = placeholder(key[1], f"in{len(tensors)}", dtype)
        return tensors[key]

    for node in chain.members:
        operands = [operand(name, node, position) for position, name in enumerate(node.inputs)]
        try:
            made[node.output] = expression(node, operands)
        except ExpressionError as error:
            raise ModelError(
                f"model {graph.name!r}: node {node.name!r} ({node.op}) does not fit its inputs: {error}; "
                "check the model with `onnx.checker`, or export it again"
            ) from error
    last = chain.members[-1]
    output = made[last.output]
    if output.elements != graph.values[last.output].elements:
        raise ModelError(
            f"model {graph.name!r}: node {last.name!r} ({last.op}) computes {output.elements} elements, but "
            f"its output has the shape {list(graph.values[last.output].shape)}; export the model again"
        )
    plain = ELEMENTWISE | {"Pad"} | (MOVES if chain.anchor.op not in MOVES else set())
    leader = next((node for node in chain.members if node.op not in plain), last)
    order = tuple(name for name, _ in tensors)
    constants = frozenset(position for position, name in enumerate(order) if graph.values[name].constant)
    operator = Operator(leader.op.lower(), tuple(tensors.values()), output, constants)
    dtypes, result = [graph.values[name].dtype for name in order], graph.values[last.output].dtype
    for half in sorted(STORED.keys() & {*dtypes, result}):
        stored = [position for position, dtype in enumerate(dtypes) if dtype == half]
        operator = with_half_storage(operator, stored, result == half, half)
    nodes = tuple(dict.fromkeys((leader.name, *(node.name for node in chain.members))))
    return Group(leader.name, operator, order, last.output, nodes)


def _front(chain: Chain) -> frozenset[str]:
    """Results in front of an anchor that does not work element by element: they keep their own shapes."""
    if chain.anchor.op in ELEMENTWISE:
        return frozenset()
    return frozenset(node.output for node in chain.members[: chain.members.index(chain.anchor)])


def _word(node: Node) -> str:
    """The dtype of the words that a node with the attribute "packed" reads: what its product takes, or of as
    many bytes."""
    if "product" in node.attributes:
        return OPERATIONS[node.text("product")].only
    return f"int{8 * node.integer('packed')}"


def _weight_rank(graph: Graph, node: Node) -> int:
    return len(graph.values[node.inputs[1]].shape) if node.op in ("Conv", "ConvTranspose") else 0


def _phases(graph: Graph, chain: Sequence[Node]) -> tuple[Phases, ...]:
    for node in chain:
        if node.op == "ConvTranspose":
            return phases_of(node, graph.values[node.inputs[0]].shape[1:-1])
    return ()
