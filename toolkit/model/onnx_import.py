"""ONNX nodes to the tool's own: constants folded, shapes known, defaults written out.

One walk over the nodes that the outputs need, in order. A node whose inputs are all known is evaluated (shape
arithmetic and weights disappear here). Any other gets its output shapes from ONNX's shape inference, which is
given the known inputs as data; then its importer (importers.py, by name) emits canonical nodes. An operator
without an importer that ONNX defines by others (function_bodies.py) is replaced by those, which are walked in
the same way. What is not supported is noted, and refused together at the end.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from copy import copy
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from cross.expression.language.dtypes import DTYPES
from toolkit.errors import ModelError
from toolkit.model import counted
from toolkit.model.body_text import BodyRefused, attribute_of
from toolkit.model.bounds import interval_of
from toolkit.model.constants import RANDOM, evaluated, filled, ranged, shape_of
from toolkit.model.function_bodies import OnnxNode, body_of
from toolkit.model.graph import Array, Graph, GraphBuilder, Value
from toolkit.model.import_control import CONTROLS
from toolkit.model.importers import IMPORTERS
from toolkit.model.live_nodes import live, reads
from toolkit.model.onnx_file import (
    Shape,
    check_onnx,
    concrete_inputs,
    constant_inputs,
    opsets_of,
    read_onnx,
    weight,
)
from toolkit.model.onnx_types import dtype_of, is_concrete
from toolkit.model.onnx_weights import Initializer
from toolkit.model.packed_weights import quantized_weights
from toolkit.model.refusals import SUPPORTED_TEXT, NodeRefused, refusal
from toolkit.model.source import INTEGERS
from toolkit.model.walk_state import SHAPE_DATA_ELEMENTS, Compute, WalkState

RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
SHAPE_READERS = frozenset({"Shape", "Size", "EyeLike"})  # which need no data


def import_onnx(
    path: Path,
    shapes: Mapping[str, Shape],
    compute: Compute,
    memory_bytes: int | None = None,
    floats: Collection[str] = (),
    constants: Mapping[str, Sequence[float]] | None = None,
) -> Graph:
    """The graph of an ONNX file, before any pass; values keep their ONNX names.

    `compute` gives the outputs of a graph as this function makes them, for inputs: it folds constants. No
    value may be larger than `memory_bytes` (None: the memory of this machine). Quantized products named in
    `floats` are computed in floats. Inputs in `constants` always hold these numbers: they are none of
    the graph.

    Raises:
        ModelError: the file is damaged, or holds something that is not supported; the message names it.
    """
    model, weights = read_onnx(path)
    check_onnx(path, model)
    memory_bytes = memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    inputs = concrete_inputs(path, model, shapes, memory_bytes)
    known = constant_inputs(path, inputs, constants or {})
    inputs = {name: item for name, item in inputs.items() if name not in known}
    walk = _Walk(path, model, {**weights, **known}, inputs, compute, memory_bytes, floats)
    opsets = opsets_of(model)
    for position, node in enumerate(walk.nodes):
        walk.visit(OnnxNode(node, _node_name(node, position), opsets))
    return walk.finish()


def _node_name(node: Any, position: int) -> str:
    return str(node.name or next((item for item in node.output if item), f"#{position}"))


class _Walk(WalkState):
    """The walk: what becomes of each node."""

    def visit(self, node: OnnxNode) -> None:
        """Fold the node, import it, or walk the nodes that define it; note it if that is not supported."""
        proto = node.proto
        for item in proto.input:
            if item and item not in self.types and item not in self.lost:
                raise ModelError(
                    f"model {self.path}: node {node.name!r} ({node.operator}) reads {item!r}, which nothing "
                    "before it computes; "
                    "the nodes are out of order or some are missing; export the model again"
                )
        try:
            if self.lost.isdisjoint(reads(proto)):
                self._visit(node)
                return
            if not self._has_importer(node) and node.schema is None:
                raise self._unsupported(node)
        except NodeRefused as error:
            self.refused.append(error)
        for item in filter(None, proto.output):
            if item not in self.types:
                self.lost.add(item)
            elif item not in self.builder.values:
                kind = self.types[item].tensor_type.elem_type
                self.builder.add(Value(item, self._shape(item), dtype_of(kind), source=item))

    def inside(self, graph: Any, node: OnnxNode, inputs: Sequence[Value]) -> _Walk:
        """A walk for an inner graph of a node, in which all values from around are known."""
        inner = copy(self)
        inner.types, inner.intervals, inner.lost = dict(self.types), dict(self.intervals), set(self.lost)
        inner.read = {item for proto in graph.node for item in reads(proto)} | {
            item.name for item in graph.output
        }
        inner.builder = GraphBuilder(node.name, self.builder.values.values(), self.types)
        for value in inputs:
            inner.made(inner.builder.values[inner.builder.add(value)])
        for tensor in graph.initializer:
            inner.know(tensor.name, weight(self.path, Initializer(tensor, None)))
        return inner

    def finish(self) -> Graph:
        """The graph, with its outputs checked; an output that is a constant is copied.

        Raises:
            ModelError: nodes were refused, or an output is none of the graph's results.
        """
        if self.refused:
            raise refusal(str(self.path), self.refused)
        for name in self.outputs:
            if name in self.inputs:
                raise ModelError(
                    f"model {self.path}: the output {name!r} is an input, not the result of a node; expected "
                    "outputs that are computed; remove it from the model's outputs"
                )
            if name not in self.builder.values:
                raise ModelError(
                    f"model {self.path}: the output {name!r} is never computed; expected a value of the "
                    "graph; export the model again or choose another output"
                )
            value = self.builder.values[name]
            if value.constant and value.dtype not in DTYPES:
                raise ModelError(
                    f"model {self.path}: the output {name!r} is a constant {value.dtype}{list(value.shape)}; "
                    f"expected elements of {', '.join(DTYPES)}; remove it from the model's outputs"
                )
            if value.constant and value.elements:
                self.builder.copy_constant(name)
        counts = dict.fromkeys(
            self.builder.counts[name].by for name in self.outputs if name in self.builder.counts
        )
        return self.builder.finish(self.inputs, [*self.outputs, *counts])

    def _visit(self, node: OnnxNode) -> None:
        known = all(
            not item or (item in self.builder.values and self._data(item) is not None)
            for item in node.proto.input
        )
        counts = [item for item in reads(node.proto) if item in self.builder.counts]
        if counts and node.operator == "Shape":
            self._shape_of_counted(node)
            return
        if counts and node.operator in (*SHAPE_READERS, *CONTROLS):
            what = f"it reads {counts[0]!r}, whose size depends on data"
            remedy = "make that value an output of the model, and cut the model behind it"
            raise self.refuse(node, what, remedy)
        if (known and self._has_values(node)) or node.operator in SHAPE_READERS:
            self._fold(node)
            return
        if node.operator in CONTROLS:
            CONTROLS[node.operator](self, node)
            return
        if not self._has_importer(node):
            try:
                body = body_of(node, self.types)
            except BodyRefused as error:
                raise self.refuse(node, str(error), "export the model without it") from error
            if body is None:
                self._check_tensors(node)  # the better reason
                raise self._unsupported(node)
            self._walk_body(node, body)
            return
        self._infer(node)
        if not any(item in self.read and self._data(item) is None for item in node.proto.output):
            return
        more = any(item in self.read for item in node.proto.output[1:])
        if more and not IMPORTERS[node.proto.op_type].extra_outputs:
            body = body_of(node, self.types)
            if body is not None:
                self._walk_body(node, body)
                return
        count = counted.following(self._source(node, ""), self.builder.counts) if counts else None
        self._import(node, self.builder)
        for item in node.proto.output:
            if item in self.builder.values:
                self.made(self.builder.values[item])
                if count is not None:
                    self.builder.counts[item] = count
                self._bound(node, item)

    def _shape_of_counted(self, node: OnnxNode) -> None:
        """Shape of a value whose size depends on data."""
        name, output = node.proto.input[0], node.proto.output[0]
        bounds = {item.name: item.i for item in node.proto.attribute}
        shape, count = self._shape(name), self.builder.counts[name]
        start, stop, _ = slice(bounds.get("start", 0), bounds.get("end", len(shape))).indices(len(shape))
        if not start <= count.dimension < stop:
            self._fold(node)
            return
        value = Value(output, (stop - start,), "int64", source=output)
        count = replace(count, dimension=count.dimension - start)
        self.intervals[output] = counted.shape_of_counted(self.builder, value, count, shape[start:stop])
        self.made(value)

    def _bound(self, node: OnnxNode, output: str) -> None:
        """Note between what the elements of an output lie."""
        value = self.builder.values[output]
        if value.dtype not in INTEGERS or value.elements > SHAPE_DATA_ELEMENTS:
            return

        def evaluate(operands: Sequence[Array]) -> Array:
            return evaluated(str(self.path), node, dict(zip(names, operands, strict=True)))[0]

        names = [item for item in node.proto.input if item]
        found = interval_of(node, self.interval, evaluate, value.shape)
        if found is not None:
            self.intervals[output] = found

    def _has_values(self, node: OnnxNode) -> bool:
        """Whether ONNX says what the node gives for known inputs, and nothing else decides it."""
        inner = any(item.HasField("g") or item.graphs for item in node.proto.attribute)
        return node.schema is not None and node.proto.op_type not in RANDOM and not inner

    def _unsupported(self, node: OnnxNode) -> NodeRefused:
        what = "the operator is not supported"
        if node.operator in RANDOM:
            what = "it draws random numbers, so that no run repeats another"
        remedy = f"export the model with other operators, or cut it before this node; {SUPPORTED_TEXT}"
        return self.refuse(node, what, remedy)

    def _walk_body(self, node: OnnxNode, body: list[OnnxNode]) -> None:
        """Walk the nodes that define `node`, as far as its outputs need them."""
        kept = live(
            [inner.proto for inner in body], [item for item in node.proto.output if item in self.read]
        )
        self.read.update(item for proto in kept for item in reads(proto))
        for proto in kept:
            inner = OnnxNode(proto, node.name, body[0].opsets)
            count = len(self.refused)
            self.visit(inner)
            if len(self.refused) > count:
                error = self.refused[-1]
                where = f"{error.op} in the definition of {node.operator}"
                self.refused[-1] = NodeRefused(str(self.path), node.name, where, error.what, error.remedy)

    def _fold(self, node: OnnxNode) -> None:
        proto = node.proto
        arguments = [self._data(item) if item else None for item in proto.input]
        if node.operator in SHAPE_READERS:
            self._infer(node)
            kind = dtype_of(self.types[proto.output[0]].tensor_type.elem_type)
            results: list[Array] = [shape_of(node, self._shape(proto.input[0]), kind)]
        elif proto.op_type == "ConstantOfShape" and arguments[0] is not None:
            results = [filled(str(self.path), node, arguments[0])]
        elif node.operator == "Range":
            results = [ranged(str(self.path), node, [item for item in arguments if item is not None])]
        elif proto.op_type in RESHAPES and arguments[0] is not None:
            self._infer(node)
            results = [arguments[0].reshape(self._shape(proto.output[0]))]
        elif self._has_importer(node) and IMPORTERS[proto.op_type].folds:
            results = self._computed(node)
        else:
            results = self._evaluate(node)
        for item, data in zip(proto.output, results, strict=False):
            if item:
                self.know(item, data)
        if node.operator == "DequantizeLinear":
            made = self.builder.values[proto.output[0]]
            settings = (
                attribute_of(proto, key, default) for key, default in (("axis", 1), ("block_size", 0))
            )
            self.builder.add(replace(made, quantized=quantized_weights(arguments, *settings)))

    def _import(self, node: OnnxNode, build: GraphBuilder, unknown: str = "") -> None:
        """Emit the canonical nodes of an ONNX node as if the data of the operand `unknown` were not known."""
        IMPORTERS[node.proto.op_type].run(self._with_own_shape(node, unknown), build)

    def _computed(self, node: OnnxNode) -> list[Array]:
        """Run one node on known inputs as if its first one were an input of the model."""
        self._infer(node)
        first, *rest = dict.fromkeys(item for item in node.proto.input if item)
        values, data = self.builder.values, self._data(first)
        assert data is not None
        build = GraphBuilder(node.name, [replace(values[first], data=None), *(values[item] for item in rest)])
        self._import(node, build, unknown=first)
        output = node.proto.output[0]
        return [self.compute(build.finish([first], [output]), {first: data})[output]]

    def _evaluate(self, node: OnnxNode) -> list[Array]:
        """Run one node on known inputs through ONNX's reference evaluator."""
        for item, kind in self._inferred(node).items():
            if is_concrete(kind):
                self._check_size(
                    f"node {node.name!r} ({node.operator}): the constant {item!r}", kind, self.memory_bytes
                )
        feeds = {item: data for item in node.proto.input if item and (data := self._data(item)) is not None}
        return evaluated(str(self.path), node, feeds)
