"""Operators where a plausible formula is wrong, against ONNX's own evaluator in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
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
