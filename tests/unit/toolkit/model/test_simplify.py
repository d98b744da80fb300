"""The simplifying passes: what is left of a graph, and that it still computes the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tests.onnx_models import model, node, random_inputs, save, worst_layer_error
from toolkit.model.graph import Graph
from toolkit.model.load import computed, load_model
from toolkit.model.onnx_import import import_onnx
from toolkit.model.simplify import fold_affine, fold_padding, remove_identities

RNG = np.random.default_rng(3)


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def ops(graph: Graph) -> list[str]:
    return [item.op for item in graph.nodes]


def imported(tmp_path: Path, *arguments: Any, **settings: Any) -> tuple[Any, Graph]:
    proto = model(*arguments, **settings)
    return proto, import_onnx(save(tmp_path, proto), {}, computed)


def check(tmp_path: Path, proto: Any) -> None:
    graph = load_model(save(tmp_path, proto))
    worst, _ = worst_layer_error(graph, proto, random_inputs(graph))
    assert worst < 1e-5


BATCH_NORM = {"s": weight(4), "b": weight(4), "m": weight(4), "v": weight(4) ** 2 + np.float32(0.5)}


def test_dropout_and_identity_disappear(tmp_path: Path) -> None:
    nodes = [
        node("Relu", ["x"], "a"),
        node("Dropout", ["a"], ["b", "mask"]),
        node("Identity", ["b"], "c"),
        node("Tanh", ["c"], "d"),
        node("Identity", ["d"], "y"),
    ]
    proto, graph = imported(tmp_path, nodes, {"x": (2, 3)}, ["y"])
    simple = remove_identities(graph)
    assert ops(simple) == ["Relu", "Tanh"]
    assert simple.outputs == ("y",)
    check(tmp_path, proto)


def test_identity_stays_where_an_output_would_be_an_input(tmp_path: Path) -> None:
    nodes = [node("Identity", ["x"], "y"), node("Relu", ["x"], "z"), node("Identity", ["z"], "w")]
    _, graph = imported(tmp_path, nodes, {"x": (2, 3)}, ["y", "z", "w"])
    simple = remove_identities(graph)
    assert ops(simple) == ["Identity", "Relu", "Identity"]


def test_batch_norm_becomes_the_weights_of_the_convolution(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w", "c"], "a", pads=[1, 1, 1, 1]),
        node("BatchNormalization", ["a", "s", "b", "m", "v"], "n"),
        node("Relu", ["n"], "y"),
    ]
    weights = {"w": weight(4, 3, 3, 3), "c": weight(4), **BATCH_NORM}
    proto, graph = imported(tmp_path, nodes, {"x": (1, 3, 5, 5)}, ["y"], weights)
    assert ops(fold_affine(graph)) == ["Conv", "Add", "Relu"]
    check(tmp_path, proto)


def test_negation_becomes_the_weights(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], "a"), node("Neg", ["a"], "y")]
    proto, graph = imported(tmp_path, nodes, {"x": (1, 3, 5, 5)}, ["y"], {"w": weight(4, 3, 1, 1)})
    assert ops(fold_affine(graph)) == ["Conv"]
    check(tmp_path, proto)


def test_chains_of_scales_and_shifts_become_two_nodes(tmp_path: Path) -> None:
    """As in densenet: BatchNormalization, then Mul and Add by constants, with no convolution in front."""
    nodes = [
        node("BatchNormalization", ["x", "s", "b", "m", "v"], "n"),
        node("Mul", ["n", "k"], "a"),
        node("Sub", ["t", "a"], "d"),
        node("Div", ["d", "k"], "e"),
        node("Relu", ["e"], "y"),
    ]
    weights = {"k": weight(4, 1, 1) + 2, "t": weight(1, 4, 1, 1), **BATCH_NORM}
    proto, graph = imported(tmp_path, nodes, {"x": (1, 4, 5, 5)}, ["y"], weights)
    assert ops(fold_affine(graph)) == ["Mul", "Add", "Relu"]
    check(tmp_path, proto)


def test_a_scale_along_the_image_stays_behind_the_convolution(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], "a"),
        node("Mul", ["a", "k"], "b"),
        node("Add", ["b", "k"], "y"),
    ]
    weights = {"w": weight(4, 3, 1, 1), "k": weight(5, 5)}
    proto, graph = imported(tmp_path, nodes, {"x": (1, 3, 5, 5)}, ["y"], weights)
    assert ops(fold_affine(graph)) == ["Conv", "Mul", "Add"]
    check(tmp_path, proto)


def test_a_value_that_others_read_is_not_folded_away(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], "a"),
        node("Mul", ["a", "k"], "b"),
        node("Add", ["a", "b"], "y"),
    ]
    weights = {"w": weight(4, 3, 1, 1), "k": weight(4, 1, 1)}
    proto, graph = imported(tmp_path, nodes, {"x": (1, 3, 5, 5)}, ["y", "b"], weights)
    assert ops(fold_affine(graph)) == ["Conv", "Mul", "Add"]
    check(tmp_path, proto)


def test_zero_padding_moves_into_the_convolution(tmp_path: Path) -> None:
    nodes = [node("Pad", ["x", "p"], "a"), node("Conv", ["a", "w"], "y", pads=[1, 1, 1, 1])]
    weights = {"p": np.asarray([0, 0, 1, 2, 0, 0, 0, 1], np.int64), "w": weight(4, 3, 3, 3)}
    proto, graph = imported(tmp_path, nodes, {"x": (1, 3, 5, 5)}, ["y"], weights)
    simple = fold_padding(graph)
    assert ops(simple) == ["Conv"]
    assert simple.nodes[0].integers("pads") == (2, 3, 1, 2)
    check(tmp_path, proto)


def test_padding_of_channels_or_by_another_value_stays(tmp_path: Path) -> None:
    nodes = [
        node("Pad", ["x", "p"], "a"),
        node("Conv", ["a", "w"], "y"),
        node("Pad", ["x", "q", "fill"], "b"),
        node("Conv", ["b", "v"], "z"),
    ]
    weights = {
        "p": np.asarray([0, 1, 0, 0, 0, 0, 0, 0], np.int64),
        "q": np.asarray([0, 0, 1, 0, 0, 0, 0, 0], np.int64),
        "fill": np.asarray(1.0, np.float32),
        "w": weight(4, 4, 1, 1),
        "v": weight(4, 3, 1, 1),
    }
    proto, graph = imported(tmp_path, nodes, {"x": (1, 3, 5, 5)}, ["y", "z"], weights)
    assert ops(fold_padding(graph)) == ["Pad", "Conv", "Pad", "Conv"]
    check(tmp_path, proto)


def test_shape_arithmetic_is_folded_during_the_import(tmp_path: Path) -> None:
    nodes = [
        node("Shape", ["x"], "shape"),
        node("Gather", ["shape", "zero"], "batch"),
        node("Unsqueeze", ["batch", "axes"], "first"),
        node("Concat", ["first", "rest"], "target", axis=0),
        node("Reshape", ["x", "target"], "y"),
    ]
    weights = {
        "zero": np.asarray(0, np.int64),
        "axes": np.asarray([0], np.int64),
        "rest": np.asarray([-1], np.int64),
    }
    proto = model(nodes, {"x": ("N", 3, 4)}, ["y"], weights)
    graph = import_onnx(save(tmp_path, proto), {"x": (2, 3, 4)}, computed)
    assert ops(graph) == ["Reshape"]
    assert graph.values["y"].shape == (2, 12)
