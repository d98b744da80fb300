"""Products of two computed 8-bit operands, as attention has them, against exact sums."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from boards.board import load
from boards.target import Target
from tests.onnx_models import save
from tests.targets import AVX2, HOST
from tests.unit.toolkit.model.test_quantized import drawn_activations
from tests.whole_models import run_generated
from toolkit.model.graph import Graph
from toolkit.model.load import adapted, load_model
from toolkit.model.reference import run_reference

A53 = load("emulated-a53").target(None)
DOTS = msgspec.structs.replace(A53, cpu="cortex-a76", features=("+neon", "+dotprod"))
GPU = load("jetson-nano").target("gpu")


@pytest.mark.parametrize("target", [AVX2, A53, DOTS, GPU], ids=["x86-64-v3", "a53", "a76", "gpu"])
def test_words_and_zero_points_give_the_sums(target: Target, tmp_path: Path) -> None:
    """Whichever operand a target takes with signs, and however many bytes fill a word."""
    rng, packed = np.random.default_rng(3), 0
    for number in range(20):
        case, want = drawn_activations(rng)
        graph = adapted(load_model(save(tmp_path, case.proto, f"{number}.onnx")), target)
        np.testing.assert_array_equal(run_reference(graph, case.inputs)["y"], want)
        packed += any("packed" in node.attributes for node in graph.nodes)
    assert packed > 10


def test_generated_code_gives_the_sums(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    cases = [drawn_activations(rng) for _ in range(8)]
    graphs = [load_model(save(tmp_path, case.proto, "case.onnx")) for case, _ in cases]
    found = run_generated(
        [(graph, case.inputs) for graph, (case, _) in zip(graphs, cases, strict=True)], tmp_path
    )
    for got, (_, want) in zip(found, cases, strict=True):
        np.testing.assert_array_equal(got["y"], want)


ATTENTION = """
<ir_version: 9, opset_import: ["" : 19]>
attention (uint8[1, 24, 32] q, uint8[1, 24, 32] k, uint8[1, 24, 32] v) => (uint8[1, 24, 32] y)
<float s = {0.021}, float p = {0.00390625}, float r = {0.017}, float d = {0.11}, uint8 z = {119},
 uint8 o = {0}, int64[4] heads = {1, 24, 4, 8}, int64[3] whole = {1, 24, 32}>
{
    a = DequantizeLinear (q, s, z) b = DequantizeLinear (k, s, z) c = DequantizeLinear (v, s, z)
    ah = Reshape (a, heads) bh = Reshape (b, heads) ch = Reshape (c, heads)
    at = Transpose <perm = [0, 2, 1, 3]> (ah)
    bt = Transpose <perm = [0, 2, 3, 1]> (bh)
    ct = Transpose <perm = [0, 2, 1, 3]> (ch)
    aq = QuantizeLinear (at, s, z) bq = QuantizeLinear (bt, s, z) cq = QuantizeLinear (ct, s, z)
    ad = DequantizeLinear (aq, s, z) bd = DequantizeLinear (bq, s, z) cd = DequantizeLinear (cq, s, z)
    m = MatMul (ad, bd) mq = QuantizeLinear (m, d, z) md = DequantizeLinear (mq, d, z)
    f = Softmax <axis = -1> (md) fq = QuantizeLinear (f, p, o) fd = DequantizeLinear (fq, p, o)
    n = MatMul (fd, cd) nq = QuantizeLinear (n, r, z) nd = DequantizeLinear (nq, r, z)
    nt = Transpose <perm = [0, 2, 1, 3]> (nd) w = Reshape (nt, whole) y = QuantizeLinear (w, r, z)
}
"""


def products(graph: Graph) -> list[set[str]]:
    """What the products read that is computed."""
    operators = [group.operator for group in graph.groups if group.operator.name == "matmul"]
    return [
        {item.dtype for place, item in enumerate(operator.inputs) if place not in operator.constants}
        for operator in operators
    ]


@pytest.mark.parametrize("target", [HOST, A53], ids=["host", "a53"])
def test_attention_multiplies_bytes(target: Target, tmp_path: Path) -> None:
    """Both products of heads between quantizations; of the first no float32 copy of an operand is made."""
    proto = onnx.parser.parse_model(ATTENTION)
    rng = np.random.default_rng(2)
    inputs = {name: rng.integers(0, 256, (1, 24, 32), np.uint8) for name in "qkv"}
    graph = adapted(load_model(save(tmp_path, proto, "attention.onnx")), target)
    read = products(graph)
    assert len(read) >= 2 and not any("float32" in kinds for kinds in read)
    got = run_reference(graph, inputs)["y"]
    (want,) = ReferenceEvaluator(proto).run(None, inputs)
    assert (got == want).mean() >= 0.9999 and np.ptp(want) > 100
