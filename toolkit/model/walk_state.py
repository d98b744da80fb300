"""What the walk over a model (onnx_import.py) knows so far: types, data, bounds, and what it refused."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from msgspec.structs import replace

from toolkit.errors import ModelError
from toolkit.model.bounds import Interval
from toolkit.model.constants import MAX_CONSTANT_BYTES
from toolkit.model.function_bodies import OnnxNode, in_training
from toolkit.model.graph import Array, Graph, GraphBuilder, Value
from toolkit.model.importers import IMPORTERS
from toolkit.model.live_nodes import live, reads
from toolkit.model.onnx_file import STRING, Shape, check_size, item_bytes, opsets_of
from toolkit.model.onnx_types import dtype_of, inferred, is_concrete, shape_of_type
from toolkit.model.quantized_groups import with_integer_groups
from toolkit.model.refusals import TENSORS_ONLY, NodeRefused
from toolkit.model.source import Operand, Source

# operands longer than this never steer shape inference; passing weights would only cost time
SHAPE_DATA_ELEMENTS = 64

Compute = Callable[[Graph, Mapping[str, Array]], Mapping[str, Array]]


class WalkState:
    """The types and the data known so far."""

    def __init__(
        self,
        path: Path,
        model: Any,
        weights: Mapping[str, Array],
        inputs: Mapping[str, tuple[Shape, int]],
        compute: Compute,
        memory_bytes: int,
        floats: Collection[str] = (),
    ) -> None:
        import onnx

        self.path = path
        self.memory_bytes = memory_bytes
        self.compute = compute
        self.types: dict[str, Any] = {}
        self.refused: list[NodeRefused] = []
        self.lost: set[str] = set()  # values of refused nodes, whose types are not known
        self.intervals: dict[str, Interval] = {}  # of computed integers
        self.inputs = tuple(inputs)
        self.outputs = tuple(dict.fromkeys(item.name for item in model.graph.output))
        nodes = live(model.graph.node, self.outputs)
        self.nodes = with_integer_groups(nodes, self.outputs, weights, opsets_of(model).get("", 0), floats)
        # a further output that nobody reads (Dropout's mask) need not be supported
        self.read = {item for node in self.nodes for item in reads(node)} | set(self.outputs)
        self.builder = GraphBuilder(
            model.graph.name or path.stem,
            reserved=[item for node in model.graph.node for item in node.output],
        )
        for name, (shape, kind) in inputs.items():
            self.types[name] = onnx.helper.make_tensor_type_proto(kind, list(shape))
            self.builder.add(Value(name, shape, dtype_of(kind), source=name))
        for name, data in weights.items():
            self.know(name, data)

    def made(self, value: Value) -> None:
        """Note the type of a value that a node computes."""
        import onnx

        kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
        self.types[value.name] = onnx.helper.make_tensor_type_proto(kind, list(value.shape))
        self._check_size(f"the value {value.name!r}", self.types[value.name], self.memory_bytes)

    def refuse(self, node: OnnxNode, what: str, remedy: str) -> NodeRefused:
        """The error for a node."""
        return NodeRefused(str(self.path), node.name, node.operator, what, remedy)

    def interval(self, name: str) -> Interval | None:
        """Between what the elements of a value lie that sizes may be computed from, if that is known."""
        data = self._data(name)
        if data is None or data.size > SHAPE_DATA_ELEMENTS or data.dtype.kind not in "iu":
            return self.intervals.get(name)
        return Interval(data.astype(np.int64), data.astype(np.int64))

    def _data(self, name: str) -> Array | None:
        value = self.builder.values.get(name)
        return None if value is None else value.data

    def know(self, name: str, data: Array) -> None:
        """Note a constant."""
        import onnx

        if data.nbytes > MAX_CONSTANT_BYTES:
            raise ModelError(
                f"model {self.path}: the constant {name!r} of shape {list(data.shape)} takes {data.nbytes} "
                "bytes; expected "
                f"at most {MAX_CONSTANT_BYTES}"
            )
        kind = onnx.helper.np_dtype_to_tensor_dtype(data.dtype)
        self.types[name] = onnx.helper.make_tensor_type_proto(kind, list(data.shape))
        self.builder.add(Value(name, tuple(data.shape), str(data.dtype), data, name))

    def _has_importer(self, node: OnnxNode) -> bool:
        return node.operator in IMPORTERS and not in_training(node)

    def _has_shape(self, node: OnnxNode) -> bool:
        """Whether the importer finds the shape of the output where ONNX's shape inference does not."""
        return self._has_importer(node) and IMPORTERS[node.proto.op_type].shape is not None

    def _infer(self, node: OnnxNode) -> None:
        """Note the types of the node's outputs.

        Raises:
            NodeRefused: the size of one depends on data.
        """
        import onnx

        found = self._check_tensors(node)
        unknown = []
        for item in node.proto.output:
            kind = found.get(item)
            if kind is not None and not is_concrete(kind) and self._has_shape(node):
                kind = onnx.helper.make_tensor_type_proto(kind.tensor_type.elem_type, [])
            if kind is not None and is_concrete(kind):
                where = f"node {node.name!r} ({node.operator}): its output {item!r}"
                self._check_size(where, kind, self.memory_bytes)
                self.types[item] = kind
            elif item in self.read:
                unknown.append(item)
        if unknown:
            what = f"the size of its output {unknown[0]!r} depends on data"
            raise self.refuse(node, what, TENSORS_ONLY)
        self._add_empty(node)

    def _add_empty(self, node: OnnxNode) -> None:
        """Add the outputs without elements, which nothing computes.

        Where another size is negative the node is imported, so that its importer says why it cannot be.
        """
        typed = [item for item in node.proto.output if item and item in self.types]
        empty = [item for item in typed if min(self._shape(item), default=1) == 0]
        first = node.proto.output[0]
        if empty and first in self.read and self._has_shape(node):
            inferred_shape, own_shape = self._shape(first), self._with_own_shape(node).output.shape
            for item in empty:
                if self._shape(item) == inferred_shape:  # the places of maxima have the shape of these
                    self._reshape(item, own_shape)
        for item in empty:
            self.builder.add(Value(item, self._shape(item), dtype_of(self.types[item].tensor_type.elem_type)))

    def _with_own_shape(self, node: OnnxNode, unknown: str = "") -> Source:
        """The node as its importer reads it, the output's type noted in the importer's own shape if it has
        one, as if the data of the operand `unknown` were not known."""
        importer, source = IMPORTERS[node.proto.op_type], self._source(node, unknown)
        if importer.shape is None:
            return source
        self._reshape(source.output.name, importer.shape(source))
        return self._source(node, unknown)

    def _reshape(self, name: str, shape: Shape) -> None:
        import onnx

        kind = self.types[name].tensor_type.elem_type
        self.types[name] = onnx.helper.make_tensor_type_proto(kind, list(shape))

    def _check_tensors(self, node: OnnxNode) -> dict[str, Any]:
        """The types of the node's outputs, as `_inferred`.

        Raises:
            NodeRefused: one is no tensor, or one of strings.
        """
        if self._has_importer(node) and IMPORTERS[node.proto.op_type].like:
            return self._inferred_like(node, IMPORTERS[node.proto.op_type].like)
        found = self._inferred(node) if node.schema is not None else {}
        for item, kind in found.items():
            if kind.WhichOneof("value") not in ("tensor_type", None):
                raise self.refuse(node, f"its result {item!r} is no tensor", TENSORS_ONLY)
            if kind.tensor_type.elem_type == STRING:
                raise self.refuse(node, f"its result {item!r} is of strings", TENSORS_ONLY)
        return found

    def _inferred(self, node: OnnxNode) -> dict[str, Any]:
        """The types of the node's outputs, as far as ONNX's shape inference finds them."""
        import onnx

        data: dict[str, Any] = {}
        for item in node.proto.input:
            array = self._data(item) if item else None
            if array is not None and array.size <= SHAPE_DATA_ELEMENTS:
                data[item] = onnx.numpy_helper.from_array(array, item)
        return inferred(str(self.path), node, self.types, data)

    def _inferred_like(self, node: OnnxNode, like: str) -> dict[str, Any]:
        """The types of the outputs of an operator of ours (Importer.like)."""
        import onnx

        proto = onnx.NodeProto()
        proto.CopyFrom(node.proto)
        proto.op_type = like
        floating = replace(node, proto=proto)
        assert floating.schema is not None, like
        del proto.input[floating.schema.min_input :]
        floats, kind = onnx.TensorProto.FLOAT, self.types[proto.input[0]].tensor_type.elem_type
        result = floats if kind == floats else onnx.TensorProto.INT32
        types = {item: onnx.helper.make_tensor_type_proto(floats, self._shape(item)) for item in proto.input}
        found = inferred(str(self.path), floating, types, {})
        return {
            item: onnx.helper.make_tensor_type_proto(result, shape_of_type(kind))
            for item, kind in found.items()
        }

    def _check_size(self, where: str, kind: Any, most_bytes: int) -> None:
        size = item_bytes(kind.tensor_type.elem_type)
        check_size(f"model {self.path}: {where}", shape_of_type(kind), size, most_bytes)

    def _shape(self, name: str) -> Shape:
        return shape_of_type(self.types[name])

    def _source(self, node: OnnxNode, unknown: str) -> Source:
        import onnx

        def operand(item: str) -> Operand | None:
            if not item:
                return None
            data = None if item == unknown else self._data(item)
            dtype = dtype_of(self.types[item].tensor_type.elem_type)
            return Operand(item, self._shape(item), dtype, data, self.intervals.get(item))

        proto = node.proto
        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in proto.attribute}
        every = IMPORTERS[proto.op_type].extra_outputs
        outputs = tuple(
            operand(item) if item in self.types and (every or item in self.read) else None
            for item in proto.output
        )
        inputs = tuple(operand(item) for item in proto.input)
        return Source(str(self.path), node.name, proto.op_type, node.opset, attributes, inputs, outputs)
