"""Fusion: which nodes share an operator, in which order groups run, what is shared and what is copied."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from cross.expression.language.operator import Operator
from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save, worst_layer_error
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

RNG = np.random.default_rng(9)


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def loaded(tmp_path: Path, *arguments: Any, **settings: Any) -> Graph:
    """The fused graph, its outputs checked against onnxruntime."""
    proto = model(*arguments, **settings)
    graph = load_model(save(tmp_path, proto))
    inputs = random_inputs(graph)
    got, want = run_reference(graph, inputs), onnxruntime_values(proto, inputs, graph.outputs)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
    assert worst_layer_error(graph, proto, inputs)[0] < 1e-5
    return graph


def stages(operator: Operator) -> list[str]:
    return [stage.name for stage in operator.stages]


def members(graph: Graph) -> list[tuple[str, ...]]:
    return [group.nodes for group in graph.groups]


# channels-last inputs spare the transposes, so that only the nodes under test are left
IMAGE = [node("Transpose", ["x"], "i", perm=[0, 3, 1, 2])]


def test_padding_bias_activation_and_residual_join_the_convolution(tmp_path: Path) -> None:
    nodes = [
        *IMAGE,
        node("Conv", ["i", "w", "b"], "a", pads=[1, 1, 1, 1]),
        node("Add", ["a", "i"], "c"),
        node("Relu", ["c"], "d"),
        node("Transpose", ["d"], "y", perm=[0, 2, 3, 1]),
    ]
    graph = loaded(tmp_path, nodes, {"x": (1, 5, 5, 3)}, ["y"], {"w": weight(3, 3, 3, 3), "b": weight(3)})
    assert len(graph.groups) == 1
    operator = graph.groups[0].operator
    assert stages(operator) == ["pad", "conv", "add", "add", "relu"]
    # the image is read twice but is one input
    assert [tensor.shape for tensor in operator.inputs] == [(1, 5, 5, 3), (3, 3, 3, 3), (3,)]
    assert operator.constants == frozenset({1, 2})


def test_a_group_runs_when_its_last_operand_is_there(tmp_path: Path) -> None:
    """conv a feeds the Add, but its other operand, conv b, comes later."""
    nodes = [
        *IMAGE,
        node("Conv", ["i", "w"], "a"),
        node("Conv", ["i", "v"], "b"),
        node("Relu", ["b"], "r"),
        node("Add", ["a", "r"], "s"),
        node("Transpose", ["s"], "y", perm=[0, 2, 3, 1]),
    ]
    graph = loaded(
        tmp_path, nodes, {"x": (1, 5, 5, 3)}, ["y"], {"w": weight(4, 3, 1, 1), "v": weight(4, 3, 1, 1)}
    )
    assert members(graph) == [("node_b", "node_r"), ("node_a", "node_s")]


def test_a_value_with_two_readers_ends_its_group(tmp_path: Path) -> None:
    nodes = [
        *IMAGE,
        node("Conv", ["i", "w"], "a"),
        node("Relu", ["a"], "b"),
        node("Tanh", ["a"], "c"),
        node("Add", ["b", "c"], "s"),
        node("Transpose", ["s"], "y", perm=[0, 2, 3, 1]),
    ]
    graph = loaded(tmp_path, nodes, {"x": (1, 5, 5, 3)}, ["y"], {"w": weight(4, 3, 1, 1)})
    assert members(graph) == [("node_a",), ("node_c",), ("node_s", "node_b")]


def test_an_output_ends_its_group(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], "a"), node("Relu", ["a"], "y")]
    graph = loaded(tmp_path, nodes, {"x": (2, 3)}, ["a", "y"], {"w": weight(3, 4)})
    assert members(graph) == [("node_a",), ("node_y",)]


def test_broadcasting_a_small_result_up_is_not_fused(tmp_path: Path) -> None:
    nodes = [node("MatMul", ["x", "w"], "a"), node("Add", ["a", "z"], "y")]
    graph = loaded(tmp_path, nodes, {"x": (1, 3), "z": (5, 4)}, ["y"], {"w": weight(3, 4)})
    assert members(graph) == [("node_a",), ("node_y",)]


def test_constants_of_one_element_are_literals(tmp_path: Path) -> None:
    nodes = [node("Mul", ["x", "k"], "a"), node("Sigmoid", ["a"], "b"), node("Max", ["b", "k"], "y")]
    graph = loaded(tmp_path, nodes, {"x": (2, 3)}, ["y"], {"k": np.asarray([0.5], np.float32)})
    assert len(graph.groups) == 1
    assert len(graph.groups[0].operator.inputs) == 1


def test_grouped_convolution_splits_the_channels_of_its_epilogue(tmp_path: Path) -> None:
    nodes = [
        *IMAGE,
        node("Conv", ["i", "w", "b"], "a", group=2),
        node("Add", ["a", "i"], "s"),
        node("Transpose", ["s"], "y", perm=[0, 2, 3, 1]),
    ]
    graph = loaded(tmp_path, nodes, {"x": (1, 5, 5, 6)}, ["y"], {"w": weight(6, 3, 1, 1), "b": weight(6)})
    operator = graph.groups[0].operator
    assert [tensor.shape for tensor in operator.inputs] == [(1, 5, 5, 2, 3), (2, 1, 1, 3, 3), (2, 3)]
    assert operator.output.shape == (1, 5, 5, 2, 3)
    assert graph.values[graph.groups[0].output].shape == (1, 5, 5, 6)


def test_outputs_never_share_memory(tmp_path: Path) -> None:
    """Reshapes are free, but an output that would be an input or another output gets a copy."""
    nodes = [
        node("Reshape", ["x", "flat"], "a"),
        node("Relu", ["x"], "b"),
        node("Reshape", ["b", "flat"], "c"),
    ]
    graph = loaded(tmp_path, nodes, {"x": (2, 3)}, ["a", "b", "c"], {"flat": np.asarray([6], np.int64)})
    roots = [graph.root(name) for name in graph.outputs]
    assert len({*roots, *graph.inputs}) == 4


def test_equal_operators_are_one_task(tmp_path: Path) -> None:
    """Weights and names differ, the operator is the same; an epilogue makes another one."""
    nodes = [
        *IMAGE,
        node("Conv", ["i", "w", "b"], "a", pads=[1, 1, 1, 1]),
        node("Conv", ["a", "v", "c"], "d", pads=[1, 1, 1, 1]),
        node("Conv", ["d", "u", "e"], "f", pads=[1, 1, 1, 1]),
        node("Relu", ["f"], "r"),
        node("Transpose", ["r"], "y", perm=[0, 2, 3, 1]),
    ]
    weights = {name: weight(3, 3, 3, 3) for name in "wvu"} | {name: weight(3) for name in "bce"}
    graph = loaded(tmp_path, nodes, {"x": (1, 5, 5, 3)}, ["y"], weights)
    found = distinct_operators(graph)
    assert [(task.count, task.groups) for task in found] == [(2, ("node_a", "node_d")), (1, ("node_f",))]
    assert found[0].operator.flops == 2 * 25 * 27 * 3 + 25 * 3
    assert found[0].operator.key == graph.groups[0].operator.key != found[1].operator.key
