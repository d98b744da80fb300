"""Models whose expressions would be deep or large: bounded, right, and refused where neither helps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from tests.whole_models import run_generated
from toolkit.errors import ModelError
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference


def check(proto: Any, folder: Path) -> int:
    """Reference and generated code equal onnxruntime; returns the number of groups."""
    graph = load_model(save(folder, proto))
    inputs = random_inputs(graph)
    (generated,) = run_generated([(graph, inputs)], folder)
    for name, expected in onnxruntime_values(proto, inputs, graph.outputs).items():
        for found in (run_reference(graph, inputs), generated):
            np.testing.assert_allclose(found[name], expected, rtol=1e-4, atol=1e-30)
    return len(graph.groups)


@pytest.mark.slow
@pytest.mark.parametrize(("op", "length"), [("Relu", 2000), ("HardSwish", 40), ("Mish", 40), ("Gelu", 40)])
def test_a_long_chain_becomes_several_groups(op: str, length: int, tmp_path: Path) -> None:
    nodes = [node(op, [f"v{step}"], f"v{step + 1}") for step in range(length)]
    groups = check(model(nodes, {"v0": (3, 19)}, [f"v{length}"], opset=20), tmp_path)
    assert 1 < groups <= length // 2


def test_a_chain_through_reshapes_is_bounded(tmp_path: Path) -> None:
    nodes, shapes = [], {"even": np.asarray([3, 8], np.int64), "odd": np.asarray([8, 3], np.int64)}
    for step in range(0, 200, 2):
        nodes.append(node("Relu", [f"v{step}"], f"v{step + 1}"))
        nodes.append(node("Reshape", [f"v{step + 1}", "odd" if step % 4 else "even"], f"v{step + 2}"))
    assert check(model(nodes, {"v0": (3, 8)}, ["v200"], shapes), tmp_path) > 1


@pytest.mark.parametrize("parts", [17, pytest.param(300, marks=pytest.mark.slow)])
def test_concatenation_of_many_parts(parts: int, tmp_path: Path) -> None:
    shapes = {f"x{part}": (2, 1 + part % 3) for part in range(parts)}
    check(model([node("Concat", list(shapes), "y", axis=1)], shapes, ["y"]), tmp_path)


@pytest.mark.parametrize("count", [4, 300])
def test_truth_values_in_a_row(count: int, tmp_path: Path) -> None:
    nodes = [node("Less", ["x", "y"], "c0")]
    nodes += [node("Not", [f"c{step}"], f"c{step + 1}") for step in range(count)]
    nodes.append(node("Where", [f"c{count}", "x", "y"], "z"))
    proto = model(nodes, {"x": (3, 4), "y": (3, 4)}, ["z"])
    if count == 4:
        check(proto, tmp_path)
        return
    with pytest.raises(ModelError, match=r"'node_z' \(Where\) reads truth values of 302 nodes in a row"):
        load_model(save(tmp_path, proto))
