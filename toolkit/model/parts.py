"""Values that lie in larger ones: concatenations and slices that move nothing.

A Concat or Slice that is a group by itself only moves bytes. What is joined is written where the whole lies
instead, and what is cut off is read there: the operators of the groups around get subviews of larger tensors
(cross/expression/rewrites/parts.py). A part is described by rows of elements, so that it does not matter in
which shapes its readers see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

import msgspec
from msgspec.structs import replace

from cross.expression.language.operator import Subview
from cross.expression.rewrites.parts import with_parts
from toolkit.model.chains import Chain
from toolkit.model.graph import Graph, GraphBuilder, Group, Node, Region

LEAST_SHARE = 0.5  # of a Concat's bytes; below it one kernel that copies all beats several that copy some

Copying = Callable[[Graph, Node], Group]
"""Makes the group of a node that copies a value into a part."""


class Part(msgspec.Struct, frozen=True):
    """In each of `rows` rows of `pitch` elements of a whole the part's lie side by side from `start` on."""

    whole: str
    rows: int
    pitch: int
    start: int

    def subview(self, shape: tuple[int, ...]) -> Subview | None:
        """The part as a tensor of this shape in a view of the whole; None where no dimension begins a row."""
        before = 1
        for axis, extent in enumerate(shape):
            step = math.prod(shape[axis + 1 :])
            if before == self.rows and self.pitch % step == self.start % step == 0:
                outer, inner = shape[:axis], shape[axis + 1 :]
                starts = (*(0 for _ in outer), self.start // step, *(0 for _ in inner))
                return Subview((*outer, self.pitch // step, *inner), starts)
            before *= extent
        return None

    def within(self, outer: Part | None) -> Part | None:
        """The same part of the whole in which its whole is a part; None where that has other rows."""
        if outer is None:
            return self
        return replace(outer, start=outer.start + self.start) if outer.rows == self.rows else None


def _cut(graph: Graph, node: Node) -> int | None:
    """The one axis along which a Slice takes neighbouring elements."""
    if node.op != "Slice" or set(node.integers("steps")) != {1}:
        return None
    shapes = zip(graph.values[node.inputs[0]].shape, graph.values[node.output].shape, strict=True)
    cut = [axis for axis, (whole, part) in enumerate(shapes) if whole != part]
    return cut[0] if len(cut) == 1 else None


def share_memory(graph: Graph, chains: Iterable[Chain], copying: Copying) -> Graph:
    """The graph with parts where their wholes lie; copies for what cannot be a part itself."""
    alone = {chain.members[0].output for chain in chains if len(chain.members) == 1}
    sharing = _Sharing(graph)
    for node in reversed(graph.nodes):
        if node.op == "Concat" and node.output in alone and graph.values[node.output].elements:
            sharing.join(node)
    for node in graph.nodes:
        if node.output in alone and _cut(graph, node) is not None and graph.values[node.output].elements:
            sharing.cut(node)
    return sharing.rewritten(copying) if sharing.gone else graph


class _Sharing(msgspec.Struct):
    """Which values are parts, by the value that owned their memory; `gone` are groups without work, and for a
    Concat among them the operands that must be copied to their place."""

    graph: Graph
    parts: dict[str, Part] = {}
    gone: dict[str, list[tuple[str, Part]]] = {}
    makers: dict[str, Group] = {}
    readers: dict[str, list[Group | Region]] = {}
    nodes: dict[str, Node] = {}

    def __post_init__(self) -> None:
        self.makers = {step.output: step for step in self.graph.steps if isinstance(step, Group)}
        self.nodes = {node.output: node for node in self.graph.nodes}
        self.readers = {}
        for step in self.graph.steps:
            for root in dict.fromkeys(map(self.graph.root, step.inputs)):
                self.readers.setdefault(root, []).append(step)

    def join(self, node: Node) -> None:
        """Have the operands of a Concat written where its result lies."""
        shape, axis = self.graph.values[node.output].shape, node.integer("axis")
        rows, inner = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
        outer, start = self.parts.get(node.output), 0
        operands: list[tuple[str, Part]] = []
        for name in node.inputs:
            part = Part(node.output, rows, shape[axis] * inner, start).within(outer)
            if part is None:
                return
            operands.append((name, part))
            start += self.graph.values[name].shape[axis] * inner
        roots = [self.graph.root(name) for name in node.inputs]
        own = self.makers[node.output]  # reads its operands as a copy of one does
        if not all(self._takes(own, root, self.parts[root]) for root in roots if root in self.parts):
            return
        placed = {
            root: part
            for root, (_, part) in zip(roots, operands, strict=True)
            if roots.count(root) == 1 and root in self.makers and self._may_lie_in(root, part, node)
        }
        sizes = {root: self.graph.values[root].nbytes for root in roots}
        if sum(sizes[root] for root in placed) >= LEAST_SHARE * self.graph.values[node.output].nbytes:
            self.parts |= placed
            self.gone[node.output] = [
                item for root, item in zip(roots, operands, strict=True) if root not in placed
            ]

    def cut(self, node: Node) -> None:
        """Have what reads a Slice read it where the whole lies."""
        source, axis = self.graph.values[node.inputs[0]], _cut(self.graph, node)
        assert axis is not None
        inner, root = math.prod(source.shape[axis + 1 :]), self.graph.root(source.name)
        start = node.integers("starts")[axis] * inner
        part = Part(root, math.prod(source.shape[:axis]), source.shape[axis] * inner, start)
        found = part.within(self.parts.get(root))
        if found is not None and source.data is None and self._may_lie_in(node.output, found, node):
            self.parts[node.output] = found
            self.gone[node.output] = []

    def _may_lie_in(self, root: str, part: Part, node: Node) -> bool:
        """Whether the group that writes a value and all others that read it can do so where the part lies."""
        if root in self.parts or any(self.graph.root(name) == root for name in self.graph.outputs):
            return False
        if root != node.output and part.subview(self.makers[root].operator.output.shape) is None:
            return False
        return all(
            isinstance(step, Group) and (step.output == node.output or self._takes(step, root, part))
            for step in self.readers.get(root, ())
        )

    def _takes(self, group: Group, root: str, part: Part) -> bool:
        elements = self.graph.values[root].elements
        return all(
            tensor.elements == elements and part.subview(tensor.shape) is not None
            for name, tensor in zip(group.inputs, group.operator.inputs, strict=True)
            if self.graph.root(name) == root
        )

    def rewritten(self, copying: Copying) -> Graph:
        build, steps = GraphBuilder(self.graph.name, self.graph.values.values()), []
        aliases = {**self.graph.aliases} | {root: part.whole for root, part in self.parts.items()}
        for step in self.graph.steps:
            if not isinstance(step, Group) or step.output not in self.gone:
                steps.append(self._with_subviews(step) if isinstance(step, Group) else step)
                continue
            node = self.nodes[step.output]
            for number, (name, part) in enumerate(self.gone[step.output]):
                copy = build.fresh(f"{node.output}/part{number}")
                build.add(replace(build.values[name], name=copy, data=None, source=""))
                aliases[copy] = part.whole
                self.parts[copy] = part
                copied = Node(node.name, "Identity", (name,), copy)
                group = copying(replace(self.graph, values=build.values), copied)
                steps.append(self._with_subviews(group))
        return replace(self.graph, steps=tuple(steps), aliases=aliases, values=build.values)

    def _with_subviews(self, group: Group) -> Group:
        operator, names = group.operator, list(group.inputs)
        subviews: dict[int, Subview] = {}
        for position, (name, tensor) in enumerate(zip(group.inputs, operator.inputs, strict=True)):
            if part := self.parts.get(self.graph.root(name)):
                names[position], subviews[position] = part.whole, _seen_as(part, tensor.shape)
        whole = self.parts.get(group.output)
        output = _seen_as(whole, operator.output.shape) if whole else None
        if not subviews and output is None:
            return group
        return replace(group, operator=with_parts(operator, subviews, output), inputs=tuple(names))


def _seen_as(part: Part, shape: tuple[int, ...]) -> Subview:
    """The subview of a part that was found to have one."""
    found = part.subview(shape)
    assert found is not None, (part, shape)
    return found
