"""A quantized network layer by layer beside ONNX Runtime: how many steps results lie apart.

Each group of ours computes, by the numpy reference that its kernels are checked against, of what ONNX Runtime
computed before it, so that no difference adds to another. ONNX Runtime runs the file without optimizing.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from benchmarks.harness.text import aligned
from benchmarks.kernels.libraries.quantized_steps import moved_up
from cross.expression.reference import evaluate
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import run_steps

Array = NDArray[Any]
PRODUCTS = ("conv", "matmul", "maxpool", "sumpool", "concat")
"""Operators whose results are to be the same integers."""
WEIGHTS = {"QLinearConv": (3, 5), "QLinearMatMul": (3, 5), "ConvInteger": (1, 3), "MatMulInteger": (1, 3)}
"""Of operators on integers: which inputs are the weights and their zero points."""


def steps_table(path: Path, seed: int) -> str:
    """Rows of kinds of operators: results, elements, shares that are 0 steps and at most 1 step apart."""
    graph, proto = load_model(path), onnx.load(str(path))
    rng = np.random.default_rng(seed)
    inputs = {name: rng.normal(0, 1, graph.values[name].shape).astype(np.float32) for name in graph.inputs}
    found: dict[str, list[Array]] = {}
    for operator, ours, theirs in layers(graph, proto, inputs):
        if theirs.dtype.kind != "f":
            found.setdefault(operator, []).append(np.abs(ours.astype(int) - theirs.astype(int)).ravel())
    rows = [["", "results", "elements", "0 steps", "at most 1", "most"]]
    for operator, results in sorted(found.items()):
        off = np.concatenate(results)
        shares = [f"{share:.4%}" for share in (np.mean(off == 0), np.mean(off <= 1))]
        rows.append([operator, str(len(results)), str(off.size), *shares, str(off.max())])
    return "\n".join(aligned(rows))


def onnxruntime_values(proto: Any, inputs: Mapping[str, Array], names: Iterable[str]) -> dict[str, Array]:
    """Values of the model by name, intermediate ones too, as onnxruntime computes them without optimizing."""
    exposed = onnx.ModelProto()
    exposed.CopyFrom(proto)
    known = {item.name for item in exposed.graph.output}
    wanted = list(dict.fromkeys(names))
    if not wanted:
        return {}
    _with_unsigned_weights(exposed)
    for name in wanted:
        if name not in known:
            exposed.graph.output.append(helper.make_empty_tensor_value_info(name))
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(
        exposed.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    results = session.run(wanted, {item.name: inputs[item.name] for item in session.get_inputs()})
    return dict(zip(wanted, results, strict=True))


def _with_unsigned_weights(proto: Any) -> None:
    """int8 weights, with their zero points, as uint8 ones 128 higher: the same values.

    Sums of products of uint8 and int8 saturate in onnxruntime on x86-64 processors that have no VNNI, and the
    option that avoids it (session.x64quantprecision) is for sessions that optimize.
    """
    tensors = {item.name: item for item in proto.graph.initializer}
    places = [
        node.input[place]
        for node in proto.graph.node
        for place in WEIGHTS.get(node.op_type, ())
        if place < len(node.input)
    ]
    for tensor in (tensors[name] for name in dict.fromkeys(places) if name in tensors):
        array = numpy_helper.to_array(tensor)
        if array.dtype == np.int8:
            tensor.CopyFrom(numpy_helper.from_array(moved_up(array), tensor.name))


def by_onnxruntime(graph: Graph, proto: Any, inputs: dict[str, Array]) -> dict[str, Array]:
    """Values by the names that the tool has for them; a moved QuantizeLinear's are those behind its move."""
    known = {item for node in proto.graph.node for item in node.output}
    sources = {graph.values[group.output].source for group in graph.groups} - {""}
    # `y/0` is y in front of its moves; other parts of a name are of values that the model does not have
    names = {source: source if source in known else re.sub(r"/\d+$", "", source) for source in sources}
    names = {source: name for source, name in names.items() if name in known}
    values = onnxruntime_values(proto, inputs, names.values())
    moved = {source for source, name in names.items() if source != name and values[name].ndim == 4}
    return {
        source: values[name].transpose(0, 3, 1, 2) if source in moved else values[name]
        for source, name in names.items()
    }


def layers(graph: Graph, proto: Any, inputs: dict[str, Array]) -> Iterator[tuple[str, Array, Array]]:
    """Each group's operator, what it computes of onnxruntime's values, and what onnxruntime does."""
    expected = by_onnxruntime(graph, proto, inputs)
    groups = {group.output: group for group in graph.groups}
    for name, array in run_steps(graph, inputs, evaluate):
        value = graph.values[name]
        if name in groups and value.source in expected:
            wanted = expected[value.source]
            physical = wanted.transpose(value.permutation) if value.permutation else wanted
            yield groups[name].operator.name, array.copy(), physical.reshape(array.shape)
            array[...] = physical.reshape(array.shape)  # what the next group reads
