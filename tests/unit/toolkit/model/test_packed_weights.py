"""Weights of 2, 4 and 8 bits against numpy in float64: in blocks and by column, packed where few rows are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.onnx_models import save
from tests.whole_models import run_generated
from toolkit.errors import ModelError
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

Array = NDArray[Any]
DTYPES = {"int4": ml_dtypes.int4, "uint4": ml_dtypes.uint4, "int8": np.int8, "uint8": np.uint8}
INNER, COLUMNS = 96, 40


def built(nodes: list[Any], rows: int, weights: dict[str, Array], inner: int = INNER) -> Any:
    graph = helper.make_graph(
        nodes, "weights", [helper.make_tensor_value_info("x", 1, [rows, inner])],
        [helper.make_tensor_value_info("y", 1, [rows, COLUMNS])],
        [numpy_helper.from_array(item, name) for name, item in weights.items()],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def reads_integers(graph: Graph, wanted: str = "MatMulBlocks") -> bool:
    return wanted in {node.op for node in graph.nodes}


def check(folder: Path, proto: Any, rows: int, weights: Array, *, packed: bool) -> Graph:
    """That reference and generated code compute x @ weights."""
    graph = load_model(save(folder, proto))
    data = np.random.default_rng(5).normal(0, 1, (rows, weights.shape[0])).astype(np.float32)
    expected = data.astype(np.float64) @ weights
    (generated,) = run_generated([(graph, {"x": data})], folder)
    for found in (run_reference(graph, {"x": data})["y"], generated["y"]):
        assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
    assert reads_integers(graph) == packed
    return graph


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "block"), [(1, 32), (3, 0), (1, 8), (7, 32)])
def test_dequantized_matrices(tmp_path: Path, dtype: str, rows: int, block: int) -> None:
    rng = np.random.default_rng(rows + block)
    limits = ml_dtypes.iinfo(DTYPES[dtype])
    weights, zeros = (
        rng.integers(int(limits.min), int(limits.max) + 1, shape)
        for shape in ((INNER, COLUMNS), (INNER // (block or INNER), COLUMNS))
    )
    scales = rng.uniform(0.01, 0.2, zeros.shape).astype(np.float32)
    stored = {"w": weights.astype(DTYPES[dtype]), "s": scales, "z": zeros.astype(DTYPES[dtype])}
    if not block:
        stored |= {"s": scales[0], "z": stored["z"][0]}
    nodes = [
        helper.make_node(
            "DequantizeLinear", ["w", "s", "z"], ["f"], axis=0 if block else 1, block_size=block
        ),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    repeated = (item.astype(np.float64).repeat(block or INNER, axis=0) for item in (zeros, scales))
    centre, scale = repeated
    graph = check(tmp_path, built(nodes, rows, stored), rows, (weights - centre) * scale, packed=rows < 5)
    if rows < 5:
        size = sum(
            graph.values[name].nbytes for name in graph.groups[0].inputs if graph.values[name].constant
        )
        assert size == INNER * COLUMNS // (2 if "4" in dtype else 1) + 2 * scales.size * 4


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize(("zeros", "inner"), [("none", 96), ("uint8", 96), ("float32", 96), ("uint8", 80)])
def test_matmul_n_bits(tmp_path: Path, bits: int, zeros: str, inner: int) -> None:
    rng, block = np.random.default_rng(bits), 32
    blocks = -(-inner // block)
    codes = rng.integers(0, 1 << bits, (COLUMNS, blocks * block))
    centre = rng.integers(0, 1 << bits, (COLUMNS, blocks)) if zeros != "none" else 1 << (bits - 1)
    scales = rng.uniform(0.01, 0.2, (COLUMNS, blocks)).astype(np.float32)
    stored = {"b": in_bits(codes, bits).reshape(COLUMNS, blocks, -1), "s": scales.ravel()}
    if zeros != "none":
        centre = centre + (0.25 if zeros == "float32" else 0)
        stored["z"] = centre.astype(np.float32) if zeros == "float32" else in_bits(centre, bits).ravel()
    operands = ["x", "b", "s", "z" if zeros != "none" else "", "", "c"]
    stored["c"] = rng.normal(0, 1, COLUMNS).astype(np.float32)
    sizes = {"K": inner, "N": COLUMNS, "bits": bits, "block_size": block}
    node = helper.make_node("MatMulNBits", operands, ["y"], domain="com.microsoft", accuracy_level=1, **sizes)
    proto = built([node], 2, stored, inner)
    wide = (codes - np.broadcast_to(centre, scales.shape).repeat(block, 1)) * scales.astype(float).repeat(
        block, 1
    )
    graph = load_model(save(tmp_path, proto))
    data = rng.normal(0, 1, (2, inner)).astype(np.float32)
    expected = data.astype(np.float64) @ wide[:, :inner].T + stored["c"]
    (generated,) = run_generated([(graph, {"x": data})], tmp_path)
    for found in (run_reference(graph, {"x": data})["y"], generated["y"]):
        assert np.abs(found - expected).max() <= 2e-6 * np.abs(expected).max()
    assert reads_integers(graph) == (zeros != "float32" and inner % block == 0)
    if bits == 4 or (bits == 8 and zeros != "float32"):  # onnxruntime has no kernel of the others
        session = onnxruntime.InferenceSession(proto.SerializeToString(), providers=["CPUExecutionProvider"])
        assert np.abs(session.run(None, {"x": data})[0] - expected).max() <= 1e-3 * np.abs(expected).max()


def in_bits(codes: Array, bits: int) -> Array:
    """Rows of numbers in bytes, the first in the lowest bits; a last byte is filled with zeros."""
    each = 8 // bits
    padded = np.pad(codes, ((0, 0), (0, -codes.shape[1] % each))).astype(np.uint8)
    shifts = np.arange(each, dtype=np.uint8) * bits
    return np.bitwise_or.reduce(padded.reshape(len(codes), -1, each) << shifts, axis=-1).astype(np.uint8)


@pytest.mark.parametrize(
    ("attributes", "order", "text"),
    [({"bits": 3}, "", "it has weights of 3 bits in blocks of 32; expected 2, 4 or 8 bits"),
     ({}, "g", "its weights are ordered by g_idx; expected blocks of neighbouring rows")],
)  # fmt: skip
def test_what_is_not_there_is_refused(
    tmp_path: Path, attributes: dict[str, int], order: str, text: str
) -> None:
    stored = {"b": np.zeros((COLUMNS, 3, 16), np.uint8), "s": np.ones(COLUMNS * 3, np.float32)}
    stored["g"] = np.arange(INNER, dtype=np.int32)
    sizes = {"K": INNER, "N": COLUMNS, "block_size": 32, **attributes}
    operands = ["x", "b", "s", "", order]
    node = helper.make_node("MatMulNBits", operands, ["y"], "n", domain="com.microsoft", **sizes)
    with pytest.raises(ModelError, match=f"node 'n' .com.microsoft.MatMulNBits.: {text}"):
        load_model(save(tmp_path, built([node], 2, stored)))
