"""Layout assignment: where transposes are computed, and where they cost nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.onnx_models import model, node, random_inputs, save, worst_layer_error
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.shapes import merge_axes, moves_units_only, reshape_groups

RNG = np.random.default_rng(5)


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def loaded(tmp_path: Path, *arguments: Any, **settings: Any) -> Graph:
    """The fused graph, checked layer by layer."""
    proto = model(*arguments, **settings)
    graph = load_model(save(tmp_path, proto))
    worst, _ = worst_layer_error(graph, proto, random_inputs(graph))
    assert worst < 1e-5
    return graph


def transposes(graph: Graph) -> int:
    return sum(item.op == "Transpose" for item in graph.nodes)


def test_images_are_transposed_at_the_edges_only(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], "a", pads=[1, 1, 1, 1]),
        node("Relu", ["a"], "b"),
        node("Conv", ["b", "v"], "c"),
        node("Add", ["c", "b"], "d"),
        node("Concat", ["d", "b"], "e", axis=1),
        node("MaxPool", ["e"], "y", kernel_shape=[2, 2]),
    ]
    graph = loaded(
        tmp_path, nodes, {"x": (1, 3, 6, 6)}, ["y"], {"w": weight(4, 3, 3, 3), "v": weight(4, 4, 1, 1)}
    )
    assert [item.op for item in graph.nodes if item.op == "Transpose"] == ["Transpose"] * 2
    assert graph.nodes[1].op == "Transpose" or graph.nodes[0].op == "Transpose"


def test_transposes_of_a_channels_last_exporter_cancel(tmp_path: Path) -> None:
    """As tf2onnx writes them: to NCHW before every convolution and back behind it."""
    nodes = [
        node("Transpose", ["x"], "a", perm=[0, 3, 1, 2]),
        node("Conv", ["a", "w"], "b", pads=[1, 1, 1, 1]),
        node("Transpose", ["b"], "c", perm=[0, 2, 3, 1]),
        node("Mul", ["c", "k"], "d"),
        node("Transpose", ["d"], "e", perm=[0, 3, 1, 2]),
        node("Conv", ["e", "v"], "f"),
        node("Transpose", ["f"], "y", perm=[0, 2, 3, 1]),
    ]
    weights = {"w": weight(4, 3, 3, 3), "v": weight(4, 4, 1, 1), "k": weight(4)}
    assert transposes(loaded(tmp_path, nodes, {"x": (1, 6, 6, 3)}, ["y"], weights)) == 0


def test_moving_unit_dimensions_is_free(tmp_path: Path) -> None:
    nodes = [
        node("Conv", ["x", "w"], "a"),
        node("GlobalAveragePool", ["a"], "b"),
        node("Flatten", ["b"], "y"),
    ]
    graph = loaded(tmp_path, nodes, {"x": (1, 1, 6, 6)}, ["y"], {"w": weight(4, 1, 3, 3)})
    assert transposes(graph) == 0


def test_flattening_an_image_needs_one_transpose(tmp_path: Path) -> None:
    nodes = [
        node("Transpose", ["x"], "t", perm=[0, 3, 1, 2]),
        node("Conv", ["t", "w"], "a"),
        node("Flatten", ["a"], "b"),
        node("Gemm", ["b", "v"], "y"),
    ]
    graph = loaded(tmp_path, nodes, {"x": (1, 4, 4, 3)}, ["y"], {"w": weight(4, 3, 1, 1), "v": weight(64, 5)})
    assert transposes(graph) == 1


def test_channel_shuffle_is_one_small_transpose(tmp_path: Path) -> None:
    """As in shufflenet: split the channels, swap the halves, merge; the image order stays NHWC."""
    nodes = [
        node("Transpose", ["x"], "t", perm=[0, 3, 1, 2]),
        node("Conv", ["t", "w"], "a"),
        node("Reshape", ["a", "split"], "b"),
        node("Transpose", ["b"], "c", perm=[0, 2, 1, 3, 4]),
        node("Reshape", ["c", "merge"], "d"),
        node("Conv", ["d", "v"], "e"),
        node("Transpose", ["e"], "y", perm=[0, 2, 3, 1]),
    ]
    weights = {
        "w": weight(6, 3, 1, 1),
        "v": weight(6, 6, 1, 1),
        "split": np.asarray([1, 2, 3, 4, 4], np.int64),
        "merge": np.asarray([1, 6, 4, 4], np.int64),
    }
    graph = loaded(tmp_path, nodes, {"x": (1, 4, 4, 3)}, ["y"], weights)
    found = [item for item in graph.nodes if item.op == "Transpose"]
    assert [item.integers("perm") for item in found] == [(0, 2, 1)]


def test_weights_are_transposed_ahead_of_time(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], "y")]
    graph = loaded(tmp_path, nodes, {"x": (1, 3, 6, 6)}, ["y"], {"w": weight(4, 3, 2, 5)})
    conv = next(group for group in graph.groups if group.operator.name == "conv")
    assert graph.values[conv.inputs[1]].shape == (2, 5, 3, 4)
    assert graph.values[conv.inputs[1]].constant
    assert conv.operator.constants == frozenset({1})


def test_values_remember_what_they_stand_for(tmp_path: Path) -> None:
    nodes = [node("Conv", ["x", "w"], "a"), node("Relu", ["a"], "y")]
    graph = loaded(tmp_path, nodes, {"x": (1, 3, 6, 6)}, ["y"], {"w": weight(4, 3, 1, 1)})
    held = next(value for value in graph.values.values() if value.source == "y" and value.permutation[1] != 1)
    assert held.permutation == (0, 2, 3, 1)
    assert held.shape == (1, 6, 6, 4)


@pytest.mark.parametrize("groups", [1, 2, 4])
@pytest.mark.parametrize(
    ("kernel", "settings", "data"),
    [
        ((1, 3, 3), {"pads": [0, 1, 1, 0, 1, 1]}, (6, 5, 7, 4)),
        ((1, 3, 2), {"strides": [1, 2, 1], "pads": [0, 1, 0, 0, 0, 1]}, (6, 5, 7, 4)),
        ((1, 3, 3), {"dilations": [1, 2, 1], "pads": [0, 2, 1, 0, 2, 1]}, (6, 5, 7, 4)),
        ((3, 1, 1), {"pads": [2, 0, 0, 1, 0, 0]}, (2, 3, 35, 4)),
        ((3, 1, 1), {"strides": [2, 1, 1], "dilations": [1, 1, 1]}, (2, 3, 35, 4)),
        ((1, 1, 1), {}, (6, 5, 7, 4)),
        ((2, 1, 2), {}, (2, 3, 5, 7, 4)),
        ((1, 1, 1), {"strides": [2, 1, 2]}, (2, 3, 5, 7, 4)),
        ((3, 1, 1), {"pads": [1, 1, 0, 1, 0, 0]}, (2, 3, 5, 7, 4)),
        ((1, 3, 3), {"pads": [1, 1, 1, 0, 1, 1]}, (2, 3, 5, 7, 4)),
    ],
)
def test_windows_along_some_dimensions_are_convolutions_of_images(
    tmp_path: Path, kernel: tuple[int, ...], settings: dict[str, Any], data: tuple[int, ...], groups: int
) -> None:
    """Of volumes; the bias, the residual sum and the activation behind them stay in their operator."""
    weights = {"w": weight(4, 4 // groups, *kernel), "b": weight(4)}
    nodes = [
        node("Conv", ["x", "w", "b"], "a", kernel_shape=kernel, group=groups, **settings),
        node("Sigmoid", ["a"], "s"),
        node("Mul", ["a", "s"], "m"),
        node("Conv", ["m", "v"], "c"),
        node("Add", ["c", "a"], "d"),
        node("Relu", ["d"], "y"),
    ]
    weights["v"] = weight(4, 4, 1, 1, 1)
    graph = loaded(tmp_path, nodes, {"x": (2, 4, 3, 5, 7)}, ["y"], weights)
    _, second = (group for group in graph.groups if group.operator.name == "conv")
    read, flat = (graph.values[item.inputs[0]].shape for item in graph.nodes if item.op == "Conv")
    assert read == data and len(flat) == 4
    assert len(second.operator.inputs) == 3 and len(second.operator.inputs[2].shape) == 4
    assert len(graph.groups) <= 5  # two convolutions, the edges, and what both read of the first


@pytest.mark.parametrize(
    ("shape", "moved", "expected"),
    [
        ((1, 13, 13, 1000), (0, 3, 1, 2), ((169, 1000), (1, 0))),
        ((2, 3, 4), (2, 1, 0), ((2, 3, 4), (2, 1, 0))),
        ((2, 1, 4, 5), (2, 3, 0, 1), ((2, 20), (1, 0))),
        ((2, 3, 4, 5), (0, 2, 1, 3), ((2, 3, 4, 5), (0, 2, 1, 3))),
    ],
)
def test_merge_axes(shape: Any, moved: Any, expected: Any) -> None:
    assert merge_axes(shape, moved) == expected


@given(
    st.lists(st.integers(1, 4), min_size=2, max_size=5).flatmap(
        lambda shape: st.tuples(st.just(shape), st.permutations(range(len(shape))))
    )
)
def test_merged_transposes_move_the_same_elements(case: Any) -> None:
    shape, moved = case
    data = np.arange(int(np.prod(shape))).reshape(shape)
    merged_shape, merged = merge_axes(shape, tuple(moved))
    want = data.transpose(moved).ravel()
    np.testing.assert_array_equal(data.reshape(merged_shape).transpose(merged).ravel(), want)
    free = moves_units_only(shape, tuple(range(len(shape))), tuple(moved))
    if free:
        np.testing.assert_array_equal(data.ravel(), want)


@given(st.lists(st.integers(1, 6), max_size=5), st.randoms(use_true_random=False))
def test_reshape_groups_have_equal_products(before: list[int], random: Any) -> None:
    factors = [factor for extent in before for factor in ([2, extent // 2] if extent % 2 == 0 else [extent])]
    after: list[int] = []
    for factor in factors:
        if after and random.random() < 0.4:
            after[-1] *= factor
        else:
            after.append(factor)
        if random.random() < 0.3:
            after.append(1)
    groups = reshape_groups(before, after)
    assert [axis for left, _ in groups for axis in left] == list(range(len(before)))
    assert [axis for _, right in groups for axis in right] == list(range(len(after)))
    for left, right in groups:
        assert np.prod([before[a] for a in left]) == np.prod([after[a] for a in right])
