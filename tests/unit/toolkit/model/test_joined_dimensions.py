"""Dimensions joined for CPUs and GPUs, where no window asks for them, and what the network computes then."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from boards.board import load
from boards.target import Target
from tests.onnx_models import evaluator_values, model, node, random_inputs, save, worst_layer_error
from toolkit.model.graph import Graph, Region
from toolkit.model.load import adapted, load_model
from toolkit.model.reference import run_reference

CPU, GPU = load("rpi3b").target(None), load("jetson-nano").target("gpu")


def network() -> Any:
    """A window, two pointwise convolutions, one with a residual sum, and a concatenation of both."""
    rng = np.random.default_rng(31)
    shapes = {"w0": (8, 3, 3, 3), "w1": (8, 8, 1, 1), "w2": (8, 8, 1, 1)}
    weights = {name: rng.uniform(-1.0, 1.0, shape).astype(np.float32) for name, shape in shapes.items()}
    nodes = [
        node("Conv", ["x", "w0"], "a", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], "b"),
        node("Conv", ["b", "w1"], "c"),
        node("Add", ["c", "b"], "d"),
        node("Conv", ["d", "w2"], "e"),
        node("Concat", ["d", "e"], "y", axis=1),
    ]
    return model(nodes, {"x": (1, 3, 5, 7)}, ["y"], weights)


def written(graph: Graph) -> list[tuple[int, ...]]:
    return [group.operator.written for group in graph.groups if group.operator.name == "conv"]


def compared(tmp_path: Path, target: Target) -> Graph:
    """The network for a target; every layer is what ONNX says."""
    proto = network()
    graph = adapted(load_model(save(tmp_path, proto)), target)
    worst, layers = worst_layer_error(graph, proto, random_inputs(graph))
    assert worst < 1e-5 and layers
    return graph


def test_pointwise_convolutions_on_a_cpu_see_one_row_of_pixels(tmp_path: Path) -> None:
    """Also where they write a part of what is concatenated."""
    shapes = written(compared(tmp_path, CPU))
    assert shapes[0] == (1, 5, 7, 8)
    assert {shape[:2] for shape in shapes[1:]} == {(1, 35)}


def test_bodies_of_loops_are_changed_as_well(tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["" : 17]> m (float[2, 3, 4] x) => (float[2, 3, 4] y) {
        three = Constant <value = int64 {3}> ()
        go = Constant <value = bool {1}> ()
        y = Loop (three, go, x) <body = b (int64 i, bool g, float[2, 3, 4] s) =>
            (bool g2, float[2, 3, 4] s2) { g2 = Identity (g) t = Add (s, x) s2 = Softmax <axis = -1> (t) }>
    }"""
    proto = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    graph = adapted(load_model(save(tmp_path, proto)), CPU)
    bodies = [body for step in graph.steps if isinstance(step, Region) for body in step.control.bodies]
    groups = [group.operator for body in bodies for group in body.groups]
    assert [operator.output.shape for operator in groups if operator.name == "softmax"] == [(6, 4)]
    inputs = random_inputs(graph)
    want = evaluator_values(proto, inputs)["y"]
    np.testing.assert_allclose(run_reference(graph, inputs)["y"], want, rtol=1e-5)


def test_gpus_tile_both_dimensions(tmp_path: Path) -> None:
    assert {shape[:3] for shape in written(compared(tmp_path, GPU))} == {(1, 5, 7)}


@pytest.mark.parametrize("target", [CPU, GPU], ids=lambda target: target.kind)
@pytest.mark.parametrize(
    ("other", "joined"),
    [
        ((1,), (120,)),
        ((2, 3, 4, 5), (120,)),
        ((5,), (24, 5)),
        ((3, 1, 1), (2, 3, 20)),
        ((2, 1, 4, 1), (2, 3, 4, 5)),
    ],
)
def test_elementwise_operators_go_over_few_dimensions(
    other: tuple[int, ...], joined: tuple[int, ...], target: Target, tmp_path: Path
) -> None:
    """Whatever reads the same elements in the same order is one dimension."""
    nodes = [node("Tanh", ["x"], "a"), node("Mul", ["a", "x"], "b"), node("Add", ["b", "c"], "y")]
    constant = np.random.default_rng(7).uniform(-1.0, 1.0, other).astype(np.float32)
    proto = model(nodes, {"x": (2, 3, 4, 5)}, ["y"], {"c": constant})
    graph = adapted(load_model(save(tmp_path, proto)), target)
    assert graph.groups[-1].operator.output.shape == joined
    worst, _ = worst_layer_error(graph, proto, random_inputs(graph))
    assert worst < 1e-5


@pytest.mark.parametrize("target", [CPU, GPU], ids=lambda target: target.kind)
def test_a_part_is_joined_on_both_sides_of_its_rows(target: Target, tmp_path: Path) -> None:
    """What is concatenated along channels keeps those of an image apart from the next image's."""
    nodes = [
        node("Relu", ["x"], "a"),
        node("Tanh", ["x"], "b"),
        node("Concat", ["a", "b"], "y", axis=1),
    ]
    proto = model(nodes, {"x": (2, 3, 4)}, ["y"], {})
    graph = adapted(load_model(save(tmp_path, proto)), target)
    assert [group.operator.written for group in graph.groups] == [(2, 24), (2, 24)]
    worst, _ = worst_layer_error(graph, proto, random_inputs(graph))
    assert worst < 1e-5
