"""Which values of a network are stored as half floats."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np

from boards.board import load
from boards.target import Target
from tests.onnx_models import model, node, save
from toolkit.model.graph import Graph
from toolkit.model.half_storage import stored_for
from toolkit.model.load import load_model

POCL = load("pocl").target("opencl")
HALVES: Target = msgspec.structs.replace(POCL, storage="float16")


def network(folder: Path, largest: float = 1.0) -> Graph:
    """Two dense layers with biases and a ReLU between, and a reshape of the output."""
    rng = np.random.default_rng(2)
    weights = {
        "w1": rng.uniform(-1, 1, (6, 8)).astype(np.float32),
        "b1": np.ones(8, np.float32),
        "w2": np.full((8, 4), largest, np.float32),
        "shape": np.array([2, 2, 2]),
    }
    nodes = [
        node("Gemm", ["x", "w1", "b1"], "h"),
        node("Relu", ["h"], "r"),
        node("MatMul", ["r", "w2"], "m"),
        node("Reshape", ["m", "shape"], "y"),
    ]
    return load_model(save(folder, model(nodes, {"x": (2, 6)}, ["y"], weights)))


def dtypes(graph: Graph) -> list[list[str]]:
    """Of every operator: its inputs, then its output."""
    return [
        [*(item.dtype for item in group.operator.inputs), group.operator.output.dtype]
        for group in graph.groups
    ]


def test_weights_and_results_between_operators_are_halves(tmp_path: Path) -> None:
    graph = network(tmp_path)
    stored = stored_for(graph, HALVES)
    assert dtypes(stored) == [["float32", "float16", "float32", "float16"], ["float16", "float16", "float32"]]
    for group in stored.groups:
        values = [stored.values[name].dtype for name in (*group.inputs, group.output)]
        assert values == [*(item.dtype for item in group.operator.inputs), group.operator.output.dtype]
    constants = [value for value in stored.values.values() if value.data is not None]
    assert all(value.data is not None and value.data.dtype == value.dtype for value in constants)
    assert stored_for(graph, POCL) is graph


def test_weights_too_large_for_halves_stay(tmp_path: Path) -> None:
    stored = stored_for(network(tmp_path, largest=1e5), HALVES)
    assert dtypes(stored)[1] == ["float16", "float32", "float32"]
