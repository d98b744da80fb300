"""A network as data: values, nodes and, once fused, groups.

`load.py` is the door. What enters is an ONNX file; what leaves is a `Graph` whose `groups` are the operators
to tune, in the order they run. Every pass in between is a function Graph -> Graph that builds with a
`GraphBuilder`.

A value's shape is its *physical* shape, row-major. After the layout pass it may hold another order of the
axes than the ONNX value it came from: `physical = source.transpose(permutation)`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.operator import Operator
from toolkit.errors import ModelError

Array = NDArray[Any]
Attribute = int | float | str | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One tensor of the network; `data` is set when it is known ahead of time (a weight)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Array | None = field(default=None, repr=False, compare=False)
    source: str = ""  # the ONNX value this one stands for; "" for one that the tool made
    permutation: tuple[int, ...] = ()  # physical = source.transpose(permutation)

    @property
    def elements(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def nbytes(self) -> int:
        return self.elements * np.dtype(self.dtype).itemsize

    @property
    def constant(self) -> bool:
        return self.data is not None


@dataclass(frozen=True, slots=True)
class Node:
    """One operation with one output. `op` is the ONNX name; attributes are complete, defaults included.

    Nodes that come from one ONNX node share its `name`.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute] = field(default_factory=dict)

    def integer(self, key: str) -> int:
        value = self.attributes[key]
        assert isinstance(value, int), (self.name, key, value)
        return value

    def integers(self, key: str) -> tuple[int, ...]:
        value = self.attributes[key]
        assert isinstance(value, tuple), (self.name, key, value)
        return value

    def number(self, key: str) -> float:
        value = self.attributes[key]
        assert isinstance(value, (int, float)), (self.name, key, value)
        return float(value)

    def text(self, key: str) -> str:
        value = self.attributes[key]
        assert isinstance(value, str), (self.name, key, value)
        return value


@dataclass(frozen=True, slots=True)
class Group:
    """Nodes fused into one operator: an anchor and the elementwise chain behind it.

    `inputs` has one value name per `operator.inputs`, constants included; `nodes` names the ONNX nodes in
    it, the anchor's first.
    """

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    output: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Graph:
    """A network. `nodes` can be run in order; `aliases` maps a value to the one whose memory it shares."""

    name: str
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    groups: tuple[Group, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)

    def root(self, name: str) -> str:
        """The value that owns the memory of `name`."""
        while name in self.aliases:
            name = self.aliases[name]
        return name

    @property
    def constants(self) -> tuple[str, ...]:
        return tuple(name for name, value in self.values.items() if value.constant)

    def consumers(self) -> dict[str, list[Node]]:
        """Value name -> the nodes that read it, in order."""
        readers: dict[str, list[Node]] = {name: [] for name in self.values}
        for node in self.nodes:
            for name in dict.fromkeys(node.inputs):
                readers[name].append(node)
        return readers

    def to_text(self) -> str:
        """One line a node, for people and golden tests."""
        lines = [f"graph {self.name}"]
        lines += [f"  input {_value_text(self.values[name])}" for name in self.inputs]
        for node in self.nodes:
            attributes = "".join(f" {key}={value}" for key, value in sorted(node.attributes.items()))
            inputs = ", ".join(_short(self.values[name]) for name in node.inputs)
            lines.append(f"  {_value_text(self.values[node.output])} = {node.op}({inputs}){attributes}")
        lines += [f"  output {_value_text(self.values[name])}" for name in self.outputs]
        return "\n".join(lines) + "\n"


def _value_text(value: Value) -> str:
    return f"{value.name}: {value.dtype}{list(value.shape)}"


def _short(value: Value) -> str:
    return f"const{list(value.shape)}" if value.constant else value.name


class GraphBuilder:
    """Collects the nodes and values of a graph under construction; names stay unique."""

    def __init__(self, name: str, values: Iterable[Value] = (), reserved: Iterable[str] = ()) -> None:
        self.name = name
        self.nodes: list[Node] = []
        self.values: dict[str, Value] = {value.name: value for value in values}
        self._reserved = frozenset(reserved)  # names that later values will carry
        self._next: dict[str, int] = {}

    def fresh(self, stem: str) -> str:
        """A value name not in use yet: `stem`, or `stem.1`, `stem.2`, ..."""
        if stem not in self.values and stem not in self._reserved:
            return stem
        number = self._next.get(stem, 1)
        while f"{stem}.{number}" in self.values or f"{stem}.{number}" in self._reserved:
            number += 1
        self._next[stem] = number + 1
        return f"{stem}.{number}"

    def add(self, value: Value) -> str:
        """Declare `value` (a model input, or one whose name is fixed)."""
        self.values[value.name] = value
        return value.name

    def constant(self, stem: str, data: Array, source: str = "") -> str:
        """Declare a value known ahead of time and return its name."""
        array = np.ascontiguousarray(data)
        return self.add(Value(self.fresh(stem), tuple(array.shape), str(array.dtype), array, source))

    def copy_constant(self, name: str) -> None:
        """Make a constant the result of a node, as an output of the graph must be."""
        value = self.values[name]
        known = self.add(replace(value, name=self.fresh(f"{name}/known")))
        self.nodes = [
            replace(node, inputs=tuple(known if item == name else item for item in node.inputs))
            for node in self.nodes
        ]
        self.emit("Identity", [known], replace(value, data=None))

    def emit(
        self,
        op: str,
        inputs: Sequence[str],
        output: Value,
        attributes: Mapping[str, Attribute] | None = None,
        name: str = "",
    ) -> str:
        """Append a node that computes `output` and return the output's name."""
        self.add(output)
        self.nodes.append(Node(name or output.name, op, tuple(inputs), output.name, dict(attributes or {})))
        return output.name

    def finish(self, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """The graph of everything the outputs need: dead nodes and unused values are dropped."""
        needed = set(outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if node.output in needed:
                kept.append(node)
                needed.update(node.inputs)
        kept.reverse()
        needed.update(inputs)
        values = {name: value for name, value in self.values.items() if name in needed}
        return verify(Graph(self.name, tuple(kept), values, tuple(inputs), tuple(outputs)))


def verify(graph: Graph) -> Graph:
    """Check that every value is defined before its use and once only; return the graph.

    Raises ModelError, which here means a damaged model or a bug in a pass.
    """
    known = set(graph.inputs) | set(graph.constants)
    for node in graph.nodes:
        for name in node.inputs:
            if name not in known:
                raise ModelError(
                    f"model {graph.name!r}, node {node.name!r} ({node.op}): reads the value {name!r}, which "
                    "nothing before "
                    f"it computes; the graph is damaged or has a cycle; check it with `onnx.checker`"
                )
        if node.output in known:
            raise ModelError(
                f"model {graph.name!r}, node {node.name!r} ({node.op}): the value {node.output!r} is "
                "computed twice; "
                f"expected one node per value; check the model with `onnx.checker`"
            )
        known.add(node.output)
    for name in graph.outputs:
        if name not in known:
            raise ModelError(
                f"model {graph.name!r}: the output {name!r} is never computed; expected one of the graph's "
                "values; "
                f"check the model with `onnx.checker`"
            )
    return graph
