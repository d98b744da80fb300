"""What follows from constants alone: one ONNX node on arrays, by ONNX's reference evaluator."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from toolkit.errors import ModelError
from toolkit.model.function_bodies import OnnxNode
from toolkit.model.graph import Array
from toolkit.model.refusals import TENSORS_ONLY, NodeRefused

MAX_CONSTANT_BYTES: Final = 2 << 30
DEQUANTIZE_OPSET: Final = 19  # the evaluator's first of an operator that computed the same before
EVALUATOR_ERRORS: Final = (
    *(RuntimeError, ValueError, TypeError, IndexError, NotImplementedError, KeyError),
    *(MemoryError, OverflowError, AssertionError, AttributeError),
)
RANDOM: Final = frozenset(
    ("Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike")
)


def run_node(node: Any, feeds: Mapping[str, Array], opsets: Mapping[str, int]) -> list[Any]:
    """The outputs of an onnx.NodeProto for its inputs. Raises whatever the evaluator raises."""
    import onnx
    from onnx.reference import ReferenceEvaluator

    kinds = {item: onnx.helper.np_dtype_to_tensor_dtype(array.dtype) for item, array in feeds.items()}
    graph = onnx.helper.make_graph(
        [node],
        "constant",
        [onnx.helper.make_tensor_value_info(item, kinds[item], array.shape) for item, array in feeds.items()],
        [onnx.helper.make_empty_tensor_value_info(item) for item in node.output if item],
    )
    opsets = dict(opsets)
    if node.op_type == "DequantizeLinear":
        opsets[""] = max(opsets.get("", 0), DEQUANTIZE_OPSET)
    imports = [onnx.helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    with np.errstate(all="ignore"):
        found: list[Any] = ReferenceEvaluator(onnx.helper.make_model(graph, opset_imports=imports)).run(
            None, dict(feeds)
        )
    return found


def evaluated(model: str, node: OnnxNode, feeds: Mapping[str, Array]) -> list[Array]:
    """The node's outputs for its inputs.

    Raises:
        ModelError: the evaluator cannot.
    """
    try:
        results = run_node(node.proto, feeds, node.opsets)
    except EVALUATOR_ERRORS as error:
        raise ModelError(
            f"model {model}: node {node.name!r} ({node.operator}) works on constants, but evaluating it "
            f"fails: {error}; export the model again"
        ) from error
    if not all(isinstance(result, (np.ndarray, np.generic)) for result in results):
        raise NodeRefused(model, node.name, node.operator, "its result is no tensor", TENSORS_ONLY)
    return [np.asarray(result) for result in results]


def filled(model: str, node: OnnxNode, shape: Array) -> Array:
    """ConstantOfShape.

    Raises:
        ModelError: the constant would be too large, or its shape is none.
    """
    extents = [int(extent) for extent in shape.ravel().tolist()]
    fill = fill_of(next((item.t for item in node.proto.attribute if item.name == "value"), None))
    if math.prod(extents) * fill.itemsize > MAX_CONSTANT_BYTES or min(extents, default=1) < 0:
        raise ModelError(
            f"model {model}: node {node.name!r} (ConstantOfShape) makes a constant of shape {extents}; "
            f"expected no more than {MAX_CONSTANT_BYTES} bytes"
        )
    return np.full(extents, fill.ravel()[0], fill.dtype)


def fill_of(value: Any | None) -> Array:
    """The one element of a ConstantOfShape, from its attribute `value`."""
    import onnx

    return np.zeros(1, np.float32) if value is None else onnx.numpy_helper.to_array(value)


def ranged(model: str, node: OnnxNode, bounds: Sequence[Array]) -> Array:
    """Range: from a start, in steps, up to a limit; each bound is one number, of any rank.

    Raises:
        ModelError: the constant would be too large, or its steps are 0.
    """
    start, limit, delta = (bound.reshape(()).item() for bound in bounds)
    count = math.ceil((limit - start) / delta) if delta else math.inf
    if not count * bounds[0].itemsize <= MAX_CONSTANT_BYTES:
        raise ModelError(
            f"model {model}: node {node.name!r} (Range) goes from {start} to {limit} in steps of {delta}; "
            f"expected no more than {MAX_CONSTANT_BYTES} bytes"
        )
    found: Array = (start + np.arange(max(count, 0)) * delta).astype(bounds[0].dtype)
    return found


def shape_of(node: OnnxNode, shape: tuple[int, ...], dtype: str) -> Array:
    """What Size, EyeLike and Shape (between its attributes `start` and `end`) give for data of a shape."""
    bounds = {item.name: item.i for item in node.proto.attribute}
    if node.proto.op_type == "Size":
        return np.asarray(math.prod(shape), np.int64)
    if node.proto.op_type == "EyeLike":
        return np.eye(shape[0], shape[1], bounds.get("k", 0), np.dtype(dtype))
    return np.asarray(shape[bounds.get("start", 0) : bounds.get("end", len(shape))], np.int64)
