"""The seeded networks: reproducible files that import into the operators they are known for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.networks import write
from tests.onnx_models import onnxruntime_values, random_inputs, worst_layer_error
from toolkit.model.distinct import distinct_operators
from toolkit.model.load import load_model
from toolkit.model.reference import cut, run_reference


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    first, again, other = (
        write("dcgan", tmp_path / f"{position}.onnx", seed, 2).read_bytes()
        for position, seed in enumerate((0, 0, 1))
    )
    assert first == again != other


SIZES = {
    "bert": 8, "conformer": 8, "dcgan": 4, "dqn": 36, "gru_spotter": 12, "lstm_lm": 12, "ssd": 32, "vad": 256,
    "yolo": 32,
}  # fmt: skip


@pytest.mark.parametrize(("name", "size"), list(SIZES.items()))
def test_network_layer_by_layer(name: str, size: int, tmp_path: Path) -> None:
    path = write(name, tmp_path / f"{name}.onnx", 0, size)
    graph = load_model(path)
    worst, compared = worst_layer_error(graph, onnx.load(str(path)), random_inputs(graph, seed=1))
    assert worst <= 1e-5
    assert compared >= len(graph.groups) // 3


@pytest.mark.parametrize(("name", "size"), [("efficientnet_b0", 64), ("resnet50", 32), ("vit_tiny", 64)])
def test_two_of_equal_blocks_have_the_operators_of_all(name: str, size: int, tmp_path: Path) -> None:
    whole, short = (load_model(write(name, tmp_path / f"{most}.onnx", 3, size, most)) for most in (None, 2))
    assert len(short.steps) < len(whole.steps)
    keys = [{item.operator.key for item in distinct_operators(graph)} for graph in (whole, short)]
    assert keys[0] == keys[1]


def test_the_generator_is_its_convolutions(tmp_path: Path) -> None:
    graph = load_model(write("dcgan", tmp_path / "dcgan.onnx", 0, 8))
    names = [group.operator.name for group in graph.groups]
    assert names == ["matmul", "relu", *["convtranspose"] * 4, "tanh", "transpose"]


def test_the_detector_keeps_the_boxes_that_onnxruntime_keeps(tmp_path: Path) -> None:
    path = write("ssd", tmp_path / "ssd.onnx", 0, 64)
    graph = load_model(path)
    inputs = random_inputs(graph, seed=1)
    found = cut(graph, run_reference(graph, inputs))
    (counted,) = graph.counts
    expected = onnxruntime_values(onnx.load(str(path)), inputs, [counted])[counted]
    assert 0 < len(expected) < graph.values[counted].shape[0]
    np.testing.assert_array_equal(found[counted], expected)
