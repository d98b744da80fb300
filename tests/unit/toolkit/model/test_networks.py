"""Whole networks of the onnx wheel, with seeded weights, layer by layer against onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import onnx
import pytest

from benchmarks.seeded_model import write
from tests.onnx_models import onnxruntime_values, random_inputs, worst_layer_error
from toolkit.model.distinct import distinct_operators
from toolkit.model.load import computed, load_model, run_passes
from toolkit.model.memory import plan_memory
from toolkit.model.onnx_import import import_onnx
from toolkit.model.reference import run_reference

BASIC_PITCH = os.environ.get("TFB_BASIC_PITCH", "")


@pytest.fixture(scope="module")
def squeezenet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write("light_squeezenet", tmp_path_factory.mktemp("models") / "squeezenet.onnx", seed=0)


def test_squeezenet_layer_by_layer(squeezenet: Path) -> None:
    graph = load_model(squeezenet)
    inputs = random_inputs(graph, seed=1)
    proto = onnx.load(str(squeezenet))
    worst, compared = worst_layer_error(graph, proto, inputs)
    assert worst <= 1e-4
    assert compared == len(graph.groups)
    (name,) = graph.outputs
    got, want = run_reference(graph, inputs)[name], onnxruntime_values(proto, inputs, [name])[name]
    assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()
    assert 1e-3 < np.abs(want).max() < 0.999  # the seeded weights keep activations in range


def test_squeezenet_tasks(squeezenet: Path) -> None:
    found = distinct_operators(load_model(squeezenet))
    convolutions = [task for task in found if task.operator.name == "conv"]
    assert len(convolutions) == 18
    assert sum(task.count for task in convolutions) == 26
    assert len(found) == 23  # none of them a concatenation, none a transpose of the image
    assert 0.69e9 < sum(task.count * task.operator.flops for task in found) < 0.72e9


def test_squeezenet_memory(squeezenet: Path) -> None:
    plan = plan_memory(load_model(squeezenet))
    assert plan.arena_bytes == plan.lower_bound_bytes


def test_passes_can_be_watched(squeezenet: Path) -> None:
    seen: dict[str, str] = {}
    run_passes(
        import_onnx(squeezenet, {}, computed), lambda name, graph: seen.update({name: graph.to_text()})
    )
    assert list(seen) == [
        "remove_identities",
        "recognize_normalization",
        "fold_affine",
        "fold_padding",
        "assign_layout",
        "pack_weights",
        "scale_weights",
        "read_by_heads",
        "tabulate",
        "fuse",
    ]
    assert "Transpose" in seen["assign_layout"]
    assert "Transpose" not in seen["fold_padding"]


def test_the_same_seed_gives_the_same_bytes(squeezenet: Path, tmp_path: Path) -> None:
    again = write("light_squeezenet", tmp_path / "again.onnx", seed=0)
    other = write("light_squeezenet", tmp_path / "other.onnx", seed=1)
    assert again.read_bytes() == squeezenet.read_bytes() != other.read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet50", "shufflenet", "densenet121", "inception_v1", "inception_v2"])
def test_network_layer_by_layer(name: str, tmp_path: Path) -> None:
    path = write(f"light_{name}", tmp_path / f"{name}.onnx", seed=0)
    graph = load_model(path)
    worst, compared = worst_layer_error(graph, onnx.load(str(path)), random_inputs(graph, seed=1))
    assert worst <= 1e-4
    assert compared >= len(graph.groups) // 2
    plan = plan_memory(graph)
    assert plan.arena_bytes <= 1.1 * plan.lower_bound_bytes


@pytest.mark.slow
@pytest.mark.skipif(not BASIC_PITCH, reason="set TFB_BASIC_PITCH to Basic Pitch's nmp.onnx")
def test_a_trained_network_layer_by_layer() -> None:
    path = Path(BASIC_PITCH)
    graph = load_model(path, {"serving_default_input_2:0": (1, 43844, 1)})
    inputs = random_inputs(graph, seed=1, low=-0.5, high=0.5)
    worst, compared = worst_layer_error(graph, onnx.load(str(path)), inputs)
    assert worst <= 1e-4
    assert compared >= 80
