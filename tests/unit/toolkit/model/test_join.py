"""Groups that feed one another as one operator: which are joined, and what they compute."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from boards.board import load
from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from tests.whole_models import run_generated
from toolkit.model.graph import Graph
from toolkit.model.join import joined
from toolkit.model.labels import short_name
from toolkit.model.load import load_model

RNG = np.random.default_rng(32)
SMALL = load("rpi3b").target(None)  # its caches hold no whole image
GPU = load("p100").target(None)
IMAGE = {"x": (1, 4, 64, 64)}


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


WEIGHTS = {"expand": weight(96, 4, 1, 1), "window": weight(96, 1, 3, 3), "project": weight(4, 96, 1, 1)}
EXPAND = (node("Conv", ["x", "expand"], "e"), node("Relu", ["e"], "f"))
WINDOW = (
    node("Conv", ["f", "window"], "d", group=96, pads=[1, 1, 1, 1]),
    node("Clip", ["d", "low", "high"], "g"),
)
PROJECT = (node("Conv", ["g", "project"], "p"), node("Add", ["p", "x"], "y"))
BOUNDS = {"low": np.float32(0.0), "high": np.float32(6.0)}


def members(graph: Graph) -> list[tuple[str, ...]]:
    return [group.nodes for group in graph.groups]


def bottleneck(*others: Any, outputs: tuple[str, ...] = ("y",)) -> Any:
    return model([*EXPAND, *WINDOW, *PROJECT, *others], IMAGE, list(outputs), WEIGHTS | BOUNDS)


def test_an_inverted_bottleneck_is_one_operator(tmp_path: Path) -> None:
    proto = bottleneck()
    graph = load_model(save(tmp_path, proto))
    chain = joined(graph, SMALL)
    assert ("node_e", "node_f", "node_d", "node_g", "node_p", "node_y") in members(chain)
    assert len(chain.groups) == len(graph.groups) - 2
    (name,) = {short_name(group.operator) for group in chain.groups if len(group.nodes) == 6}
    assert name == "conv 1x1 64x64 4->96 ... 64x64x4"
    inputs = random_inputs(graph, RNG)
    wanted = onnxruntime_values(proto, inputs, list(graph.outputs))
    (got,) = run_generated([(chain, inputs)], tmp_path)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-4, atol=1e-4)


def test_attention_is_one_operator(tmp_path: Path) -> None:
    tokens = {"q": (2, 72, 16), "k": (2, 16, 72), "v": (2, 72, 16)}
    mask = np.where(np.arange(72) < 50, 0.0, -10000.0).astype(np.float32)
    scores = [node("MatMul", ["q", "k"], "s"), node("Add", ["s", "mask"], "t")]
    weights = [node("Softmax", ["t"], "w", axis=-1), node("MatMul", ["w", "v"], "y")]
    proto = model([*scores, *weights], tokens, ["y"], {"mask": mask})
    graph = load_model(save(tmp_path, proto))
    # On dozens of cores the blocks of rows leave some idle, and it is not joined.
    one_core = msgspec.structs.replace(load("host").target(), cores=(0,))
    chain = joined(graph, one_core)
    assert members(chain) == [("node_s", "node_t", "node_w", "node_y")]
    inputs = random_inputs(graph, RNG)
    wanted = onnxruntime_values(proto, inputs, list(graph.outputs))
    (got,) = run_generated([(chain, inputs)], tmp_path)
    np.testing.assert_allclose(got["y"], wanted["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "proto",
    [bottleneck(outputs=("g", "y")), bottleneck(node("Sqrt", ["g"], "z"), outputs=("y", "z"))],
    ids=["an output", "two readers"],
)
def test_what_others_read_is_computed_whole(tmp_path: Path, proto: Any) -> None:
    chain = joined(load_model(save(tmp_path, proto)), SMALL)
    assert ("node_p", "node_y") in members(chain)


def test_where_nothing_is_won_groups_stay_alone(tmp_path: Path) -> None:
    graph = load_model(save(tmp_path, bottleneck()))
    large = msgspec.structs.replace(SMALL, l2_bytes=1 << 26)
    assert joined(graph, large).steps == graph.steps
    assert joined(graph, GPU).steps == graph.steps
