"""ONNX nodes to the tool's own: constants folded, shapes known, defaults written out.

One walk over the nodes in order does three things at each: a node whose inputs are all known is evaluated
(shape arithmetic and weights disappear here); any other gets its output shapes from ONNX's shape inference,
which is given the known inputs as data; then its importer (importers.py, by name) emits canonical nodes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from toolkit.errors import ModelError
from toolkit.model.graph import Array, Graph, GraphBuilder, Value
from toolkit.model.importers import IMPORTERS, supported_text
from toolkit.model.onnx_file import (
    Shape,
    check_onnx,
    check_size,
    concrete_inputs,
    item_bytes,
    opset_of,
    read_onnx,
)
from toolkit.model.source import Operand, Source

# operators that are evaluated when all their inputs are known, beyond those that have an importer
FOLDED_ONLY = frozenset(
    (
        *("Constant", "ConstantOfShape", "Shape", "Size", "Range", "ScatterND", "NonZero"),
        *("And", "Or", "Mod", "CumSum", "Trilu", "Round", "Sign", "ArgMax", "ArgMin"),
    )
)
RESHAPES = frozenset({"Reshape", "Flatten", "Squeeze", "Unsqueeze"})
MAX_CONSTANT_BYTES = 2 << 30
# operands longer than this never steer shape inference; passing weights would only cost time
SHAPE_DATA_ELEMENTS = 64


Compute = Callable[[Graph, Mapping[str, Array]], Mapping[str, Array]]


def import_onnx(
    path: Path, shapes: Mapping[str, Shape], compute: Compute, memory_bytes: int | None = None
) -> Graph:
    """The graph of an ONNX file, before any pass; values keep their ONNX names.

    `compute` gives the outputs of a graph as this function makes them, for inputs: it folds constants. No
    value may be larger than `memory_bytes` (None: the memory of this machine).

    Raises:
        ModelError: the file is damaged, or holds something that is not supported; the message names it.
    """
    model = read_onnx(path)
    _check_supported(path, model)
    check_onnx(path, model)
    memory_bytes = memory_bytes or os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    inputs = concrete_inputs(path, model, shapes, memory_bytes)
    walk = _Walk(path, model, inputs, compute, memory_bytes)
    for node in model.graph.node:
        walk.visit(node)
    return walk.finish()


def _check_supported(path: Path, model: Any) -> None:
    for position, node in enumerate(model.graph.node):
        known = node.domain in ("", "ai.onnx") and (node.op_type in IMPORTERS or node.op_type in FOLDED_ONLY)
        if not known:
            operator = f"{node.domain}.{node.op_type}" if node.domain else node.op_type
            raise ModelError(
                f"model {path}: node {_node_name(node, position)!r} is a {operator}, which is not "
                "supported; supported "
                f"are {supported_text()}, and on constants "
                f"{', '.join(sorted(FOLDED_ONLY - set(IMPORTERS)))}; "
                "export the model with other operators, or cut it before this node"
            )


def _node_name(node: Any, position: int) -> str:
    return str(node.name or (node.output[0] if node.output else f"#{position}"))


class _Walk:
    """State of the walk: the types and the data known so far."""

    def __init__(
        self,
        path: Path,
        model: Any,
        inputs: Mapping[str, tuple[Shape, int]],
        compute: Compute,
        memory_bytes: int,
    ) -> None:
        import onnx

        self.path = path
        self.memory_bytes = memory_bytes
        self.compute = compute
        self.model = model
        self.opset = opset_of(model)
        self.types: dict[str, Any] = {}
        self.inputs = tuple(inputs)
        # a further output that nobody reads (Dropout's mask) need not be supported
        self.read = {item for node in model.graph.node for item in node.input}
        self.read |= {item.name for item in model.graph.output}
        self.builder = GraphBuilder(
            model.graph.name or path.stem,
            reserved=[item for node in model.graph.node for item in node.output],
        )
        for name, (shape, kind) in inputs.items():
            self.types[name] = onnx.helper.make_tensor_type_proto(kind, list(shape))
            self.builder.add(Value(name, shape, _dtype(kind), source=name))
        for tensor in model.graph.initializer:
            self._know(tensor.name, self._weight(tensor))

    def visit(self, node: Any) -> None:
        """Fold the node or import it."""
        position = len(self.types)
        name = _node_name(node, position)
        for item in node.input:
            if item and item not in self.types:
                raise ModelError(
                    f"model {self.path}: node {name!r} ({node.op_type}) reads {item!r}, which nothing "
                    "before it computes; "
                    "the nodes are out of order or some are missing; export the model again"
                )
        known = all(
            not item or (item in self.builder.values and self._data(item) is not None) for item in node.input
        )
        if known or node.op_type == "Shape":
            self._fold(node, name)
            return
        self._infer(node, name)
        if not any(item in self.read for item in node.output):
            return
        if node.op_type not in IMPORTERS:
            unknown = next(item for item in node.input if item and self._data(item) is None)
            raise ModelError(
                f"model {self.path}: node {name!r} is a {node.op_type}, which is supported on constants "
                "only, but its "
                f"input {unknown!r} depends on the model's inputs; supported on any data are "
                f"{supported_text()}"
            )
        self._import(node, name, self.builder)

    def finish(self) -> Graph:
        """The graph, with its outputs checked."""
        outputs = list(dict.fromkeys(item.name for item in self.model.graph.output))
        for name in outputs:
            if name in self.inputs or self._data(name) is not None:
                raise ModelError(
                    f"model {self.path}: the output {name!r} is an input or a constant, not the result of a "
                    "node; expected "
                    "outputs that are computed; remove it from the model's outputs"
                )
            if name not in self.builder.values:
                raise ModelError(
                    f"model {self.path}: the output {name!r} is never computed as a float tensor; expected "
                    "a value of the "
                    "graph; export the model again or choose another output"
                )
        return self.builder.finish(self.inputs, outputs)

    def _data(self, name: str) -> Array | None:
        value = self.builder.values.get(name)
        return None if value is None else value.data

    def _know(self, name: str, data: Array) -> None:
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

    def _fold(self, node: Any, name: str) -> None:
        outputs = [item for item in node.output if item]
        arguments = [self._data(item) if item else None for item in node.input]
        if node.op_type == "Shape":
            results: list[Array] = [_shape_of(node, self._shape(node.input[0]))]
        elif node.op_type == "ConstantOfShape":
            results = [self._filled(node, name, arguments[0])]
        elif node.op_type in RESHAPES and arguments[0] is not None:
            self._infer(node, name)
            results = [arguments[0].reshape(self._shape(node.output[0]))]
        elif node.op_type in IMPORTERS and IMPORTERS[node.op_type].folds:
            results = self._computed(node, name)
        else:
            results = self._evaluate(node, name)
        for item, data in zip(outputs, results, strict=False):
            self._know(item, data)

    def _import(self, node: Any, name: str, build: GraphBuilder, unknown: str = "") -> None:
        """Emit the canonical nodes of an ONNX node as if the data of the operand `unknown` were not known."""
        import onnx

        importer, source = IMPORTERS[node.op_type], self._source(node, name, unknown)
        if importer.shape is not None:
            kind = self.types[source.output.name].tensor_type.elem_type
            shape = importer.shape(source)
            self.types[source.output.name] = onnx.helper.make_tensor_type_proto(kind, list(shape))
            source = self._source(node, name, unknown)
        importer.run(source, build)

    def _computed(self, node: Any, name: str) -> list[Array]:
        """Run one node on known inputs as if its first one were an input of the model."""
        self._infer(node, name)
        first, *rest = dict.fromkeys(item for item in node.input if item)
        values, data = self.builder.values, self._data(first)
        assert data is not None
        build = GraphBuilder(name, [replace(values[first], data=None), *(values[item] for item in rest)])
        self._import(node, name, build, unknown=first)
        output = node.output[0]
        return [self.compute(build.finish([first], [output]), {first: data})[output]]

    def _weight(self, tensor: Any) -> Array:
        import onnx

        try:
            return np.asarray(onnx.numpy_helper.to_array(tensor))
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(
                f"model {self.path}: the weight {tensor.name!r} does not hold what its shape "
                f"{list(tensor.dims)} and "
                f"element type {tensor.data_type} promise ({error}); the file is damaged; export it again"
            ) from error

    def _filled(self, node: Any, name: str, shape: Array | None) -> Array:
        import onnx

        assert shape is not None
        extents = [int(extent) for extent in shape.ravel().tolist()]
        fill = np.zeros(1, np.float32)
        for attribute in node.attribute:
            if attribute.name == "value":
                fill = onnx.numpy_helper.to_array(attribute.t)
        count = 1
        for extent in extents:
            count *= extent
        if count * fill.itemsize > MAX_CONSTANT_BYTES or min(extents, default=1) < 0:
            raise ModelError(
                f"model {self.path}: node {name!r} (ConstantOfShape) makes a constant of shape {extents}; "
                "expected no more "
                f"than {MAX_CONSTANT_BYTES} bytes"
            )
        return np.full(extents, fill.ravel()[0], fill.dtype)

    def _evaluate(self, node: Any, name: str) -> list[Array]:
        """Run one node on known inputs through ONNX's reference evaluator."""
        import onnx
        from onnx.reference import ReferenceEvaluator

        names = list(dict.fromkeys(item for item in node.input if item))
        feeds = {item: self._data(item) for item in names}
        outputs = [item for item in node.output if item]
        graph = onnx.helper.make_graph(
            [node],
            "constant",
            [onnx.helper.make_value_info(item, self.types[item]) for item in names],
            [onnx.helper.make_empty_tensor_value_info(item) for item in outputs],
        )
        model = onnx.helper.make_model(graph, opset_imports=self.model.opset_import)
        for item, kind in self._inferred(node, name).items():
            if _is_concrete(kind):
                self._check_size(
                    f"node {name!r} ({node.op_type}): the constant {item!r}", kind, self.memory_bytes
                )
        try:
            results = ReferenceEvaluator(model).run(None, feeds)
        except (
            *(RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, KeyError),
            *(MemoryError, OverflowError),
        ) as error:
            raise ModelError(
                f"model {self.path}: node {name!r} ({node.op_type}) works on constants, but evaluating it "
                f"fails: {error}; "
                "export the model again"
            ) from error
        return [np.asarray(result) for result in results]

    def _infer(self, node: Any, name: str) -> None:
        """Note the types of the node's outputs."""
        found = self._inferred(node, name)
        for item in node.output:
            kind = found.get(item)
            if kind is None or not _is_concrete(kind):
                if item not in self.read:
                    continue
                raise ModelError(
                    f"model {self.path}: node {name!r} ({node.op_type}): the shape of its output {item!r} "
                    "is not known "
                    "ahead of time; expected shapes that follow from the inputs' shapes and constants; give "
                    "--shape "
                    "for dynamic inputs, or export with fixed shapes"
                )
            self._check_size(f"node {name!r} ({node.op_type}): its output {item!r}", kind, self.memory_bytes)
            self.types[item] = kind

    def _inferred(self, node: Any, name: str) -> dict[str, Any]:
        """The types of the node's outputs, as far as ONNX's shape inference finds them."""
        import onnx

        data: dict[str, Any] = {}
        for item in node.input:
            array = self._data(item) if item else None
            if array is not None and array.size <= SHAPE_DATA_ELEMENTS:
                data[item] = onnx.numpy_helper.from_array(array, item)
        schema = onnx.defs.get_schema(node.op_type, self.opset, "")
        types = {item: self.types[item] for item in node.input if item}
        try:
            return dict(
                onnx.shape_inference.infer_node_outputs(
                    schema, node, types, data, opset_imports=list(self.model.opset_import)
                )
            )
        except (
            *(onnx.shape_inference.InferenceError, onnx.checker.ValidationError, UnicodeDecodeError),
            *(RuntimeError, KeyError, ValueError),
        ) as error:
            raise ModelError(
                f"model {self.path}: node {name!r} ({node.op_type}) does not fit its inputs "
                f"{[list(self._shape(item)) for item in node.input if item]}: "
                f"{' '.join(str(error).split())}; "
                "export the model again, or check the given shapes"
            ) from error

    def _check_size(self, where: str, kind: Any, most_bytes: int) -> None:
        tensor = kind.tensor_type
        shape = [dim.dim_value for dim in tensor.shape.dim]
        check_size(f"model {self.path}: {where}", shape, item_bytes(tensor.elem_type), most_bytes)

    def _shape(self, name: str) -> Shape:
        return tuple(dim.dim_value for dim in self.types[name].tensor_type.shape.dim)

    def _source(self, node: Any, name: str, unknown: str) -> Source:
        import onnx

        def operand(item: str) -> Operand | None:
            if not item:
                return None
            data = None if item == unknown else self._data(item)
            return Operand(item, self._shape(item), _dtype(self.types[item].tensor_type.elem_type), data)

        attributes = {item.name: onnx.helper.get_attribute_value(item) for item in node.attribute}
        every = IMPORTERS[node.op_type].extra_outputs
        outputs = tuple(
            operand(item) if item in self.types and (every or item in self.read) else None
            for item in node.output
        )
        return Source(
            str(self.path),
            name,
            node.op_type,
            self.opset,
            attributes,
            tuple(operand(i) for i in node.input),
            outputs,
        )


def _dtype(kind: int) -> str:
    """numpy's name of an ONNX element type; a name that nothing supports for one that numpy does not have."""
    import onnx

    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except KeyError:
        return f"ONNX type {kind}"


def _is_concrete(kind: Any) -> bool:
    tensor = kind.tensor_type
    return bool(tensor.HasField("shape")) and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def _shape_of(node: Any, shape: Shape) -> Array:
    bounds = {item.name: item.i for item in node.attribute}
    return np.asarray(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)
