"""What heads of an attention make, read where it is by the product behind them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from tests.whole_models import run_generated
from toolkit.model.graph import Graph
from toolkit.model.load import load_model

RNG = np.random.default_rng(71)
HEADS, WIDTH, RESULTS = 3, 8, 10


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def attention(batch: int, *others: Any, outputs: tuple[str, ...] = ("y",), computed: bool = False) -> Any:
    """Of queries, keys that are transposed already, and values of 5 and 7 tokens, with a projection."""
    rows = {"shape": np.array([batch, 5, HEADS * WIDTH])}
    inputs = {
        "q": (batch, 5, HEADS, WIDTH),
        "k": (batch, HEADS, WIDTH, 7),
        "v": (batch, 7, HEADS, WIDTH),
        "residual": (batch, 5, RESULTS),
    }
    if computed:
        inputs["w"] = (HEADS * WIDTH, RESULTS)
    else:
        rows["w"] = weight(HEADS * WIDTH, RESULTS)
    nodes = [
        node("Transpose", ["q"], "queries", perm=[0, 2, 1, 3]),
        node("Transpose", ["v"], "values", perm=[0, 2, 1, 3]),
        node("MatMul", ["queries", "k"], "scores"),
        node("Softmax", ["scores"], "shares", axis=-1),
        node("MatMul", ["shares", "values"], "heads"),
        node("Transpose", ["heads"], "moved", perm=[0, 2, 1, 3]),
        node("Reshape", ["moved", "shape"], "rows"),
        node("MatMul", ["rows", "w"], "projected"),
        node("Add", ["projected", "b"], "shifted"),
        node("Add", ["shifted", "residual"], "y"),
    ]
    return model([*nodes, *others], inputs, list(outputs), rows | {"b": weight(RESULTS)})


def transposes(graph: Graph) -> int:
    return sum(group.operator.name == "transpose" for group in graph.groups)


@pytest.mark.parametrize("batch", [1, 2])
def test_nothing_is_moved_and_the_results_are_onnxruntime_s(batch: int, tmp_path: Path) -> None:
    proto = attention(batch)
    graph = load_model(save(tmp_path, proto))
    assert transposes(graph) == 0
    assert [group.operator.name for group in graph.groups][-1] == "conv"
    inputs = random_inputs(graph, RNG)
    wanted = onnxruntime_values(proto, inputs, list(graph.outputs))
    (got,) = run_generated([(graph, inputs)], tmp_path)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "proto",
    [
        attention(1, node("Sqrt", ["moved"], "z"), outputs=("y", "z")),
        attention(1, node("Exp", ["rows"], "z"), outputs=("y", "z")),
        attention(1, outputs=("y", "moved")),
        attention(1, computed=True),
    ],
    ids=["moved for others", "rows for others", "an output", "computed weights"],
)
def test_otherwise_results_of_heads_are_moved(proto: Any, tmp_path: Path) -> None:
    graph = load_model(save(tmp_path, proto))
    assert transposes(graph) == 1
    inputs = random_inputs(graph, RNG)
    wanted = onnxruntime_values(proto, inputs, list(graph.outputs))
    (got,) = run_generated([(graph, inputs)], tmp_path)
    for name, array in wanted.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-5, atol=1e-5)


def test_rows_that_mix_heads_are_moved(tmp_path: Path) -> None:
    """[3, 5, 8] moved to [5, 3, 8] are 10 rows of 12 elements here, of a head and a half each."""
    nodes = [
        node("Transpose", ["x"], "moved", perm=[1, 0, 2]),
        node("Reshape", ["moved", "shape"], "rows"),
        node("MatMul", ["rows", "w"], "y"),
    ]
    weights = {"shape": np.array([10, 12]), "w": weight(12, RESULTS)}
    assert transposes(load_model(save(tmp_path, model(nodes, {"x": (3, 5, 8)}, ["y"], weights)))) == 1
