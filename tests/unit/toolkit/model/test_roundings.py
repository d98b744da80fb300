"""How far outputs may move because floats that nobody computes to the last bit are rounded to integers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boards.board import load
from tests.onnx_models import model, node, save
from toolkit.bundle.pack import GOLDEN_RTOL, GoldenData
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference
from toolkit.model.roundings import rounding_spread, roundings_of
from toolkit.model_job.latency import golden_rtol

ROWS, SIDE, WIDE = 4, 64, 8
SCALE = np.float32(0.05)
WEIGHTS = np.random.default_rng(1).uniform(-1, 1, (SIDE, WIDE)).astype(np.float32)
SIGNS = np.where(np.arange(SIDE) % 2, np.float32(-1), np.float32(1))
INPUT = np.broadcast_to(SIGNS, (ROWS, SIDE)).copy()  # its mean is 0, and its deviation 1


def quantized(folder: Path, *, normalized: bool = True, apart: bool = False) -> Graph:
    """A layer norm whose first element lies midway between two steps, quantized, times WEIGHTS; `apart`: what
    is quantized is an output, too. Not `normalized`: a sum instead of a layer norm."""
    steps = np.random.default_rng(2).integers(-100, 100, SIDE).astype(np.float32) + np.float32(0.2)
    steps[0] = 2.5
    weights = {"gamma": SCALE * steps, "s": np.asarray(SCALE), "z": np.asarray(np.int8(0)), "w": WEIGHTS}
    first = node("LayerNormalization", ["x", "gamma"], "a", axis=-1, epsilon=1e-5)
    if not normalized:
        first = node("Mul", ["x", "gamma"], "a")
    nodes = [
        first,
        node("QuantizeLinear", ["a", "s", "z"], "q"),
        node("DequantizeLinear", ["q", "s", "z"], "d"),
        node("MatMul", ["d", "w"], "y"),
    ]
    outputs = ["y", "a"] if apart else ["y"]
    proto = model(nodes, {"x": (ROWS, SIDE)}, outputs, weights, opset=19)
    return load_model(save(folder, proto))


def computed(graph: Graph) -> GoldenData:
    outputs = run_reference(graph, {"x": INPUT})
    return GoldenData((INPUT,), tuple(outputs[name] for name in graph.outputs))


@pytest.mark.parametrize("apart", [False, True])
def test_a_layer_norm_before_a_rounding_may_change_outputs_by_a_step(apart: bool, tmp_path: Path) -> None:
    graph = quantized(tmp_path, apart=apart)
    assert roundings_of(graph)
    golden = computed(graph)
    expected = dict(zip(graph.outputs, golden.outputs, strict=True))
    step = SCALE * np.abs(WEIGHTS[0]).max() / np.abs(expected["y"]).max()
    assert step > 10 * GOLDEN_RTOL["float32"]
    assert rounding_spread(graph, {"x": INPUT}, expected) == pytest.approx(step, rel=1e-3)
    assert golden_rtol(graph, load("host").target(), golden) == pytest.approx(step, rel=1e-3)


def test_without_a_sum_of_floats_every_output_is_exact(tmp_path: Path) -> None:
    graph = quantized(tmp_path, normalized=False)
    assert not roundings_of(graph)
    golden = computed(graph)
    assert rounding_spread(graph, {"x": INPUT}, dict(zip(graph.outputs, golden.outputs, strict=True))) == 0.0
    assert golden_rtol(graph, load("host").target(), golden) == GOLDEN_RTOL["float32"]
