"""Functions of bytes as tables, and products of computed bytes in exact floats."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.onnx_models import node, save
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

SCALES: dict[str, Any] = {"s": np.float32(0.04), "t": np.float32(0.01), "two": np.float32(1.7)}


def typed(
    nodes: list[Any], inputs: dict[str, Any], shape: tuple[int, ...], constants: dict[str, Any], dtypes: Any
) -> Any:
    """A model whose inputs and whose output y, of that shape, have these two dtypes."""
    kinds = [helper.np_dtype_to_tensor_dtype(np.dtype(item)) for item in dtypes]
    graph = helper.make_graph(
        nodes,
        "bytes",
        [helper.make_tensor_value_info(name, kinds[0], size) for name, size in inputs.items()],
        [helper.make_tensor_value_info("y", kinds[1], shape)],
        [numpy_helper.from_array(np.asarray(item), name) for name, item in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def looked_up(folder: Path, nodes: list[Any], zero: Any, *, tables: int, **constants: Any) -> Graph:
    """The graph from x to y, bytes [3, 5, 64], with so many tables, and what ONNX's reference computes."""
    proto = typed(nodes, {"x": (3, 5, 64)}, (3, 5, 64), SCALES | {"z": zero} | constants, (zero.dtype,) * 2)
    graph = load_model(save(folder, proto))
    assert sum(item.op == "LookUp" for item in graph.nodes) == tables
    every = np.random.default_rng(2).integers(0, 256, (3, 5, 64)).astype(np.uint8).view(zero.dtype)
    (want,) = ReferenceEvaluator(proto).run(None, {"x": every})
    got = run_reference(graph, {"x": every})["y"]
    assert got.dtype == want.dtype
    assert np.abs(got.astype(int) - want.astype(int)).max() <= 1  # erf of floats in steps, or in float64
    assert (got == want).mean() > 0.98
    return graph


def dequantized(name: str, result: str, scale: str = "s") -> Any:
    return node("DequantizeLinear", [name, scale, "z"], result)


@pytest.mark.parametrize("zero", [np.uint8(99), np.int8(-7)])
def test_a_gelu_that_is_quantized_between_is_one_table(zero: Any, tmp_path: Path) -> None:
    nodes = [
        dequantized("x", "a"),
        node("Erf", ["a"], "e"),
        node("QuantizeLinear", ["e", "t", "z"], "q"),
        dequantized("q", "f", "t"),
        node("Mul", ["a", "f"], "m"),
        node("QuantizeLinear", ["m", "s", "z"], "y"),
    ]
    graph = looked_up(tmp_path, nodes, zero, tables=1)
    assert len(graph.groups) == 1


def test_what_is_of_two_values_is_no_table(tmp_path: Path) -> None:
    """The sigmoid is one of its own; the product of it and a value moved along is computed."""
    nodes = [
        dequantized("x", "a"),
        node("Sigmoid", ["a"], "e"),
        node("QuantizeLinear", ["e", "t", "z"], "q"),
        dequantized("q", "f", "t"),
        node("Transpose", ["a"], "b", perm=[0, 1, 2]),
        node("Gather", ["b", "turned"], "g", axis=2),
        node("Mul", ["g", "f"], "m"),
        node("QuantizeLinear", ["m", "s", "z"], "y"),
    ]
    looked_up(tmp_path, nodes, np.uint8(99), tables=1, turned=np.arange(64)[::-1].copy())


@pytest.mark.parametrize("function", ["Mul", "Sigmoid"])
def test_only_long_functions_of_the_element_alone_are_looked_up(function: str, tmp_path: Path) -> None:
    """A product is faster computed; a sum of constants of the last dimension is of the place, too."""
    first = node("Mul", ["a", "two"], "e") if function == "Mul" else node("Sigmoid", ["a"], "e")
    moved = node("Add", ["e", "row"], "r") if function == "Sigmoid" else node("Identity", ["e"], "r")
    nodes = [dequantized("x", "a"), first, moved, node("QuantizeLinear", ["r", "s", "z"], "y")]
    row = {"row": np.linspace(-1, 1, 64, dtype=np.float32)}
    looked_up(tmp_path, nodes, np.uint8(99), tables=0, **row)


@pytest.mark.parametrize(("depth", "dtype"), [(64, "float32"), (600, "int16")])
def test_products_of_computed_bytes_are_of_floats_where_those_are_exact(
    depth: int, dtype: str, tmp_path: Path
) -> None:
    """Where their zero points are computed, too."""
    rng = np.random.default_rng(1)
    shapes: dict[str, tuple[int, ...]] = {"a": (2, 9, depth), "b": (2, depth, 7), "za": (), "zb": ()}
    nodes = [node("MatMulInteger", ["a", "b", "za", "zb"], "y")]
    proto = typed(nodes, shapes, (2, 9, 7), {}, ("uint8", "int32"))
    graph = load_model(save(tmp_path, proto))
    (product,) = (item for item in graph.nodes if item.op == "MatMul")
    assert {graph.values[name].dtype for name in product.inputs} == {dtype}
    inputs = {name: rng.choice(np.array([0, 255], np.uint8), shape) for name, shape in shapes.items()}
    inputs |= {"za": np.asarray(np.uint8(3)), "zb": np.asarray(np.uint8(250))}
    want = (inputs["a"].astype(np.int64) - 3) @ (inputs["b"].astype(np.int64) - 250)
    np.testing.assert_array_equal(run_reference(graph, inputs)["y"], want)
