"""Concatenations and slices that move nothing: operands are written, and parts read, where the whole lies."""

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


def test_what_is_read_elsewhere_is_read_in_the_whole(tmp_path: Path) -> None:
    nodes = [node("MaxPool", ["a"], "m", kernel_shape=[3, 3], pads=[1, 1, 1, 1])]
    graph = checked(tmp_path, fire(*nodes, operands=("a", "m", "b"), channels=22))
    assert (sorted(placed(graph)), copied(graph)) == (["conv", "conv", "maxpool"], 0)


def test_one_value_twice_an_input_and_a_constant(tmp_path: Path) -> None:
    constant = {"k": weight(1, 2, 6, 6)}
    nodes = [
        node("Conv", ["x", "v"], "b", pads=[1, 1, 1, 1]),
        node("Sigmoid", ["x"], "s"),
        node("Concat", ["b", "x", "k", "s", "s"], "y", axis=1),
    ]
    graph = checked(tmp_path, model(nodes, IMAGE, ["y"], WEIGHTS | constant))
    assert sorted(placed(graph)) == ["conv", "identity", "identity", "identity", "transpose"]


def test_one_kernel_copies_all_where_little_can_be_written_in_place(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], "a"),
        node("Sigmoid", ["x"], "s"),
        node("Concat", ["a", "s", "s"], "y", axis=1),
    ]
    graph = checked(tmp_path, model(nodes, IMAGE, ["y"], WEIGHTS))
    assert (placed(graph), copied(graph)) == ([], 1)


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
    assert (len(placed(graph)), copied(graph)) == (5, 0)


@pytest.mark.parametrize("axes", [(1, 2), (2, 1)])
def test_one_value_is_joined_along_two_axes(axes: tuple[int, int], tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], "a"),
        node("Tanh", ["x"], "b"),
        node("Sigmoid", ["x"], "c"),
        node("Concat", ["a", "b"], "y", axis=axes[0]),
        node("Concat", ["a", "c"], "z", axis=axes[1]),
    ]
    graph = checked(tmp_path, model(nodes, {"x": (2, 3, 4)}, ["y", "z"], {}))
    assert (len(placed(graph)), copied(graph)) == (4, 1)


def test_a_copy_takes_no_name_of_the_model(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], "y/part0"),
        node("Tanh", ["x"], "b"),
        node("Concat", ["x", "b"], "y", axis=1),
        node("MatMul", ["y/part0", "w"], "z"),
    ]
    graph = checked(tmp_path, model(nodes, {"x": (2, 4)}, ["y", "z"], {"w": weight(4, 4)}))
    assert copied(graph) == 1


def test_a_dense_block(tmp_path: Path) -> None:
    nodes, before, weights = [node("Conv", ["x", "w0"], "c0")], 8, {"w0": weight(8, 8, 1, 1)}
    for number in range(1, 4):
        weights[f"w{number}"] = weight(4, before, 3, 3) / 6
        nodes += [
            node("Conv", [f"c{number - 1}", f"w{number}"], f"n{number}", pads=[1, 1, 1, 1]),
            node("Concat", [f"c{number - 1}", f"n{number}"], f"c{number}", axis=1),
        ]
        before += 4
    nodes.append(node("Conv", ["c3", "last"], "y"))
    graph = checked(tmp_path, model(nodes, IMAGE, ["y"], weights | {"last": weight(3, 20, 1, 1)}))
    assert (placed(graph), copied(graph)) == (["conv"] * 4, 0)
    assert len({graph.root(group.output) for group in graph.groups if group.operator.name == "conv"}) == 2


def test_slices_are_read_where_the_whole_lies(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "m"], "r"),
        node("Split", ["r"], ["p", "q"], axis=1),
        node("Conv", ["p", "k"], "a", pads=[1, 1, 1, 1]),
        node("Slice", ["q", "from", "to", "axes"], "s"),
        node("MaxPool", ["s"], "b", kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        node("Mul", ["p", "q"], "c"),
        node("Concat", ["a", "b", "c", "q"], "d", axis=1),
        node("Conv", ["d", "l"], "y"),
    ]
    weights = {
        "m": weight(8, 8, 1, 1),
        "k": weight(5, 4, 3, 3),
        "l": weight(3, 15, 1, 1),
        "from": np.array([1]),
        "to": np.array([3]),
        "axes": np.array([1]),
    }
    graph = checked(tmp_path, model(nodes, IMAGE, ["y"], weights))
    made = [group.operator.name for group in graph.groups]
    assert (made.count("slice"), copied(graph)) == (1, 0)  # q goes to its place in d
    assert len(placed(graph)) == 4


def test_slices_of_rows_and_of_a_value_under_another_shape(tmp_path: Path) -> None:
    nodes = [
        node("Tanh", ["x"], "t"),
        node("Reshape", ["t", "shape"], "h"),
        node("Split", ["h"], ["q", "k", "v"], axis=1),
        node("Squeeze", ["q", "one"], "q1"),
        node("Squeeze", ["k", "one"], "k1"),
        node("Squeeze", ["v", "one"], "v1"),
        node("Mul", ["q1", "k1"], "m"),
        node("MatMul", ["m", "w"], "n"),
        node("Add", ["n", "v1"], "y"),
    ]
    weights = {"shape": np.array([4, 3, 6]), "one": np.array([1]), "w": weight(6, 6)}
    graph = checked(tmp_path, model(nodes, {"x": (4, 18)}, ["y"], weights))
    assert not [group.nodes for group in graph.groups if group.nodes in (("node_q.1",), ("node_q.2",))]


def test_columns_of_a_single_element(tmp_path: Path) -> None:
    nodes = [
        node("Slice", ["x", "one", "two", "one"], "s"),
        node("Tanh", ["s"], "t"),
        node("Add", ["s", "k"], "u"),
        node("Concat", ["s", "k", "t", "u", "u", "x"], "y", axis=1),
    ]
    weights = {"one": np.array([1]), "two": np.array([2]), "k": weight(4, 1)}
    checked(tmp_path, model(nodes, {"x": (4, 3)}, ["y"], weights))
    nodes[-1] = node("Concat", ["t", "k", "u"], "y", axis=1)
    assert copied(checked(tmp_path, model(nodes, {"x": (4, 3)}, ["y"], weights))) == 1
