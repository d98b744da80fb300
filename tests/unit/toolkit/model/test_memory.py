"""The static memory plan: nothing alive is overwritten, and little is wasted."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from tests.onnx_models import model, node, save
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.memory import ALIGNMENT_BYTES, Placement, aligned, place, plan_memory


@st.composite
def lives(draw: Any) -> list[Placement]:
    count = draw(st.integers(0, 25))
    found = []
    for number in range(count):
        first = draw(st.integers(0, 20))
        found.append(
            Placement(f"v{number}", 0, draw(st.integers(1, 5000)), first, first + draw(st.integers(0, 8)))
        )
    return found


def check(places: Sequence[Placement]) -> None:
    for position, one in enumerate(places):
        assert one.offset_bytes % ALIGNMENT_BYTES == 0
        for other in places[position + 1 :]:
            together = one.first_step <= other.last_step and other.first_step <= one.last_step
            apart = (
                one.offset_bytes + one.size_bytes <= other.offset_bytes
                or other.offset_bytes + other.size_bytes <= one.offset_bytes
            )
            assert apart or not together, (one, other)


@given(lives())
def test_live_values_never_overlap(found: list[Placement]) -> None:
    plan = place(found)
    assert len(plan.placements) == len(found)
    check(plan.placements)
    assert plan.lower_bound_bytes <= plan.arena_bytes <= sum(aligned(life.size_bytes) for life in found)
    assert place(found) == plan


def chain(tmp_path: Path, length: int) -> Graph:
    """relu -> matmul -> relu ..., each value read once by the next node, the first also by the last."""
    weights = {"w": np.eye(64, dtype=np.float32)}
    nodes = [node("Tanh", ["x"], "v0")]
    nodes += [node("MatMul", [f"v{i}", "w"], f"v{i + 1}") for i in range(length)]
    nodes.append(node("Add", [f"v{length}", "v0"], "y"))
    return load_model(save(tmp_path, model(nodes, {"x": (16, 64)}, ["y"], weights)))


def test_a_chain_needs_two_buffers_beside_the_long_lived_one(tmp_path: Path) -> None:
    graph = chain(tmp_path, 9)
    plan = plan_memory(graph)
    size = 16 * 64 * 4
    assert plan.arena_bytes == plan.lower_bound_bytes == 3 * size
    check(plan.placements)


def test_a_step_never_writes_what_it_reads(tmp_path: Path) -> None:
    graph = chain(tmp_path, 6)
    places = {place.value: place for place in plan_memory(graph).placements}
    for group in graph.groups:
        written = places.get(group.output)
        for name in group.inputs:
            read = places.get(graph.root(name))
            if written is not None and read is not None:
                check([written, read])


def test_inputs_outputs_and_constants_have_memory_of_their_own(tmp_path: Path) -> None:
    graph = chain(tmp_path, 3)
    placed = {place.value for place in plan_memory(graph).placements}
    assert placed.isdisjoint(map(graph.root, (*graph.inputs, *graph.outputs, *graph.constants)))


def test_reshaped_values_live_as_long_as_their_views(tmp_path: Path) -> None:
    nodes = [
        node("Tanh", ["x"], "a"),
        node("Reshape", ["a", "flat"], "b"),
        node("Softmax", ["x"], "c"),
        node("ReduceMax", ["c"], "d", axes=[1]),
        node("Mul", ["c", "d"], "e"),
        node("Reshape", ["e", "flat"], "f"),
        node("Softmax", ["f"], "g"),
        node("MatMul", ["b", "w"], "h"),
        node("Add", ["g", "h"], "y"),
    ]
    weights = {"flat": np.asarray([4, 16], np.int64), "w": np.eye(16, dtype=np.float32)}
    graph = load_model(save(tmp_path, model(nodes, {"x": (8, 8)}, ["y"], weights, opset=13)))
    places = {place.value: place for place in plan_memory(graph).placements}
    reader = next(step for step, group in enumerate(graph.groups) if "node_h" in group.nodes)
    assert places["a"].last_step == reader
    check(list(places.values()))
