"""Operators that stand for others: ONNX's own, com.microsoft's, and functions of the model itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper
from onnx.reference import ReferenceEvaluator

from tests.onnx_models import FLOAT, model, node, random_inputs, save
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

RNG = np.random.default_rng(0)


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def contributed(op: str, inputs: list[str], outputs: list[str], **attributes: Any) -> Any:
    return helper.make_node(op, inputs, outputs, domain="com.microsoft", **attributes)


CONTRIBUTED = {
    "gelu": (contributed("Gelu", ["x"], ["y"]), {}),
    "bias-gelu": (contributed("BiasGelu", ["x", "b"], ["y"]), {"b": weight(6)}),
    "fast-gelu": (contributed("FastGelu", ["x", "b"], ["y"]), {"b": weight(6)}),
    "quick-gelu": (contributed("QuickGelu", ["x"], ["y"], alpha=1.3), {}),
    "fused-matmul": (
        contributed("FusedMatMul", ["x", "w"], ["y"], transB=1, alpha=0.5),
        {"w": weight(2, 5, 6)},
    ),
    "skip-layer-normalization": (
        contributed("SkipLayerNormalization", ["x", "s", "g", "h", "b"], ["y", "", "", "sum"], epsilon=1e-3),
        {"s": weight(2, 4, 6), "g": weight(6), "h": weight(6), "b": weight(6)},
    ),
}


@pytest.mark.parametrize("name", CONTRIBUTED)
def test_contributed_operators_match_onnxruntime(name: str, tmp_path: Path) -> None:
    single, weights = CONTRIBUTED[name]
    outputs = [item for item in single.output if item]
    proto = model([single], {"x": (2, 4, 6)}, outputs, weights, 20, ["com.microsoft"])
    check_against_onnxruntime(proto, tmp_path)


@pytest.mark.parametrize("activation", ["Relu", "LeakyRelu", "Clip", "HardSigmoid"])
def test_fused_convolution_matches_onnxruntime(activation: str, tmp_path: Path) -> None:
    parameters = {"LeakyRelu": [0.3], "Clip": [-0.2, 0.4], "HardSigmoid": [0.3, 0.4]}.get(activation, [])
    given = {"activation_params": parameters} if parameters else {}
    fused = contributed(
        "FusedConv", ["x", "w", "b"], ["y"], activation=activation, pads=[1, 1, 1, 1], **given
    )
    weights = {"w": weight(4, 3, 3, 3), "b": weight(4)}
    proto = model([fused], {"x": (1, 3, 6, 6)}, ["y"], weights, domains=["com.microsoft"])
    check_against_onnxruntime(proto, tmp_path)


def check_against_onnxruntime(proto: Any, folder: Path) -> None:
    graph = load_model(save(folder, proto))
    inputs = random_inputs(graph)
    session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
    names = [item.name for item in proto.graph.output]
    found = run_reference(graph, inputs)
    for name, expected in zip(names, session.run(names, inputs), strict=True):
        np.testing.assert_allclose(found[name], expected, 1e-4, 1e-5)


def test_functions_of_the_model_are_put_in_place(tmp_path: Path) -> None:
    """A function with an attribute, called twice, and one within the other."""
    text = """
    <ir_version: 8, opset_import: ["" : 17, "own" : 1]>
    small (float[2, 3] x) => (float[2, 3] y) {
        a = own.Slope <slope = 0.5> (x)
        y = own.Twice (a)
    }
    <opset_import: ["" : 17], domain: "own"> Slope <slope> (x) => (y) { y = LeakyRelu <alpha = @slope> (x) }
    <opset_import: ["" : 17, "own" : 1], domain: "own"> Twice (x) => (y)
    { s = own.Slope <slope = 0.25> (x) y = Add (s, s) }
    """
    graph = load_model(save(tmp_path, onnx.parser.parse_model(text)))
    inputs = random_inputs(graph)
    leaky = np.where(inputs["x"] < 0, inputs["x"] * 0.125, inputs["x"])
    np.testing.assert_allclose(run_reference(graph, inputs)["y"], 2 * leaky, 1e-6)


def test_what_no_output_needs_is_not_looked_at(tmp_path: Path) -> None:
    nodes = [node("Relu", ["x"], "y"), node("Multinomial", ["x"], "z"), node("Relu", ["z"], "w")]
    proto = model(nodes, {"x": (2, 3)}, ["y"])
    graph = load_model(save(tmp_path, proto))
    assert [item.op for item in graph.nodes] == ["Relu"]


def test_further_outputs_come_from_the_definition(tmp_path: Path) -> None:
    """LayerNormalization has an importer; its inverse deviation is computed by ONNX's definition."""
    single = node("LayerNormalization", ["x", "s"], ["y", "", "deviation"], axis=1)
    proto = model([single], {"x": (2, 3, 4)}, ["y", "deviation"], {"s": weight(3, 4)})
    graph = load_model(save(tmp_path, proto))
    inputs = random_inputs(graph)
    found = run_reference(graph, inputs)
    for name, expected in zip(("y", "deviation"), ReferenceEvaluator(proto).run(None, inputs), strict=True):
        np.testing.assert_allclose(found[name], expected, 1e-4, 1e-5)


def test_a_constant_output_is_copied(tmp_path: Path) -> None:
    nodes = [node("Add", ["a", "b"], "c"), node("Add", ["x", "c"], "y")]
    proto = model(nodes, {"x": (2,)}, ["c", "y"], {"a": weight(2), "b": weight(2)})
    assert proto.graph.output[0].type.tensor_type.elem_type == FLOAT
    graph = load_model(save(tmp_path, proto))
    inputs = random_inputs(graph)
    found = run_reference(graph, inputs)
    expected = ReferenceEvaluator(proto).run(None, inputs)
    np.testing.assert_array_equal(found["c"], expected[0])
    np.testing.assert_allclose(found["y"], expected[1], 1e-6)
