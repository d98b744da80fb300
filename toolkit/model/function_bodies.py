"""Operators that are defined by other operators: what a node of one stands for. Start at `body_of`.

ONNX's schemas define many operators so (`onnx.defs`), some of them by the types and attributes of the node;
microsoft.py, quantized_bodies.py and training_bodies.py do for others. Functions of the model itself are
inlined when it is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from toolkit.model import microsoft, quantized_bodies, training_bodies
from toolkit.model.body_text import attribute_of, function_of

_BODIES = microsoft.BODIES | quantized_bodies.BODIES | training_bodies.BODIES


class OnnxNode(msgspec.Struct, frozen=True):
    """A node, the name that people know it by, and the version of each operator set (domain -> version)."""

    proto: Any
    name: str
    opsets: Mapping[str, int]

    @property
    def domain(self) -> str:
        return "" if self.proto.domain == "ai.onnx" else str(self.proto.domain)

    @property
    def operator(self) -> str:
        """The operator with its domain, for people."""
        return f"{self.domain}.{self.proto.op_type}" if self.domain else str(self.proto.op_type)

    @property
    def scope(self) -> str:
        """A name that no other node's values begin with."""
        return next(str(item) for item in self.proto.output if item)

    @property
    def opset(self) -> int:
        """The version of the operator set that the node is of; 0 where the model names none."""
        return self.opsets.get(self.domain, 0)

    @property
    def schema(self) -> Any | None:
        """ONNX's definition of the operator; None where it has none."""
        import onnx

        try:
            return onnx.defs.get_schema(self.proto.op_type, self.opset, self.domain)
        except onnx.defs.SchemaError:
            return None


def in_training(node: OnnxNode) -> bool:
    """Whether it is a batch normalization in training, which is defined by others."""
    return node.operator == "BatchNormalization" and bool(attribute_of(node.proto, "training_mode", 0))


def body_of(node: OnnxNode, types: Mapping[str, Any]) -> list[OnnxNode] | None:
    """The nodes that compute what `node` computes, from its inputs to its outputs; None for a primitive one.

    `types` has the onnx.TypeProto of each input. The nodes carry the name of `node`.
    """
    function = _function(node, types)
    if function is None:
        return None
    opsets = dict(node.opsets) | {entry.domain: entry.version for entry in function.opset_import}
    return [OnnxNode(proto, node.name, opsets) for proto in _instantiated(node, function)]


def _function(node: OnnxNode, types: Mapping[str, Any]) -> Any | None:
    """The onnx.FunctionProto that defines the node's operator."""
    import onnx

    if node.operator in _BODIES:
        return function_of(node.proto, types, _BODIES[node.operator])
    schema = node.schema
    if schema is None:
        return None
    if schema.has_function:
        version = _version(schema.function_opset_versions, node.opset)
        return onnx.FunctionProto.FromString(schema.get_function_with_opset_version(version))
    if not schema.has_context_dependent_function:
        return None
    version = _version(schema.context_dependent_function_opset_versions, node.opset)
    kinds = [types[item] if item else onnx.TypeProto() for item in node.proto.input]
    text = schema.get_context_dependent_function_with_opset_version(
        version, node.proto.SerializeToString(), [kind.SerializeToString() for kind in kinds]
    )
    return onnx.FunctionProto.FromString(text) if text else None


def _version(known: list[int], wanted: int) -> int:
    """The newest body that is not newer than the model, or the oldest there is."""
    return max((version for version in known if version <= wanted), default=min(known))


def _instantiated(node: OnnxNode, function: Any) -> list[Any]:
    """The function's nodes with the node's operands and attributes; inner values get new names."""
    import onnx

    proto = node.proto
    names = dict.fromkeys((*function.input, *function.output), "")
    names |= dict(zip(function.input, proto.input, strict=False))
    names |= {ours: theirs for ours, theirs in zip(function.output, proto.output, strict=False) if theirs}
    attributes = {item.name: item for item in function.attribute_proto}
    if (schema := node.schema) is not None:
        defaults = {key: item.default_value for key, item in schema.attributes.items()}
        attributes |= {key: item for key, item in defaults.items() if item.name}
    attributes |= {item.name: item for item in proto.attribute}
    made: list[Any] = []
    for inner in function.node:
        copy = onnx.NodeProto()
        copy.CopyFrom(inner)
        for item in inner.output:
            if not names.get(item):
                names[item] = f"{node.scope}/{item}" if item else ""
        rename(copy, names, attributes)
        made.append(copy)
    return made


def rename(proto: Any, names: Mapping[str, str], attributes: Mapping[str, Any]) -> None:
    """Replace the names that a node reads and writes, and the attributes that refer to the function's."""
    proto.input[:] = [names.get(item, item) for item in proto.input]
    proto.output[:] = [names.get(item, item) for item in proto.output]
    kept = []
    for attribute in proto.attribute:
        if attribute.ref_attr_name:
            given = attributes.get(attribute.ref_attr_name)
            if given is None:
                continue
            key = attribute.name
            attribute.CopyFrom(given)
            attribute.name = key
        for graph in (*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs):
            own = {item.name for item in (*graph.input, *graph.initializer)}
            own |= {item for inner in graph.node for item in inner.output}
            outer = {ours: theirs for ours, theirs in names.items() if ours not in own}
            for inner in graph.node:
                rename(inner, outer, attributes)
        kept.append(attribute.SerializeToString())
    del proto.attribute[:]
    for text in kept:
        proto.attribute.add().ParseFromString(text)
