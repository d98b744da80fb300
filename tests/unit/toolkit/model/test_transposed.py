"""Transposed convolutions and resampling inside graphs: what they fuse with, and what they cost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boards.board import load
from cross.schedule.winograd.cpu import winograd_spaces
from tests.onnx_models import model, node, random_inputs, save, worst_layer_error
from toolkit.model.graph import Graph
from toolkit.model.load import load_model

RNG = np.random.default_rng(6)


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def loaded(tmp_path: Path, *arguments: Any, **settings: Any) -> Graph:
    """The fused graph, checked layer by layer."""
    proto = model(*arguments, **settings)
    graph = load_model(save(tmp_path, proto))
    worst, _ = worst_layer_error(graph, proto, random_inputs(graph))
    assert worst < 1e-5
    return graph


NORM = {"s": weight(4), "b": weight(4), "m": weight(4), "v": weight(4) ** 2 + np.float32(0.5)}


@pytest.mark.parametrize("group", [1, 2, 4])
def test_normalization_and_activation_join_the_convolution(tmp_path: Path, group: int) -> None:
    """As in DCGAN's generator: one group each, the normalization folded into weights."""
    nodes = [
        node(
            "ConvTranspose",
            ["x", "w", "c"],
            "a",
            strides=[2, 2],
            kernel_shape=[4, 4],
            pads=[1] * 4,
            group=group,
        ),
        node("BatchNormalization", ["a", "s", "b", "m", "v"], "n"),
        node("Relu", ["n"], "r"),
        node("Conv", ["r", "k"], "y"),
    ]
    weights = {"w": weight(4, 4 // group, 4, 4), "c": weight(4), "k": weight(2, 4, 1, 1), **NORM}
    graph = loaded(tmp_path, nodes, {"x": (1, 4, 3, 5)}, ["y"], weights)
    anchors = [group.operator.name for group in graph.groups]
    assert anchors == ["transpose", "convtranspose", "conv", "transpose"]
    assert graph.groups[1].nodes == ("node_a", "node_n", "node_r")
    assert not any(item.op == "Mul" for item in graph.nodes)


@pytest.mark.parametrize(("kernel", "cropped"), [(4, False), (3, True)])
def test_layers_of_a_generator_may_be_computed_by_winograd(
    tmp_path: Path, kernel: int, cropped: bool
) -> None:
    """With everything that is fused; a layer of few channels has a form of its own."""
    geometry = {"strides": [2, 2], "pads": [1] * 4, "kernel_shape": [kernel] * 2}
    nodes = [
        node("ConvTranspose", ["x", "w", "c"], "a", **geometry),
        node("Relu", ["a"], "r"),
        node("ConvTranspose", ["r", "v"], "b", **geometry),
        node("Tanh", ["b"], "y"),
    ]
    weights = {"w": weight(24, 32, kernel, kernel), "c": weight(32), "v": weight(32, 3, kernel, kernel)}
    graph = loaded(tmp_path, nodes, {"x": (1, 24, 8, 9)}, ["y"], weights)
    first, second = (item for item in graph.groups if item.operator.name == "convtranspose")
    assert first.nodes == (("node_a",) if cropped else ("node_a", "node_r"))
    target = load("host").target(None)
    found = {name: space.program for name, space in winograd_spaces(first.operator, target).items()}
    assert list(found) == ["F(2x2,2x2)", "F(4x4,2x2)"]
    assert all(program.inputs[0].shape == (1, 8, 9, 24) for program in found.values())  # padded inside
    assert winograd_spaces(second.operator, target) == {}


def test_residual_of_a_transposed_convolution(tmp_path: Path) -> None:
    nodes = [
        node("ConvTranspose", ["x", "w"], "a", strides=[2, 2], pads=[1] * 4, kernel_shape=[4, 4]),
        node("MaxPool", ["z"], "p", kernel_shape=[1, 1]),
        node("Add", ["p", "a"], "s"),
        node("Relu", ["s"], "r"),
        node("Mul", ["r", "f"], "y"),
    ]
    shapes = {"x": (2, 3, 2, 3), "z": (2, 4, 4, 6)}
    graph = loaded(tmp_path, nodes, shapes, ["y"], {"w": weight(3, 4, 4, 4), "f": weight(4, 1, 1)})
    (group,) = [item for item in graph.groups if item.operator.name == "convtranspose"]
    assert group.nodes == ("node_a", "node_s", "node_r", "node_y")


def test_a_cropped_output_is_a_slice_behind_the_bias(tmp_path: Path) -> None:
    nodes = [
        node("ConvTranspose", ["x", "w", "c"], "a", strides=[2, 2], pads=[1] * 4),
        node("Relu", ["a"], "y"),
    ]
    graph = loaded(tmp_path, nodes, {"x": (1, 3, 4, 4)}, ["y"], {"w": weight(3, 4, 3, 3), "c": weight(4)})
    assert [item.operator.name for item in graph.groups][1:3] == ["convtranspose", "slice"]


def test_a_single_pixel_is_a_matrix_product(tmp_path: Path) -> None:
    """DCGAN's first layer: no multiplication by padding."""
    nodes = [node("ConvTranspose", ["x", "w"], "a"), node("Relu", ["a"], "y")]
    graph = loaded(tmp_path, nodes, {"x": (1, 10, 1, 1)}, ["y"], {"w": weight(10, 6, 4, 4)})
    assert graph.groups[0].operator.name == "matmul"
    assert graph.groups[0].operator.flops == 2 * 10 * 6 * 16 + 6 * 16


def test_repeating_pixels_moves_them_once(tmp_path: Path) -> None:
    """As in YOLO's heads: nearest resize, then a concatenation, both in the order of the convolutions."""
    nodes = [
        node("Conv", ["x", "k"], "a"),
        node("Resize", ["a", "", "s"], "u", mode="nearest"),
        node("Concat", ["u", "z"], "c", axis=1),
        node("Conv", ["c", "l"], "y"),
    ]
    weights = {"k": weight(4, 3, 1, 1), "l": weight(2, 6, 1, 1), "s": np.asarray([1, 1, 2, 2], np.float32)}
    graph = loaded(tmp_path, nodes, {"x": (1, 3, 3, 4), "z": (1, 2, 6, 8)}, ["y"], weights)
    names = [group.operator.name for group in graph.groups]
    assert names.count("expand") == 1
    assert names.count("transpose") == 2  # one image and the result
