"""Products of the same rows with several constant matrices as one on GPUs, and where they stay apart."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boards.board import load
from tests.onnx_models import model, node, random_inputs, save, worst_layer_error
from toolkit.model.graph import Graph, GraphBuilder, Value, verify
from toolkit.model.load import adapted, load_model
from toolkit.model.shared_products import share_products

CPU, GPU = load("rpi3b").target(None), load("jetson-nano").target("gpu")
RNG = np.random.default_rng(72)
HEADS, WIDTH, TOKENS = 2, 4, 6
CHANNELS = HEADS * WIDTH


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def projection(name: str, data: str, bias: bool = True, turned: bool = False) -> list[Any]:
    """Of data, moved by heads."""
    made = [node("MatMul", [data, f"w{name}"], f"m{name}")]
    if bias:
        made.append(node("Add", [f"m{name}", f"b{name}"], f"a{name}"))
    return [
        *made,
        node("Reshape", [f"{'a' if bias else 'm'}{name}", "by_heads"], f"r{name}"),
        node("Transpose", [f"r{name}"], f"h{name}", perm=[0, 2, 3, 1] if turned else [0, 2, 1, 3]),
    ]


def attention(
    queries: str = "x",
    bias: tuple[bool, ...] = (True, True, True),
    *others: Any,
    outputs: tuple[str, ...] = ("y",),
) -> Any:
    nodes = [
        *projection("q", queries, bias[0]),
        *projection("k", "x", bias[1], turned=True),
        *projection("v", "x", bias[2]),
        node("MatMul", ["hq", "hk"], "scores"),
        node("Softmax", ["scores"], "shares", axis=-1),
        node("MatMul", ["shares", "hv"], "y"),
    ]
    weights = {f"w{name}": weight(CHANNELS, CHANNELS) for name in "qkv"}
    weights |= {f"b{name}": weight(CHANNELS) for name in "qkv"}
    weights["by_heads"] = np.array([1, TOKENS, HEADS, WIDTH])
    shapes = {"x": (1, TOKENS, CHANNELS), "z": (1, TOKENS, CHANNELS)}
    return model([*nodes, *others], shapes, list(outputs), weights)


def columns(tmp_path: Path, proto: Any) -> list[int]:
    """The columns of every product with weights, in program order; the graph computes what ONNX says."""
    path = save(tmp_path, proto)
    assert adapted(load_model(path), CPU).nodes == load_model(path).nodes
    graph = adapted(load_model(path), GPU)
    worst, compared = worst_layer_error(graph, proto, random_inputs(graph))
    assert worst < 1e-5 and compared
    return _columns(graph)


def _columns(graph: Graph) -> list[int]:
    found = [group.operator for group in graph.groups if group.operator.constants]
    return [operator.output.shape[-1] for operator in found]


@pytest.mark.parametrize("bias", [(True, True, True), (False, False, False), (True, False, True)], ids=str)
def test_queries_keys_and_values_are_one_product(tmp_path: Path, bias: tuple[bool, ...]) -> None:
    """One that adds no bias adds zeros where another one adds some."""
    assert columns(tmp_path, attention("x", bias)) == [3 * CHANNELS]


def test_queries_of_something_else_are_a_product_of_their_own(tmp_path: Path) -> None:
    assert columns(tmp_path, attention("z")) == [CHANNELS, 2 * CHANNELS]


def test_what_is_computed_element_by_element_stays_with_its_product(tmp_path: Path) -> None:
    nodes = [
        node("MatMul", ["x", "u"], "gate"),
        node("Sigmoid", ["gate"], "open"),
        node("MatMul", ["x", "w"], "up"),
        node("Mul", ["open", "up"], "y"),
    ]
    weights = {"u": weight(CHANNELS, 12), "w": weight(CHANNELS, 12)}
    assert columns(tmp_path, model(nodes, {"x": (TOKENS, CHANNELS)}, ["y"], weights)) == [12, 12]


def test_a_sum_that_repeats_elements_is_no_bias() -> None:
    """Of results of 6 x 8 elements as a column and 8 others, 48 x 8."""
    build = GraphBuilder("sums")
    build.add(Value("x", (TOKENS, CHANNELS), "float32"))
    made = []
    for name in "uv":
        matrix, others = (
            build.constant(f"w{name}", weight(CHANNELS, 8)),
            build.constant(f"b{name}", weight(8)),
        )
        product = build.emit("MatMul", ["x", matrix], Value(f"m{name}", (TOKENS, 8), "float32"))
        column = build.emit("Reshape", [product], Value(f"r{name}", (8 * TOKENS, 1), "float32"))
        made.append(build.emit("Add", [column, others], Value(f"a{name}", (8 * TOKENS, 8), "float32")))
        build.emit("Transpose", [made[-1]], Value(f"t{name}", (8, 8 * TOKENS), "float32"), {"perm": (1, 0)})
    graph = build.finish(["x"], ["tu", "tv"])
    assert verify(share_products(graph)).nodes == graph.nodes


def test_what_is_an_output_is_made_alone(tmp_path: Path) -> None:
    found = columns(tmp_path, attention("x", (True, True, True), outputs=("y", "aq")))
    assert found == [CHANNELS, 2 * CHANNELS]


def test_products_of_different_attentions_stay_apart(tmp_path: Path) -> None:
    """Keys and values of what an encoder made, for one layer after the other."""
    nodes, weights = [], {"by_heads": np.array([1, TOKENS, HEADS, WIDTH])}
    data = "x"
    for layer in range(2):
        for name, read in (("q", data), ("k", "z"), ("v", "z")):
            nodes += projection(f"{name}{layer}", read, turned=name == "k")
            weights[f"w{name}{layer}"], weights[f"b{name}{layer}"] = (
                weight(CHANNELS, CHANNELS),
                weight(CHANNELS),
            )
        weights["flat"] = np.array([1, TOKENS, CHANNELS])
        nodes += [
            node("MatMul", [f"hq{layer}", f"hk{layer}"], f"s{layer}"),
            node("Softmax", [f"s{layer}"], f"p{layer}", axis=-1),
            node("MatMul", [f"p{layer}", f"hv{layer}"], f"o{layer}"),
            node("Transpose", [f"o{layer}"], f"t{layer}", perm=[0, 2, 1, 3]),
            node("Reshape", [f"t{layer}", "flat"], f"y{layer}"),
        ]
        data = f"y{layer}"
    shapes = {"x": (1, TOKENS, CHANNELS), "z": (1, TOKENS, CHANNELS)}
    assert columns(tmp_path, model(nodes, shapes, ["y1"], weights)) == [8, 16, 8, 16]
