"""Normalizations that are written out become one operator; what only looks alike stays as it is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

WEIGHTS = {"two": np.float32(2.0), "tiny": np.float32(1e-3), "other": np.asarray([1.0, 2.0], np.float32)}


def written_out(axes: tuple[list[int], list[int]] = ([-1], [-1]), epsilon: str = "tiny") -> list[Any]:
    return [
        node("ReduceMean", ["x"], "m", axes=axes[0]),
        node("Sub", ["x", "m"], "c"),
        node("Pow", ["c", "two"], "s"),
        node("ReduceMean", ["s"], "v", axes=axes[1]),
        node("Add", ["v", epsilon], "a"),
        node("Sqrt", ["a"], "d"),
        node("Div", ["c", "d"], "n"),
    ]


def loaded(tmp_path: Path, nodes: list[Any], outputs: tuple[str, ...] = ("n",)) -> Graph:
    proto = model(nodes, {"x": (3, 2, 8)}, list(outputs), WEIGHTS)
    graph = load_model(save(tmp_path, proto))
    inputs = random_inputs(graph)
    got, want = run_reference(graph, inputs), onnxruntime_values(proto, inputs, outputs)
    for name in outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5)
    return graph


def normalizations(graph: Graph) -> int:
    return sum(item.op == "Normalize" for item in graph.nodes)


@pytest.mark.parametrize("axes", [[-1], [1, 2], [0]], ids=str)
def test_a_normalization_is_one_group(tmp_path: Path, axes: list[int]) -> None:
    graph = loaded(tmp_path, written_out((axes, axes)))
    assert normalizations(graph) == len(graph.groups) == 1


def test_it_may_subtract_twice(tmp_path: Path) -> None:
    """As exporters do that repeat what two nodes read."""
    nodes = written_out()
    nodes[2:3] = [node("Sub", ["x", "m"], "c2"), node("Mul", ["c", "c2"], "s")]
    assert normalizations(loaded(tmp_path, nodes)) == 1


def test_what_others_read_of_it_stays(tmp_path: Path) -> None:
    graph = loaded(tmp_path, written_out(), ("n", "v"))
    assert normalizations(graph) == 1
    assert len(graph.groups) > 1


def test_what_only_looks_alike_stays(tmp_path: Path) -> None:
    assert normalizations(loaded(tmp_path, written_out(([-1], [1])))) == 0
    nodes = written_out()
    nodes[6] = node("Div", ["x", "d"], "n")
    assert normalizations(loaded(tmp_path, nodes)) == 0
    nodes = written_out()
    nodes[0] = node("ReduceSum", ["x"], "m", keepdims=1)
    assert normalizations(loaded(tmp_path, nodes)) == 0
    nodes = written_out()
    nodes[2] = node("Mul", ["c", "x"], "s")
    nodes[5] = node("Sqrt", ["b"], "d")
    nodes.insert(5, node("Abs", ["a"], "b"))
    assert normalizations(loaded(tmp_path, nodes)) == 0
