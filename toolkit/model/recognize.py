"""Operators that exporters write out as several nodes, put together again."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from toolkit.model.graph import Attribute, Graph, GraphBuilder, Node


def recognize_normalization(graph: Graph) -> Graph:
    """(x - mean) / sqrt(variance + epsilon), written out, becomes one Normalize node.

    So it stands in models of before LayerNormalization was an operator. What nobody else reads of it goes.
    """
    producer = {node.output: node for node in graph.nodes}
    build = GraphBuilder(graph.name, graph.values.values())
    for node in graph.nodes:
        match = _Match(graph, producer)
        if node.op == "Div" and match.normalization(node):
            inputs = (match.source,)
            attributes: dict[str, Attribute] = {"axes": match.axes, "epsilon": match.epsilon}
            node = Node(node.name, "Normalize", inputs, node.output, attributes)
        build.nodes.append(node)
    return build.finish(graph.inputs, graph.outputs)


class _Match:
    """Reads the pattern from its end; `source`, `axes` and `epsilon` are set when it is found."""

    def __init__(self, graph: Graph, producer: Mapping[str, Node]) -> None:
        self.graph = graph
        self.producer = producer
        self.source = ""
        self.axes: tuple[int, ...] = ()
        self.epsilon = 0.0

    def normalization(self, node: Node) -> bool:
        """Div(centered, Sqrt(Add(mean of centered * centered, epsilon)))."""
        centered, deviation = node.inputs
        root = self._made_by(deviation, "Sqrt")
        added = self._made_by(root.inputs[0], "Add") if root else None
        sides = self._with_number(added) if added else None
        if sides is None or sides[1] < 0.0:
            return False
        variance, self.epsilon = sides
        squares = self._mean(variance)
        product = self._made_by(squares, "Mul") if squares else None
        if product is None or len({self._centered(name) for name in (centered, *product.inputs)}) != 1:
            return False
        axes = self.axes
        self.source = self._centered(centered)
        return bool(self.source) and self.axes == axes

    def _centered(self, name: str) -> str:
        """x for Sub(x, mean of x), else nothing."""
        node = self._made_by(name, "Sub")
        axes = self.axes
        if node is None or self._mean(node.inputs[1]) != node.inputs[0] or self.axes != axes:
            return ""
        return node.inputs[0]

    def _mean(self, name: str) -> str:
        """x for ReduceSum(x) / count, whose axes are noted, else nothing."""
        scaled = self._made_by(name, "Mul")
        sides = self._with_number(scaled) if scaled else None
        total = self._made_by(sides[0], "ReduceSum") if sides else None
        if sides is None or total is None:
            return ""
        shape, axes = self.graph.values[total.inputs[0]].shape, total.integers("axes")
        count = float(np.prod([shape[axis] for axis in axes]))
        if not np.isclose(sides[1] * count, 1.0, rtol=1e-5):
            return ""
        self.axes = axes
        return total.inputs[0]

    def _with_number(self, node: Node) -> tuple[str, float] | None:
        """The computed operand of a pair and the number beside it."""
        for value, other in (node.inputs, node.inputs[::-1]):
            data = self.graph.values[other].data
            if data is not None and data.size == 1 and not self.graph.values[value].constant:
                return value, float(data.reshape(-1)[0])
        return None

    def _made_by(self, name: str, op: str) -> Node | None:
        node = self.producer.get(name)
        return node if node is not None and node.op == op else None
