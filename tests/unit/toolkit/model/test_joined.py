"""Concatenations whose operands are written where the whole lies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from tests.whole_models import run_generated
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.memory import plan_memory

RNG = np.random.default_rng(31)


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def checked(folder: Path, proto: Any) -> Graph:
    """The graph of a model, whose generated code computes what onnxruntime does."""
    graph = load_model(save(folder, proto))
    inputs = random_inputs(graph, RNG)
    wanted = onnxruntime_values(proto, inputs, list(graph.outputs))
    (got,) = run_generated([(graph, inputs)], folder)
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)
    return graph


def placed(graph: Graph) -> list[str]:
    return [group.operator.name for group in graph.groups if group.operator.destination is not None]


def copied(graph: Graph) -> int:
    return sum(group.operator.name in ("concat", "identity") for group in graph.groups)


IMAGE = {"x": (1, 8, 6, 6)}
WEIGHTS = {"w": weight(5, 8, 1, 1), "v": weight(12, 8, 3, 3), "u": weight(7, 24, 1, 1)}


def fire(*others: Any, operands: tuple[str, ...] = ("a", "b"), channels: int = 17) -> Any:
    """Convolutions of 5 and 12 channels that are joined, and a convolution of the whole."""
    nodes = [
        node("Conv", ["x", "w"], "p"),
        node("Relu", ["p"], "a"),
        node("Conv", ["x", "v"], "b", pads=[1, 1, 1, 1]),
        *others,
        node("Concat", list(operands), "joined", axis=1),
        node("Conv", ["joined", "u"], "y"),
    ]
    return model(nodes, IMAGE, ["y"], WEIGHTS | {"u": weight(7, channels, 1, 1)})


def test_convolutions_write_into_the_whole(tmp_path: Path) -> None:
    graph = checked(tmp_path, fire())
    assert (placed(graph), copied(graph)) == (["conv", "conv"], 0)
    plan = plan_memory(graph)
    assert len([life for life in plan.placements if life.value.startswith("joined")]) == 1


def test_what_is_read_elsewhere_is_copied_to_its_place(tmp_path: Path) -> None:
    nodes = [node("MaxPool", ["a"], "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    graph = checked(tmp_path, fire(*nodes, operands=("a", "m", "b"), channels=22))
    assert (sorted(placed(graph)), copied(graph)) == (["conv", "identity", "maxpool"], 1)


def test_one_value_twice_an_input_and_a_constant(tmp_path: Path) -> None:
    constant = {"k": weight(1, 2, 6, 6)}
    nodes = [
        node("Conv", ["x", "v"], "b", pads=[1, 1, 1, 1]),
        node("Sigmoid", ["x"], "s"),
        node("Concat", ["b", "x", "k", "s", "s"], "y", axis=1),
    ]
    few = checked(tmp_path, model(nodes, IMAGE, ["y"], WEIGHTS | constant))
    assert (placed(few), copied(few)) == ([], 1)  # 12 of 38 channels: one kernel copies all


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_every_axis_of_tokens(axis: int, tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "w"], "a"),
        node("Tanh", ["x"], "b"),
        node("Concat", ["a", "b"], "y", axis=axis),
    ]
    graph = checked(tmp_path, model(nodes, {"x": (3, 4, 5)}, ["y"], {"w": weight(5, 5)}))
    matrix_rows = axis == 1  # the product has one row for each token of all batches
    assert (len(placed(graph)), copied(graph)) == (2, int(matrix_rows))


def test_heads_are_joined_behind_a_reshape(tmp_path: Path) -> None:
    nodes = []
    for name, kernel in (("a", 1), ("b", 3)):
        nodes += [
            node("Conv", ["x", f"w{kernel}"], f"{name}c", pads=[kernel // 2] * 4),
            node("Transpose", [f"{name}c"], f"{name}t", perm=[0, 2, 3, 1]),
            node("Reshape", [f"{name}t", "shape"], name),
        ]
    nodes.append(node("Concat", ["a", "b"], "y", axis=1))
    weights = {
        "w1": weight(6, 8, 1, 1),
        "w3": weight(6, 8, 3, 3),
        "shape": np.array([1, -1, 3], np.int64),
    }
    graph = checked(tmp_path, model(nodes, IMAGE, ["y"], weights))
    assert (placed(graph), copied(graph)) == (["conv", "conv"], 0)


def test_a_concatenation_of_concatenations(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], "a"),
        node("Tanh", ["x"], "b"),
        node("Concat", ["a", "b"], "c", axis=1),
        node("Sigmoid", ["x"], "d"),
        node("Abs", ["x"], "e"),
        node("Neg", ["x"], "f"),
        node("Concat", ["c", "d", "e", "f"], "y", axis=1),
    ]
    graph = checked(tmp_path, model(nodes, IMAGE, ["y"], {}))
    assert len(placed(graph)) == 6
