"""Functions of bytes as tables: what is computed of one 8-bit integer alone is looked up by it.

    QuantizeLinear -> DequantizeLinear -> Erf -> Add -> ... -> QuantizeLinear

between two 8-bit values of one size has 256 results, whatever stands between. They are computed by the numpy
reference. Only where a long function is among the operators: what few instructions do is faster computed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Tensor, placeholder
from cross.expression.language.terms import constant
from cross.expression.reference import evaluate
from toolkit.model.chains import LONG_FUNCTIONS
from toolkit.model.expressions import ELEMENTWISE, Operand, expression
from toolkit.model.graph import Array, Graph, GraphBuilder, Node, Value, computed_in

_BYTES: Final = ("int8", "uint8")
_VALUES: Final = 256


def tabulate(graph: Graph) -> Graph:
    """The physical graph with functions of bytes as a LookUp in their table."""
    sources = _sources(graph)
    producer = {node.output: node for node in graph.nodes}
    build = GraphBuilder(graph.name, graph.values.values())
    ends = _ends(graph, sources)
    for node in graph.nodes:
        cone = _cone(node, sources[node.output], producer) if node.output in ends else []
        if any(item.op in LONG_FUNCTIONS for item in cone):
            _look_up(graph, build, node, sources[node.output], cone)
        else:
            build.nodes.append(node)
    return build.finish(graph.inputs, graph.outputs)  # without what nobody reads any more


def _sources(graph: Graph) -> dict[str, str]:
    """The 8-bit value that each value is computed of, element by element, with constants of one element."""
    found = {
        name: name
        for name, value in graph.values.items()
        if value.dtype in _BYTES and value.data is None and name not in graph.constants
    }
    for node in graph.nodes:
        if node.op not in ELEMENTWISE and node.op != "Reshape":
            continue
        values = [graph.values[name] for name in node.inputs]
        if any(value.constant and value.elements != 1 for value in values):
            continue
        of = {found.get(value.name) for value in values if not value.constant}
        (source,) = of if len(of) == 1 else (None,)
        if source is not None and graph.values[source].elements == graph.values[node.output].elements:
            found[node.output] = source
    return found


def _ends(graph: Graph, sources: Mapping[str, str]) -> set[str]:
    """The 8-bit values that are read other than on the way to further ones of the same source."""
    readers = graph.consumers()
    left: set[str] = set()  # values that something reads which has another source, or none
    for node in reversed(graph.nodes):
        name, source = node.output, sources.get(node.output)
        outside = name in graph.outputs or any(
            sources.get(reader.output) != source
            or (reader.output in left and graph.values[reader.output].dtype not in _BYTES)
            for reader in readers[name]
        )
        if source is not None and outside:
            left.add(name)
    return {name for name in left if graph.values[name].dtype in _BYTES and sources[name] != name}


def _cone(last: Node, source: str, producer: Mapping[str, Node]) -> list[Node]:
    """The nodes between a value and the source that it is computed of, in their order, that of `producer`."""
    found, waiting = {last.output}, [last]
    while waiting:
        new = {name for name in waiting.pop().inputs if name != source and name in producer} - found
        found |= new
        waiting += (producer[name] for name in new)
    return [node for name, node in producer.items() if name in found]


def _look_up(graph: Graph, build: GraphBuilder, last: Node, source: str, cone: list[Node]) -> None:
    table = build.constant(f"{last.output}/table", _table(graph, source, cone))
    output, read = graph.values[last.output], graph.values[source]
    if read.shape == output.shape:
        build.emit("LookUp", (table, source), output, name=last.name)
        return
    shaped = Value(build.fresh(f"{last.output}/read"), output.shape, read.dtype)
    build.emit("LookUp", (table, build.emit("Reshape", (source,), shaped)), output, name=last.name)


def _table(graph: Graph, source: str, cone: list[Node]) -> Array:
    """The result for each value of the source's dtype, from the least on."""
    dtype = graph.values[source].dtype
    every = placeholder((_VALUES,), "in0", dtype)
    made: dict[str, Tensor] = {source: every}
    for node in cone:
        if node.op == "Reshape":
            made[node.output] = made[node.inputs[0]]
            continue
        operands: list[Operand] = []
        for name in node.inputs:
            data = graph.values[name].data
            number = None if data is None else data.reshape(-1)[0].item()
            operands.append(
                made[name] if number is None else constant(number, computed_in(graph.values[name].dtype))
            )
        made[node.output] = expression(node, operands)
    operator = Operator("table", (every,), made[cone[-1].output])
    least = np.iinfo(dtype).min
    return evaluate(operator, [np.arange(least, least + _VALUES).astype(dtype)])
