"""ONNX's types: names of element types, and the shape inference of one node."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from toolkit.errors import ModelError
from toolkit.model.function_bodies import OnnxNode


def dtype_of(kind: int) -> str:
    """numpy's name of an ONNX element type; a name that nothing supports for one that numpy does not have."""
    import onnx

    try:
        return str(onnx.helper.tensor_dtype_to_np_dtype(kind))
    except KeyError:
        return f"ONNX type {kind}"


def is_concrete(kind: Any) -> bool:
    tensor = kind.tensor_type
    return bool(tensor.HasField("shape")) and all(dim.HasField("dim_value") for dim in tensor.shape.dim)


def shape_of_type(kind: Any) -> tuple[int, ...]:
    """The dimensions of a tensor's type; 0 for one that is not known."""
    return tuple(dim.dim_value for dim in kind.tensor_type.shape.dim)


def inferred(model: str, node: OnnxNode, known: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """The types of a node's outputs, as far as ONNX's shape inference finds them, from the types `known` and
    the inputs whose `data`, TensorProtos, are known.

    Raises:
        ModelError: the node does not fit its inputs.
    """
    import onnx

    types = {item: known[item] for item in node.proto.input if item}
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in node.opsets.items()]
    try:
        return dict(
            onnx.shape_inference.infer_node_outputs(
                node.schema, node.proto, types, dict(data), opset_imports=imports
            )
        )
    except (
        *(onnx.shape_inference.InferenceError, onnx.checker.ValidationError, UnicodeDecodeError),
        *(RuntimeError, KeyError, ValueError),
    ) as error:
        raise ModelError(
            f"model {model}: node {node.name!r} ({node.operator}) does not fit its inputs "
            f"{[list(shape_of_type(known[item])) for item in node.proto.input if item]}: "
            f"{' '.join(str(error).split())}; "
            "export the model again, or check the given shapes"
        ) from error
