"""Networks of 8 bits in three exporters' forms, layer by layer against onnxruntime, here in floats."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from benchmarks.integer_steps import PRODUCTS, layers, onnxruntime_values
from benchmarks.networks import write
from benchmarks.networks.quantized import SCHEMES, quantize_as
from tests.onnx_models import random_inputs, save
from tests.quick import others_slow
from tests.unit.toolkit.model.test_quantized import float_model
from tests.whole_models import run_generated
from toolkit.model.graph import Graph
from toolkit.model.load import load_model

EXACT = 0.9999  # share of the elements of products and pools that are not a step away


def check(path: Path) -> Graph:
    graph, proto = load_model(path), onnx.load(str(path))
    compared = steps = elements = 0
    for operator, found, wanted in layers(graph, proto, random_inputs(graph)):
        compared += 1
        if found.dtype.kind == "f":
            assert np.abs(found - wanted).max() <= 2e-5 * np.abs(wanted).max(), operator
            continue
        assert found.dtype == wanted.dtype
        off = np.abs(found.astype(int) - wanted.astype(int))
        assert off.max() <= 1, operator
        if operator in PRODUCTS:
            steps, elements = steps + int(off.sum()), elements + off.size
    assert 2 * compared > len(graph.groups) and steps <= (1 - EXACT) * elements + 1
    return graph


def products_of_floats(graph: Graph) -> list[str]:
    return [
        node.name
        for node in graph.nodes
        if node.op in ("Conv", "MatMul")
        and graph.values[node.inputs[1]].constant  # those of two computed operands are exact in floats
        and any("float" in graph.values[name].dtype for name in node.inputs[:2])
    ]


@pytest.mark.parametrize("exporter", others_slow(SCHEMES, "tensorflow"))
def test_three_exporters(exporter: str, tmp_path: Path) -> None:
    source = save(tmp_path, float_model(np.random.default_rng(3)), "float.onnx")
    graph = check(quantize_as(exporter, source, tmp_path / "q.onnx", 0))
    assert not products_of_floats(graph)
    kinds = {node.op_type for node in onnx.load(str(tmp_path / "q.onnx")).graph.node}
    assert ("QLinearConv" in kinds) == (exporter == "qoperator")
    assert sum(node.op == "Transpose" for node in graph.nodes) <= 1, "one, to channels last"
    inputs = random_inputs(graph)
    (found,) = run_generated([(graph, inputs)], tmp_path)
    wanted = onnxruntime_values(onnx.load(str(tmp_path / "q.onnx")), inputs, ["y"])["y"]
    assert np.abs(found["y"] - wanted).max() <= np.abs(wanted).max() / 50


@pytest.mark.slow
@pytest.mark.parametrize(
    ("network", "size", "exporter"),
    [("mobilenet_v2", 32, "pytorch"), ("bert", 16, "onnxruntime")],
)
def test_whole_networks(network: str, size: int, exporter: str, tmp_path: Path) -> None:
    source = write(network, tmp_path / "float.onnx", 0, size)
    graph = check(quantize_as(exporter, source, tmp_path / "q.onnx", 0))
    assert not products_of_floats(graph)


def test_a_bias_of_another_scale_is_added_as_it_is(tmp_path: Path) -> None:
    """onnxruntime 24711: fused as if its scale were that of the products, it would give something else."""
    source = save(tmp_path, float_model(np.random.default_rng(3)), "float.onnx")
    proto = onnx.load(str(quantize_as("onnxruntime", source, tmp_path / "q.onnx", 0)))
    integers = {item.name for item in proto.graph.initializer if item.data_type == onnx.TensorProto.INT32}
    biases = [node.input[1] for node in proto.graph.node if set(node.input) & integers]
    scale = next(item for item in proto.graph.initializer if item.name == biases[0])
    scale.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(scale) * np.float32(3), scale.name))
    graph = check(save(tmp_path, proto, "scaled.onnx"))
    assert not products_of_floats(graph)
