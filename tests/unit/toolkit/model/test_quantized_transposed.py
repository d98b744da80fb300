"""Transposed convolutions between quantizations against exact sums: one operator on bytes each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from boards.board import load
from boards.target import Target
from tests.onnx_models import save
from tests.targets import AVX2
from tests.unit.toolkit.model.test_quantized import BYTES, Quantized, integers, of, scale, zero_point
from tests.whole_models import run_generated
from toolkit.model.graph import Graph
from toolkit.model.load import adapted, load_model
from toolkit.model.reference import run_reference

Array = NDArray[Any]
A53 = load("emulated-a53").target(None)
DOTS = msgspec.structs.replace(A53, cpu="cortex-a76", features=("+neon", "+dotprod"))
GPU = load("jetson-nano").target("gpu")


def scattered(data: Array, weight: Array, settings: dict[str, Any]) -> Array:
    """The sums by ONNX's definition: each element of the data times the kernel is added to the output."""
    strides, dilations, pads = settings["strides"], settings["dilations"], settings["pads"]
    groups, image, kernel = settings["group"], data.shape[2:], weight.shape[2:]
    whole = [
        (image[i] - 1) * strides[i] + (kernel[i] - 1) * dilations[i] + 1 + settings["output_padding"][i]
        for i in range(2)
    ]
    read, written = weight.shape[0] // groups, weight.shape[1]
    sums = np.zeros((data.shape[0], written * groups, *whole), np.int64)
    for group, (place, *_) in (
        (g, at) for g in range(groups) for at in zip(np.ndindex(*kernel), strict=True)
    ):
        inputs = slice(group * read, (group + 1) * read)
        part = np.einsum("nchw,co->nohw", data[:, inputs], weight[inputs, :, place[0], place[1]])
        rows, columns = (
            slice(
                place[i] * dilations[i], place[i] * dilations[i] + (image[i] - 1) * strides[i] + 1, strides[i]
            )
            for i in range(2)
        )
        sums[:, group * written : (group + 1) * written, rows, columns] += part
    return sums[:, :, pads[0] : whole[0] - pads[2], pads[1] : whole[1] - pads[3]]


def geometry(rng: np.random.Generator, image: tuple[int, int]) -> tuple[list[int], dict[str, Any]]:
    """A kernel and attributes that leave an output."""
    while True:
        kernel = [int(rng.integers(1, 5)) for _ in range(2)]
        strides = [int(rng.integers(1, 4)) for _ in range(2)]
        settings = {
            "strides": strides,
            "pads": [int(rng.integers(2)) for _ in range(4)],
            "dilations": [int(rng.choice((1, 1, 2))) for _ in range(2)],
            "output_padding": [int(rng.integers(stride)) for stride in strides],
        }
        reach = [(k - 1) * d for k, d in zip(kernel, settings["dilations"], strict=True)]
        if all(reach[i] + 1 > settings["pads"][i] + settings["pads"][2 + i] for i in range(2)):
            return kernel, settings


def drawn_transposed(rng: np.random.Generator) -> tuple[Quantized, Array]:
    """A quantized ConvTranspose with or without a bias, and what it computes, from exact sums."""
    kinds, groups = [str(rng.choice(BYTES)) for _ in range(3)], int(rng.choice((1, 1, 1, 2, 4)))
    read, written = int(rng.choice((1, 3, 4, 8, 17))), int(rng.choice((1, 3, 5, 16, 24)))
    written = 1 if read == 1 and groups > 1 else written
    image = (1, 1) if rng.integers(8) == 0 else (int(rng.integers(2, 7)), int(rng.integers(2, 9)))
    kernel, settings = geometry(rng, image)
    settings["group"] = groups
    data = integers(rng, (int(rng.choice((1, 2))), groups * read, *image), kinds[0])
    middle = 128 if kinds[1] == "uint8" else 0
    reach = int(rng.choice((128, 100, 63)))  # within 100, weights behind their zero points are bytes
    weight = rng.integers(middle - reach, middle + reach, (groups * read, written, *kernel)).astype(kinds[1])
    each = (written,) if groups == 1 and rng.integers(2) else ()
    zeros = [zero_point(rng, kinds[0]) if rng.integers(3) else np.zeros((), kinds[0])]
    zeros.append(np.asarray(rng.integers(middle - 20, middle + 20, each)).astype(kinds[1]))
    zeros.append(zero_point(rng, kinds[2]))
    scales = [scale(rng), scale(rng, each), np.array(rng.uniform(0.3, 3.0), np.float32)]
    centered = weight.astype(np.int64) - zeros[1].astype(np.int64).reshape(-1, 1, 1)
    sums = scattered(data.astype(np.int64) - int(zeros[0]), centered, settings)
    known = {"w": weight, **{f"s{i}": item for i, item in enumerate(scales)}}
    known |= {f"z{i}": np.asarray(item) for i, item in enumerate(zeros)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s0", "z0"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "s1", "z1"], ["b"], axis=1),
    ]
    operands = ["a", "b"]
    if rng.integers(2):
        bias = rng.integers(-3000, 3000, groups * written, "int32")
        steps = np.broadcast_to(scales[0] * scales[1], bias.shape).astype(np.float32)
        known |= {"c": bias, "sc": steps, "zc": np.zeros(bias.shape, np.int32)}
        nodes.append(helper.make_node("DequantizeLinear", ["c", "sc", "zc"], ["d"], axis=0))
        operands.append("d")
        sums = sums + bias.reshape(-1, 1, 1)
    nodes.append(helper.make_node("ConvTranspose", operands, ["p"], kernel_shape=kernel, **settings))
    nodes.append(helper.make_node("QuantizeLinear", ["p", "s2", "z2"], ["y"]))
    factors = np.asarray(scales[0] * scales[1] / scales[2], np.float32).reshape(-1, 1, 1)
    limits = np.iinfo(kinds[2])
    want = np.rint(sums.astype(np.float32) * factors) + float(zeros[2])
    want = want.clip(limits.min, limits.max).astype(kinds[2])
    ends = [helper.make_tensor_value_info("x", of(kinds[0]), data.shape)]
    results = [helper.make_tensor_value_info("y", of(kinds[2]), want.shape)]
    held = [numpy_helper.from_array(item, name) for name, item in known.items()]
    graph = helper.make_graph(nodes, "transposed", ends, results, held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    return Quantized(proto, {"x": data}), want


def of_transposed(rng: np.random.Generator) -> Quantized:
    return drawn_transposed(rng)[0]


def in_floats(case: Quantized) -> Array:
    """By onnxruntime as written, operator by operator."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    model = case.proto.SerializeToString()
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return np.asarray(session.run(None, case.inputs)[0])


def reads_bytes(graph: Graph) -> bool:
    """Whether no convolution of the graph reads floats."""
    found = [node for node in graph.nodes if node.op == "ConvTranspose"]
    return all("float" not in graph.values[name].dtype for node in found for name in node.inputs)


@pytest.mark.parametrize("target", [AVX2, A53, DOTS, GPU], ids=["x86-64-v3", "a53", "a76", "gpu"])
def test_phases_of_bytes_give_the_sums(target: Target, tmp_path: Path) -> None:
    """Whichever signs and words a target takes; padding is the zero point, which is taken away by phase."""
    rng, packed = np.random.default_rng(5), 0
    for number in range(16):
        case, want = drawn_transposed(rng)
        graph = adapted(load_model(save(tmp_path, case.proto, f"{number}.onnx")), target)
        assert reads_bytes(graph)
        np.testing.assert_array_equal(run_reference(graph, case.inputs)["y"], want)
        packed += any("packed" in node.attributes for node in graph.nodes)
    assert packed >= 4


def test_generated_code_gives_what_onnxruntime_computes(tmp_path: Path) -> None:
    rng = np.random.default_rng(6)
    cases = [drawn_transposed(rng)[0] for _ in range(6)]
    graphs = [load_model(save(tmp_path, case.proto, "case.onnx")) for case in cases]
    models = [(graph, case.inputs) for graph, case in zip(graphs, cases, strict=True)]
    got = np.concatenate([found["y"].ravel().astype(int) for found in run_generated(models, tmp_path)])
    want = np.concatenate([in_floats(case).ravel().astype(int) for case in cases])
    assert len(np.unique(want)) > 100 and (got == want).mean() >= 0.9999


def test_a_bias_of_floats_leaves_sums_of_integers(tmp_path: Path) -> None:
    """As PyTorch exports it: floats are made behind the sum."""
    rng = np.random.default_rng(7)
    weight, bias = integers(rng, (8, 6, 2, 2), "int8"), rng.normal(0, 20, 6).astype(np.float32)
    known = {"w": weight, "c": bias, "s": np.float32(0.02), "z": np.int8(-9), "n": np.int8(0)}
    nodes = [
        helper.make_node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        helper.make_node("DequantizeLinear", ["w", "s", "n"], ["b"]),
        helper.make_node("ConvTranspose", ["a", "b", "c"], ["p"], strides=[2, 2]),
        helper.make_node("Relu", ["p"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info("x", of("int8"), (1, 8, 5, 4))]
    results = [helper.make_tensor_value_info("y", of("float32"), (1, 6, 10, 8))]
    held = [numpy_helper.from_array(np.asarray(item), name) for name, item in known.items()]
    graph = helper.make_graph(nodes, "transposed", ends, results, held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    case = Quantized(proto, {"x": integers(rng, (1, 8, 5, 4), "int8")})
    loaded = adapted(load_model(save(tmp_path, proto)), AVX2)
    assert reads_bytes(loaded)
    got, want = run_reference(loaded, case.inputs)["y"], in_floats(case)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5 * np.abs(want).max())
