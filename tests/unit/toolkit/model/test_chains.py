"""Chains through branches and reshapes, and in which shapes groups compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_models import model, node, random_inputs, save, worst_layer_error
from toolkit.model.chains import viewed
from toolkit.model.graph import Graph
from toolkit.model.load import load_model

RNG = np.random.default_rng(8)


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def loaded(tmp_path: Path, *arguments: Any, **settings: Any) -> Graph:
    """The fused graph, checked layer by layer."""
    proto = model(*arguments, **settings)
    graph = load_model(save(tmp_path, proto))
    worst, compared = worst_layer_error(graph, proto, random_inputs(graph))
    assert worst < 1e-5
    assert compared
    return graph


def members(graph: Graph) -> list[tuple[str, ...]]:
    return [group.nodes for group in graph.groups]


SHAPES = {"x": (6, 5)}
PRODUCT = node("MatMul", ["x", "w"], "a")
WEIGHTS = {"w": weight(5, 8), "b": weight(8), "half": np.float32(0.5), "one": np.float32(1.0)}


@pytest.mark.parametrize("first", ["product", "sigmoid"])
def test_a_branch_that_meets_again_joins(tmp_path: Path, first: str) -> None:
    """x * sigmoid(x), whichever operand comes first."""
    operands = ["a", "s"] if first == "product" else ["s", "a"]
    nodes = [PRODUCT, node("Sigmoid", ["a"], "s"), node("Mul", operands, "y")]
    graph = loaded(tmp_path, nodes, SHAPES, ["y"], {"w": WEIGHTS["w"]})
    assert members(graph) == [("node_a", "node_s", "node_y")]


def test_a_gelu_of_single_nodes_joins(tmp_path: Path) -> None:
    nodes = [
        PRODUCT,
        node("Add", ["b", "a"], "c"),
        node("Div", ["c", "one"], "d"),
        node("Erf", ["d"], "e"),
        node("Add", ["e", "one"], "f"),
        node("Mul", ["c", "f"], "g"),
        node("Mul", ["g", "half"], "h"),
        node("MatMul", ["h", "v"], "y"),
    ]
    graph = loaded(tmp_path, nodes, SHAPES, ["y"], {**WEIGHTS, "v": weight(8, 3)})
    assert len(graph.groups) == 2


@pytest.mark.parametrize("reader", ["output", "node"])
def test_a_branch_that_others_read_stays_apart(tmp_path: Path, reader: str) -> None:
    nodes = [PRODUCT, node("Sigmoid", ["a"], "s"), node("Mul", ["a", "s"], "y")]
    outputs = ["y", "s"]
    if reader == "node":
        nodes, outputs = [*nodes, node("Softmax", ["s"], "z")], ["y", "z"]
    graph = loaded(tmp_path, nodes, SHAPES, outputs, {"w": WEIGHTS["w"]})
    assert members(graph)[0] == ("node_a",)


def test_bias_and_residual_join_through_a_reshape(tmp_path: Path) -> None:
    """As in a transformer: the product is of matrices, what follows is written per batch and token."""
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("Add", ["b", "a"], "c"),
        node("Add", ["c", "r"], "d"),
        node("Mul", ["d", "half"], "y"),
    ]
    graph = loaded(tmp_path, nodes, {"x": (2, 3, 5), "r": (2, 3, 8)}, ["y"], WEIGHTS)
    assert members(graph) == [("node_a", "node_c", "node_d", "node_y")]
    assert [item.shape for item in graph.groups[0].operator.inputs] == [(6, 5), (5, 8), (8,), (6, 8)]


def test_an_operand_that_repeats_otherwise_stays_behind_the_reshape(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], "a"), node("Add", ["a", "r"], "y")]
    graph = loaded(tmp_path, nodes, {"x": (2, 3, 5), "r": (3, 1)}, ["y"], {"w": WEIGHTS["w"]})
    assert members(graph) == [("node_a",), ("node_y",)]


def test_one_value_in_two_shapes(tmp_path: Path) -> None:
    """The image is the convolution's input and its residual, whose dimensions are split into phases."""
    nodes = [node("ConvTranspose", ["x", "w"], "a", pads=[1] * 4), node("Add", ["a", "x"], "y")]
    graph = loaded(tmp_path, nodes, {"x": (1, 16, 3, 4)}, ["y"], {"w": weight(16, 16, 3, 3)})
    (group,) = [item for item in graph.groups if item.operator.name == "convtranspose"]
    assert len(set(group.inputs)) == len(group.inputs) - 1


def test_a_comparison_of_a_smaller_shape_keeps_its_dimensions(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], "r"),
        node("Less", ["m", "zero"], "c"),
        node("Where", ["c", "r", "x"], "y"),
    ]
    shapes = {"x": (2, 3, 4), "m": (1, 3, 1)}
    graph = loaded(tmp_path, nodes, shapes, ["y"], {"zero": np.float32(0.0)})
    assert graph.groups[-1].operator.output.shape == (2, 3, 4)


def test_long_functions_behind_few_channels_are_a_pass_of_their_own(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], "a"), node("Relu", ["a"], "b"), node("Tanh", ["b"], "y")]
    for channels, groups in ((3, 3), (16, 2)):
        graph = loaded(tmp_path, nodes, {"x": (1, 4, 5, 5)}, ["y"], {"w": weight(channels, 4, 1, 1)})
        assert len(graph.groups) == groups


@pytest.mark.parametrize(
    ("kernel", "inputs", "step", "groups"),
    [
        (1, 12, 2, 1),  # a pass of its own would be as long as a convolution of 1x1
        (3, 6, 2, 1),  # few channels
        (3, 12, 2, 2),  # vectors of channels are transformed
        (1, 12, 8, 2),  # every cache line is read for one or two elements
    ],
)
def test_convolutions_read_single_elements_where_they_are(
    tmp_path: Path, kernel: int, inputs: int, step: int, groups: int
) -> None:
    nodes = [
        node("Conv", ["x", "v"], "t"),
        node("Slice", ["t", "start", "end", "axis", "step"], "s"),
        node("Conv", ["s", "w"], "a", pads=[kernel // 2] * 4, kernel_shape=[kernel] * 2),
        node("Relu", ["a"], "y"),
    ]
    numbers = {"start": 1, "end": 1 + inputs * step, "axis": 1, "step": step}
    weights = {name: np.array([value]) for name, value in numbers.items()}
    weights["w"] = weight(5, inputs, kernel, kernel)
    weights["v"] = weight(1 + inputs * step, 8, 1, 1)
    graph = loaded(tmp_path, nodes, {"x": (1, 8, 5, 7)}, ["y"], weights)
    assert [group.operator.name for group in graph.groups].count("slice") == groups - 1
    assert sum("node_a" in group.nodes for group in graph.groups) == 1


def test_images_whose_channels_come_first_are_read_as_they_are(tmp_path: Path) -> None:
    for inputs, names in ((3, ["conv"]), (16, ["transpose", "conv"])):
        nodes = [node("Conv", ["x", "w"], "y", pads=[1, 1, 1, 1], strides=[2, 2])]
        graph = loaded(tmp_path, nodes, {"x": (2, inputs, 9, 7)}, ["y"], {"w": weight(8, inputs, 3, 3)})
        assert [group.operator.name for group in graph.groups][: len(names)] == names


@pytest.mark.parametrize(
    ("case", "moved"),
    [
        ("queries", 0),
        ("columns", 1),
        ("second operand", 0),
        ("read twice", 1),
        ("an output", 1),
        ("reshaped", 1),
    ],
)
def test_products_read_rows_where_they_are(tmp_path: Path, case: str, moved: int) -> None:
    """As an attention takes its queries and values, [1, tokens, heads, channels], head by head."""
    permutation = [0, 2, 3, 1] if case == "columns" else [0, 2, 1, 3]
    nodes = [node("Transpose", ["x"], "t", perm=permutation), node("MatMul", ["t", "k"], "y")]
    keys, outputs = {"columns": (1, 4, 6, 5), "second operand": (1, 4, 3, 6)}.get(case, (1, 4, 8, 5)), ["y"]
    if case == "second operand":
        nodes[1] = node("MatMul", ["k", "t"], "y")
    elif case == "read twice":
        nodes.append(node("MatMul", ["t", "k"], "z"))
        outputs = ["y", "z"]
    elif case == "an output":
        outputs = ["t", "y"]
    elif case == "reshaped":  # across the dimensions that were moved
        nodes[1:] = [node("Reshape", ["t", "rows"], "r"), node("MatMul", ["r", "k"], "y")]
        keys = (8, 5)
    graph = loaded(tmp_path, nodes, {"x": (1, 6, 4, 8), "k": keys}, outputs, {"rows": np.array([24, 8])})
    assert sum(group.operator.name == "transpose" for group in graph.groups) == moved


def test_views_in_the_shape_of_an_anchor() -> None:
    assert viewed((1, 8, 4), (1, 8, 4), (8, 4)) == (8, 4)
    assert viewed((1, 1, 4), (1, 8, 4), (8, 4)) == (4,)
    assert viewed((), (1, 8, 4), (8, 4)) == (1,)
    assert viewed((8, 1), (1, 8, 4), (8, 4)) is None
    assert viewed((4,), (2, 4), (4, 2)) is None
