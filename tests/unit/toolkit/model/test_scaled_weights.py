"""Computed scales of channels as scales of weights, against ONNX's evaluator in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_models import evaluator_values, model, node, random_inputs, save
from tests.whole_models import run_generated
from toolkit.model.graph import Graph
from toolkit.model.load import load_model

CHANNELS, OUTPUTS = 24, 16


def excited(
    *,
    size: int = 8,
    batch: int = 1,
    scale: str = "Sigmoid",
    outputs: int = OUTPUTS,
    scale_first: bool = False,
    means: int = CHANNELS,
    **attributes: Any,
) -> Any:
    """A convolution, a mean of each channel, a product, a function, and a convolution of what that scales."""
    rng = np.random.default_rng(3)
    kernel = attributes.get("kernel_shape", [1, 1])
    groups = attributes.get("group", 1)
    weights = {
        "u": rng.normal(0, 0.3, (CHANNELS, 3, 3, 3)),
        "w": rng.normal(0, 0.3, (means, CHANNELS, 1, 1)),
        "v": rng.normal(0, 0.3, (outputs, CHANNELS // groups, *kernel)),
        "b": rng.normal(0, 1.0, outputs),
        "low": np.array(-1.0),
        "high": np.array(2.0),
        "sixth": np.array(1 / 6),
    }
    functions = {
        "Sigmoid": [node("Sigmoid", ["f"], "s")],
        "HardSigmoid": [node("HardSigmoid", ["f"], "s")],
        "Clip": [node("Clip", ["f", "low", "high"], "c"), node("Mul", ["c", "sixth"], "s")],
        "Relu": [node("Relu", ["f"], "s")],
    }
    nodes = [
        node("Conv", ["x", "u"], "d", pads=[1, 1, 1, 1]),
        node("GlobalAveragePool", ["d"], "m"),
        node("Conv", ["m", "w"], "f"),
        *functions[scale],
        node("Mul", ["s", "d"] if scale_first else ["d", "s"], "scaled"),
        node("Conv", ["scaled", "v", "b"], "y", **attributes),
    ]
    shape = (batch, 3, size, size)
    return model(nodes, {"x": shape}, ["y"], {key: item.astype(np.float32) for key, item in weights.items()})


def matrices(rows: int) -> Any:
    """The same of rows of a matrix."""
    rng = np.random.default_rng(4)
    weights = {"w": rng.normal(0, 0.3, (CHANNELS, CHANNELS)), "v": rng.normal(0, 0.3, (CHANNELS, OUTPUTS))}
    nodes = [
        node("ReduceMean", ["x"], "m", axes=[0], keepdims=1),
        node("MatMul", ["m", "w"], "f"),
        node("Sigmoid", ["f"], "s"),
        node("Mul", ["x", "s"], "scaled"),
        node("MatMul", ["scaled", "v"], "y"),
    ]
    known = {key: item.astype(np.float32) for key, item in weights.items()}
    return model(nodes, {"x": (rows, CHANNELS)}, ["y"], known)


def checked(proto: Any, folder: Path) -> Graph:
    """The graph, whose generated code computes what the evaluator does."""
    graph = load_model(save(folder, proto))
    inputs = random_inputs(graph, 5)
    # Directly: Winograd's algorithms, taken where estimated to be faster, round more (docs/accuracy.md).
    (got,) = run_generated([(graph, inputs)], folder, winograd=False)
    want = evaluator_values(proto, inputs)["y"]
    assert np.abs(got["y"] - want).max() <= 2e-6 * np.abs(want).max()
    return graph


def scales_weights(graph: Graph) -> bool:
    """Whether the node that multiplies reads weights, and not what they are multiplied with."""
    (product,) = [item for item in graph.nodes if item.name == "node_scaled"]
    return any(graph.values[name].constant for name in product.inputs)


@pytest.mark.parametrize("scale", ["Sigmoid", "HardSigmoid", "Clip"])
@pytest.mark.parametrize("scale_first", [False, True])
def test_scales_of_a_pointwise_convolution_are_its_weights(
    scale: str, scale_first: bool, tmp_path: Path
) -> None:
    assert scales_weights(checked(excited(scale=scale, scale_first=scale_first), tmp_path))


def test_a_stride_changes_nothing(tmp_path: Path) -> None:
    assert scales_weights(checked(excited(size=16, strides=[2, 2]), tmp_path))


def test_scales_of_a_product_of_matrices_are_its_weights(tmp_path: Path) -> None:
    assert scales_weights(checked(matrices(40), tmp_path))


@pytest.mark.parametrize(
    "proto",
    [
        pytest.param(excited(scale="Relu"), id="unbounded"),
        pytest.param(excited(size=4, outputs=32), id="more weights than elements"),
        pytest.param(excited(size=16, kernel_shape=[3, 3]), id="a window"),
        pytest.param(excited(size=12, pads=[1, 1, 1, 1]), id="padded"),
        pytest.param(excited(group=2), id="grouped"),
        pytest.param(excited(group=CHANNELS, outputs=CHANNELS), id="depthwise"),
        pytest.param(excited(batch=2), id="scales of each image"),
        pytest.param(excited(means=1), id="one scale for all channels"),
        pytest.param(matrices(8), id="few rows"),
    ],
)
def test_other_scales_stay(proto: Any, tmp_path: Path) -> None:
    assert not scales_weights(checked(proto, tmp_path))


def test_what_others_read_stays(tmp_path: Path) -> None:
    proto = excited()
    proto.graph.node.append(node("Relu", ["scaled"], "z"))
    proto.graph.output.add().CopyFrom(proto.graph.output[0])
    proto.graph.output[1].name = "z"
    proto.graph.output[1].type.tensor_type.shape.dim[1].dim_value = CHANNELS
    assert not scales_weights(checked(proto, tmp_path))
