"""Operators where a plausible formula is wrong, against ONNX's own evaluator in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.onnx_models import evaluator_values, model, node, onnxruntime_values, random_inputs, save
from tests.whole_models import run_generated
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference


def both(proto: Any, inputs: dict[str, Any], folder: Path) -> list[Any]:
    """What the numpy reference and generated code make of the model's output."""
    graph = load_model(save(folder, proto))
    (generated,) = run_generated([(graph, inputs)], folder)
    return [found[graph.outputs[0]] for found in (run_reference(graph, inputs), generated)]


def numbers(*values: float) -> Any:
    return np.asarray(values, np.float32)


def integers(*values: int) -> Any:
    return np.asarray(values, np.int64)


@pytest.mark.parametrize("opset", [9, 13])
def test_log_softmax_of_distant_numbers(opset: int, tmp_path: Path) -> None:
    inputs = {"x": numbers(0, 50, 110).reshape(1, 3)}
    proto = model([node("LogSoftmax", ["x"], "y")], {"x": (1, 3)}, ["y"], opset=opset)
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_allclose(found, [[-110.0, -60.0, 0.0]], rtol=1e-6)
        np.testing.assert_allclose(found, evaluator_values(proto, inputs)["y"], rtol=1e-6)


def test_nearest_of_opset_10_rounds_up_where_it_shrinks(tmp_path: Path) -> None:
    """The test case that ONNX 1.5, which defined the operator, has for it."""
    inputs = {"x": np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)}
    scales = numbers(1, 1, 0.6, 0.6)
    single = node("Resize", ["x", "scales"], "y", mode="nearest")
    proto = model([single], {"x": (1, 1, 2, 4)}, ["y"], {"scales": scales}, opset=10)
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_array_equal(found, [[[[1, 3]]]])
        np.testing.assert_array_equal(found, onnxruntime_values(proto, inputs, ["y"])["y"])


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("region", [(0.4, 0.6, 1.2, 1.7), (-0.3, 0.0, 0.5, 1.0), (1.5, 0.2, 2.0, 0.4)])
def test_crop_and_resize_with_an_extrapolation_value(mode: str, region: Any, tmp_path: Path) -> None:
    top, left, bottom, right = region
    roi = numbers(0, 0, top, left, 1, 1, bottom, right)
    sizes = integers(1, 2, 3, 5)
    single = node(
        "Resize",
        ["x", "roi", "", "sizes"],
        "y",
        mode=mode,
        coordinate_transformation_mode="tf_crop_and_resize",
        extrapolation_value=10.0,
    )
    proto = model([single], {"x": (1, 2, 4, 4)}, ["y"], {"roi": roi, "sizes": sizes})
    inputs = {"x": np.random.default_rng(3).uniform(-1, 1, (1, 2, 4, 4)).astype(np.float32)}
    expected = evaluator_values(proto, inputs)["y"]
    assert (expected == 10.0).any()
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("policy", ["not_larger", "not_smaller"])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_resize_that_keeps_the_aspect_ratio(policy: str, mode: str, tmp_path: Path) -> None:
    """The scale of one axis is that of all, even where it gives the others no whole size."""
    single = node(
        "Resize", ["x", "", "", "sizes"], "y", mode=mode, axes=[2, 3], keep_aspect_ratio_policy=policy
    )
    shape = (1, 1, 5, 9)
    proto = model([single], {"x": shape}, ["y"], {"sizes": integers(7, 7)}, opset=18)
    graph = load_model(save(tmp_path, proto))
    inputs = random_inputs(graph)
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_allclose(found, evaluator_values(proto, inputs)["y"], atol=1e-5)


ROWS = numbers(1, 2, 4, 8, 16, 0.5, 0.25, 3).reshape(2, 1, 2, 2)
CONSTANT = [
    ("Softmax", {"axis": 1}, 11, ROWS),
    ("LogSoftmax", {"axis": 1}, 11, ROWS * 20),
    ("LRN", {"size": 3}, 13, np.arange(24, dtype=np.float32).reshape(1, 6, 2, 2)),
    ("GlobalMaxPool", {}, 13, ROWS[0]),
    ("Unsqueeze", {"axes": [-4, -3]}, 11, ROWS[:, 0]),
]


@pytest.mark.parametrize(("op", "attributes", "opset", "data"), CONSTANT, ids=[case[0] for case in CONSTANT])
def test_operator_on_constants(op: str, attributes: Any, opset: int, data: Any, tmp_path: Path) -> None:
    """Here ONNX's evaluator is wrong, so that constants must not be folded with it."""
    nodes = [node(op, ["w"], "folded", **attributes), node("Add", ["folded", "x"], "y")]
    proto = model(nodes, {"x": (1,)}, ["y"], {"w": data}, opset)
    inputs = {"x": np.zeros(1, np.float32)}
    expected = onnxruntime_values(proto, inputs, ["y"])["y"]
    for found in both(proto, inputs, tmp_path):
        assert found.shape == expected.shape
        np.testing.assert_allclose(found, expected, rtol=1e-5)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
def test_pooling_has_no_window_behind_the_data(op: str, tmp_path: Path) -> None:
    """ONNX's shape inference counts one."""
    single = node(op, ["x"], "y", kernel_shape=[1, 1], strides=[2, 3], ceil_mode=1)
    proto = model([single], {"x": (1, 2, 6, 8)}, ["y"], opset=11)
    inputs = random_inputs(load_model(save(tmp_path, proto)))
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_array_equal(found, inputs["x"][:, :, ::2, ::3])


@pytest.mark.parametrize("width", [6, 7])  # the window reaches over 7: nothing is left, or one element
def test_pooling_has_no_window_behind_the_data_where_nothing_is_left(width: int, tmp_path: Path) -> None:
    single = node("MaxPool", ["x"], "y", kernel_shape=[1, 3], dilations=[1, 3], strides=[3, 1], ceil_mode=1)
    proto = model([single], {"x": (1, 2, 3, width)}, ["y"], opset=12)
    inputs = random_inputs(load_model(save(tmp_path, proto)))
    expected = onnxruntime_values(proto, inputs, ["y"])["y"]
    assert expected.shape == (1, 2, 1, width - 6)
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_array_equal(found, expected)


def test_pooling_pads_with_less_than_any_number(tmp_path: Path) -> None:
    single = node("MaxPool", ["x"], "y", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    proto = model([single], {"x": (1, 1, 3, 3)}, ["y"])
    for found in both(proto, {"x": np.full((1, 1, 3, 3), -np.inf, np.float32)}, tmp_path):
        np.testing.assert_array_equal(found, np.full((1, 1, 3, 3), -np.inf))


@pytest.mark.parametrize("op", ["ReduceL1", "ReduceL2", "ReduceSumSquare"])
def test_reduction_of_no_axes(op: str, tmp_path: Path) -> None:
    single = node(op, ["x", "axes"], "y", noop_with_empty_axes=1)
    proto = model([single], {"x": (2, 3)}, ["y"], {"axes": integers()}, opset=18)
    inputs = {"x": numbers(-1, 2, -3, 0.5, -2, 4).reshape(2, 3)}
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_array_equal(found, evaluator_values(proto, inputs)["y"])


def test_transposed_convolution_of_same_size_ignores_output_padding(tmp_path: Path) -> None:
    single = node(
        "ConvTranspose", ["x", "w"], "y", strides=[2, 2], auto_pad="SAME_UPPER", output_padding=[1, 1]
    )
    proto = model([single], {"x": (1, 1, 3, 4)}, ["y"], {"w": np.ones((1, 1, 3, 3), np.float32)})
    inputs = {"x": np.arange(12, dtype=np.float32).reshape(1, 1, 3, 4)}
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_allclose(found, onnxruntime_values(proto, inputs, ["y"])["y"])


def test_clip_without_bounds_gives_finite_numbers_before_opset_11(tmp_path: Path) -> None:
    proto = model([node("Clip", ["x"], "y")], {"x": (2,)}, ["y"], opset=10)
    inputs = {"x": numbers(np.inf, -np.inf)}
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_array_equal(found, onnxruntime_values(proto, inputs, ["y"])["y"])


def test_truth_values_choose_in_vectors(tmp_path: Path) -> None:
    proto = model([node("Where", ["c", "x", "y"], "z")], {"x": (3, 19), "y": (3, 19)}, ["z"])
    proto.graph.input.append(onnx.helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [3, 19]))
    proto = onnx.shape_inference.infer_shapes(proto)
    rng = np.random.default_rng(5)
    inputs = {name: rng.uniform(-1, 1, (3, 19)).astype(np.float32) for name in ("x", "y")}
    inputs["c"] = rng.random((3, 19)) < 0.5
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_array_equal(found, np.where(inputs["c"], inputs["x"], inputs["y"]))


@pytest.mark.parametrize("factors", [(1e30, 1e30), (1e-30, 1e-30), (2.0, 0.0)])
def test_scales_are_merged_only_where_floats_hold_them(factors: Any, tmp_path: Path) -> None:
    """0 * 1e30 * 1e30 is 0; in front of a division by 0 there is 1 / 0."""
    names = {f"w{number}": numbers(factor) for number, factor in enumerate(factors)}
    last = "Div" if factors[1] == 0.0 else "Mul"
    proto = model([node("Mul", ["x", "w0"], "a"), node(last, ["a", "w1"], "y")], {"x": (3,)}, ["y"], names)
    inputs = {"x": numbers(0, 1e38, -2)}
    for found in both(proto, inputs, tmp_path):
        np.testing.assert_allclose(found, onnxruntime_values(proto, inputs, ["y"])["y"], rtol=1e-6)


def test_small_results_keep_their_digits(tmp_path: Path) -> None:
    """A logarithm of 1 + x and an exponential less 1 lose them."""
    inputs = {"x": numbers(-1e-30, -1e-8, -1e-3, -0.2, -20.0, -60.0)}
    exact = {
        "Elu": np.expm1(inputs["x"].astype(np.float64)),
        "Softplus": np.log1p(np.exp(inputs["x"].astype(np.float64))),
    }
    for op, expected in exact.items():
        for found in both(model([node(op, ["x"], "y")], {"x": (6,)}, ["y"]), inputs, tmp_path):
            np.testing.assert_allclose(found, expected, rtol=2e-6)
