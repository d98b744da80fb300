"""Well-known networks through generated code on this machine: every layer's output against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.networks import NETWORKS, write
from boards.board import Board
from tests.loopback.test_model_layers import at_random, check_on_board

# layers that are compared, at least: most of the network, and each of its convolutions but those that are the
# first or second of a chain on some machine
LAYERS = {
    "bert": 20,
    "conformer": 20,
    "dcgan": 5,
    "dqn": 5,
    "efficientnet_b0": 40,
    "gru_spotter": 3,
    "lstm_lm": 4,
    "mobilenet_v1": 10,
    "mobilenet_v2": 20,
    "mobilenet_v3": 25,
    "r2plus1d_18": 20,
    "resnest50": 80,
    "resnet50": 28,
    "resnet18": 14,
    "squeezenet": 15,
    "ssd": 12,
    "swin": 100,
    "transformer": 25,
    "vad": 10,
    "vit_tiny": 21,
    "yolo": 16,
}
MOST_BLOCKS = 2  # more of equal blocks in a row have no operator that these do not have
SMALLER = {
    "efficientnet_b0": 64,
    "r2plus1d_18": 56,
    "resnest50": 64,
    "resnet50": 32,
    "swin": 24,
    "transformer": 96,
    "vit_tiny": 64,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(NETWORKS))
def test_every_layer_of_a_network(name: str, local_board: Board, tmp_path: Path) -> None:
    model = write(name, tmp_path / f"{name}.onnx", seed=3, size=SMALLER.get(name), most_blocks=MOST_BLOCKS)
    assert check_on_board(local_board, model, 13, tmp_path) >= LAYERS[name]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bert", "dcgan", "vad", "yolo"])
def test_every_layer_of_a_network_with_random_schedules(
    name: str, local_board: Board, tmp_path: Path
) -> None:
    size = {"bert": 24, "dcgan": 16, "vad": 256, "yolo": 64}[name]
    model = write(name, tmp_path / f"{name}.onnx", seed=4, size=size, most_blocks=MOST_BLOCKS)
    assert check_on_board(local_board, model, 14, tmp_path, at_random) >= LAYERS[name]


@pytest.mark.emulated
@pytest.mark.slow
@pytest.mark.parametrize(("name", "size"), [("bert", 16), ("lstm_lm", 24), ("mobilenet_v3", 64)])
def test_every_layer_of_a_network_on_an_emulated_board(
    name: str, size: int, emulated_board: Board, tmp_path: Path
) -> None:
    model = write(name, tmp_path / f"{name}.onnx", seed=5, size=size, most_blocks=MOST_BLOCKS)
    assert check_on_board(emulated_board, model, 15, tmp_path) >= LAYERS[name]
