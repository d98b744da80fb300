"""Small ONNX models for tests, and what onnxruntime and ONNX's own evaluator, in float64, make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from benchmarks.integer_steps import onnxruntime_values
from cross.expression.reference import evaluate
from toolkit.model.graph import Graph, Value
from toolkit.model.reference import run_steps

Array = NDArray[Any]
FLOAT = onnx.TensorProto.FLOAT


def node(op: str, inputs: Sequence[str], outputs: Sequence[str] | str, **attributes: Any) -> Any:
    """One node, named after its first output."""
    names = [outputs] if isinstance(outputs, str) else list(outputs)
    return helper.make_node(op, list(inputs), names, name=f"node_{names[0]}", **attributes)


def model(
    nodes: Iterable[Any],
    inputs: Mapping[str, Sequence[int | str]],
    outputs: Sequence[str],
    weights: Mapping[str, Array] | None = None,
    opset: int = 17,
    domains: Sequence[str] = (),
) -> Any:
    """A float model; the outputs' shapes are inferred.

    With operators of other `domains` (in their version 1), outputs have the rank of the first input.
    """
    rank = len(next(iter(inputs.values())))
    unknown = [f"size{axis}" for axis in range(rank)] if domains else None
    graph = helper.make_graph(
        list(nodes),
        "small",
        [helper.make_tensor_value_info(name, FLOAT, list(shape)) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, FLOAT, unknown) for name in outputs],
        [numpy_helper.from_array(np.asarray(array), name) for name, array in (weights or {}).items()],
    )
    imports = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, 1) for domain in domains)]
    proto = helper.make_model(graph, opset_imports=imports, ir_version=8)
    return onnx.shape_inference.infer_shapes(proto)


def save(folder: Path, proto: Any, name: str = "small.onnx") -> Path:
    path = folder / name
    path.write_bytes(proto.SerializeToString())
    return path


def random_inputs(graph: Graph, seed: int = 0, low: float = -1.0, high: float = 1.0) -> dict[str, Array]:
    """Uniform random data for every input of the graph; integers are small indices."""
    rng = np.random.default_rng(seed)

    def drawn(value: Value) -> Array:
        if np.dtype(value.dtype).kind in "iu":
            return rng.integers(0, 100, value.shape).astype(value.dtype)
        return rng.uniform(low, high, value.shape).astype(np.float32)

    return {name: drawn(graph.values[name]) for name in graph.inputs}


def evaluator_values(proto: Any, inputs: Mapping[str, Array]) -> dict[str, Array]:
    """The model's outputs by name as ONNX's reference evaluator computes them, in float64."""
    double = onnx.ModelProto()
    double.CopyFrom(proto)
    graph = double.graph
    for item in (*graph.input, *graph.output, *graph.value_info):
        if item.type.tensor_type.elem_type == FLOAT:
            item.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    for tensor in graph.initializer:
        tensor.CopyFrom(numpy_helper.from_array(_doubled(numpy_helper.to_array(tensor)), tensor.name))
    with np.errstate(all="ignore"):
        results = ReferenceEvaluator(double).run(None, {key: _doubled(item) for key, item in inputs.items()})
    return {item.name: np.asarray(result) for item, result in zip(graph.output, results, strict=True)}


def _doubled(array: Array) -> Array:
    return array.astype(np.float64) if array.dtype == np.float32 else array


def worst_layer_error(graph: Graph, proto: Any, inputs: Mapping[str, Array]) -> tuple[float, int]:
    """Largest max |error| / max |reference| of all groups against onnxruntime, and how many were compared."""
    names = [graph.values[group.output].source for group in graph.groups]
    expected = onnxruntime_values(proto, inputs, [name for name in names if name])
    worst, compared = 0.0, 0
    cut = {graph.values[name].source for name in graph.counts}  # in onnxruntime: of another size
    groups = {group.output: group for group in graph.groups}
    for name, array in run_steps(graph, inputs, evaluate):
        if name not in groups or (source := graph.values[name].source) in ("", *cut):
            continue
        group, order = groups[name], graph.values[name].permutation
        got, want = array.transpose(np.argsort(order)) if order else array, expected[source]
        assert got.shape == want.shape, (group.name, got.shape, want.shape)
        assert np.isfinite(got).all(), group.name
        scale = max(float(np.abs(want).max()), 1e-30)
        worst = max(worst, float(np.abs(got - want).max()) / scale)
        compared += 1
    return worst, compared
