"""A network as data: values, nodes and, once fused, steps.

`load.py` is the door. What enters is an ONNX file; what leaves is a `Graph` whose `steps` are the operators
to tune, in the order they run, and loops and choices over graphs of their own. Every pass in between is a
function Graph -> Graph that builds with a `GraphBuilder`.

A value's shape is its *physical* shape, row-major. After the layout pass it may hold another order of the
axes than the ONNX value it came from: `physical = source.transpose(permutation)`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cross.expression.language.dtypes import DTYPES
from cross.expression.language.operator import Operator
from toolkit.errors import ModelError

Array = NDArray[Any]

STORED: Final = {"bfloat16": "float32", "float16": "float32"}
"""Dtypes of values that are only stored, with what they are computed in; storing a value rounds it."""


def computed_in(dtype: str) -> str:
    """The dtype in which values of a dtype are computed."""
    return STORED.get(dtype, dtype)


Attribute = int | float | str | tuple[int, ...]


class QuantizedWeights(msgspec.Struct, frozen=True):
    """What a matrix [k, n] of float32 was made of: (integers [k, n] - zeros) * scales.

    scales and zeros, float32 [k / block, n], hold for `block` rows each.
    """

    integers: Array
    scales: Array
    zeros: Array

    @property
    def block(self) -> int:
        return int(self.integers.shape[0] // self.scales.shape[0])


class Value(msgspec.Struct, frozen=True, eq=False):
    """One tensor of the network, compared by identity; `data` is set when known ahead of time (a weight)."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    data: Array | None = None
    source: str = ""  # the ONNX value this one stands for; "" for one that the tool made
    permutation: tuple[int, ...] = ()  # physical = source.transpose(permutation)
    quantized: QuantizedWeights | None = None

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        return self.elements * np.dtype(self.dtype).itemsize

    @property
    def constant(self) -> bool:
        return self.data is not None


class Repeat(msgspec.Struct, frozen=True):
    """A graph that runs up to `count` times, each time on what the time before left.

    The body's inputs, and the node's, are first `carried` values: at first the node's inputs, then what the
    body made of them; then `scanned` ones: run i reads the slice i of the node's input along its first
    dimension; then others, the same every time. `results` names the body's values that become the carried
    values of the next run, then those that are stacked along a new first dimension. The node's outputs are
    the carried values after the last run, then the stacks.
    """

    body: Graph
    count: int
    carried: int
    scanned: int
    results: tuple[str, ...]
    backwards: tuple[bool, ...] = ()  # of the scanned inputs, then of the stacks: last slice first
    conditional: bool = False  # the first carried value is a bool; where it is false, no further run begins

    @property
    def bodies(self) -> tuple[Graph, ...]:
        return (self.body,)

    def with_bodies(self, bodies: Sequence[Graph]) -> Repeat:
        return replace(self, body=bodies[0])


class Choose(msgspec.Struct, frozen=True):
    """One of two graphs, by the node's first input, a bool; the others are the inputs of either graph.

    The outputs of either graph, in order, are the node's.
    """

    then: Graph
    otherwise: Graph

    @property
    def bodies(self) -> tuple[Graph, ...]:
        return (self.then, self.otherwise)

    def with_bodies(self, bodies: Sequence[Graph]) -> Choose:
        return Choose(*bodies)


Control = Repeat | Choose


class Node(msgspec.Struct, frozen=True):
    """One operation. `op` is the ONNX name; attributes are complete, defaults included.

    It has one output, or `more` where it has a `control`, whose graphs it runs. Nodes that come from one ONNX
    node share its `name`.
    """

    name: str
    op: str
    inputs: tuple[str, ...]
    output: str
    attributes: Mapping[str, Attribute] = {}
    control: Control | None = None
    more: tuple[str, ...] = ()

    @property
    def outputs(self) -> tuple[str, ...]:
        return (self.output, *self.more)

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


class Group(msgspec.Struct, frozen=True):
    """Nodes fused into one operator: an anchor and the elementwise chain behind it.

    `inputs` has one value name per `operator.inputs`, constants included; `nodes` names the ONNX nodes in
    it, the anchor's first.
    """

    name: str
    operator: Operator
    inputs: tuple[str, ...]
    output: str
    nodes: tuple[str, ...]


class Region(msgspec.Struct, frozen=True):
    """A node with a control, whose graphs have steps of their own."""

    name: str
    control: Control
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def scratch(self) -> str:
        """Stands for the memory of what its graphs compute; no value has such a name."""
        return f"\0{self.outputs[0]}"


class Count(msgspec.Struct, frozen=True):
    """How many slices of a value along a dimension count: what the int64 scalar `by` is in a run."""

    by: str
    dimension: int


class Graph(msgspec.Struct, frozen=True):
    """A network. `nodes` can be run in order, and so can the `steps` that they became by fusion; `aliases`
    maps a value to the one whose memory it shares. `counts` has the outputs whose size depends on data; what
    they are counted by is an output, too.
    """

    name: str
    nodes: tuple[Node, ...]
    values: Mapping[str, Value]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[Group | Region, ...] = ()
    aliases: Mapping[str, str] = {}
    counts: Mapping[str, Count] = {}

    @property
    def groups(self) -> tuple[Group, ...]:
        """The steps that are one operator."""
        return tuple(step for step in self.steps if isinstance(step, Group))

    def every_graph(self) -> Iterator[Graph]:
        """This graph, then those of its loops and choices, the graphs in them included."""
        yield self
        for step in self.steps:
            for body in step.control.bodies if isinstance(step, Region) else ():
                yield from body.every_graph()

    def every_group(self, times: int = 1) -> Iterator[tuple[Group, int]]:
        """All groups, those of inner graphs included, with how often they run at most."""
        for step in self.steps:
            if isinstance(step, Group):
                yield step, times
                continue
            count = step.control.count if isinstance(step.control, Repeat) else 1
            for body in step.control.bodies:
                yield from body.every_group(times * count)

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
            results = ", ".join(_value_text(self.values[name]) for name in node.outputs)
            lines.append(f"  {results} = {node.op}({inputs}){attributes}")
            for body in node.control.bodies if node.control else ():
                lines += [f"    {line}" for line in body.to_text().splitlines()]
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
        self.counts: dict[str, Count] = {}  # of values whose size depends on data
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
        """Declare `value` (a model input, or one whose name is fixed); one without elements is a constant.

        One with a negative size is none: the node that gives it is refused.
        """
        if value.data is None and value.dtype in DTYPES and min(value.shape, default=1) == 0:
            value = replace(value, data=np.empty(value.shape, value.dtype))
        self.values[value.name] = value
        return value.name

    def constant(self, stem: str, data: Array, source: str = "") -> str:
        """Declare a value known ahead of time and return its name; a view is kept as one, not copied."""
        array = np.asarray(data)
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
        """Append a node that computes `output`, unless that has no elements; return the output's name."""
        self.add(output)
        if not output.elements:
            return output.name
        self.nodes.append(Node(name or output.name, op, tuple(inputs), output.name, dict(attributes or {})))
        return output.name

    def control(
        self, control: Control, inputs: Sequence[str], outputs: Sequence[Value], name: str
    ) -> tuple[str, ...]:
        """Append a node that runs graphs, and return the names of its outputs."""
        first, *more = [self.add(output) for output in outputs]
        op = type(control).__name__
        self.nodes.append(Node(name, op, tuple(inputs), first, control=control, more=tuple(more)))
        return (first, *more)

    def finish(self, inputs: Sequence[str], outputs: Sequence[str]) -> Graph:
        """The graph of everything the outputs need: dead nodes and unused values are dropped."""
        needed = set(outputs)
        kept: list[Node] = []
        for node in reversed(self.nodes):
            if not needed.isdisjoint(node.outputs):
                needed.update(node.outputs)
                kept.append(node)
                needed.update(node.inputs)
        kept.reverse()
        needed.update(inputs)
        values = {name: value for name, value in self.values.items() if name in needed}
        counts = {name: count for name, count in self.counts.items() if name in outputs}
        return verify(Graph(self.name, tuple(kept), values, tuple(inputs), tuple(outputs), counts=counts))


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
        for name in node.outputs:
            if name in known:
                raise ModelError(
                    f"model {graph.name!r}, node {node.name!r} ({node.op}): the value {name!r} is computed "
                    "twice; expected one node per value; check the model with `onnx.checker`"
                )
            known.add(name)
    for name in graph.outputs:
        if name not in known:
            raise ModelError(
                f"model {graph.name!r}: the output {name!r} is never computed; expected one of the graph's "
                "values; "
                f"check the model with `onnx.checker`"
            )
    return graph
