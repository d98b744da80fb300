"""Figures of networks of integers from a case, their layers beside ONNX Runtime, LiteRT's models of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.integer_networks import FLOATS, quantized_network, row
from benchmarks.integer_networks import WRONG as WRONG_NETWORK
from benchmarks.integer_rivals import WRONG
from benchmarks.integer_steps import onnxruntime_values, steps_table
from benchmarks.integers import FULL, PEERS, _products, as_qdq, main
from benchmarks.kernels.inference import Network
from benchmarks.kernels.libraries.network_steps import Steps, network_steps
from benchmarks.kernels.libraries.onnxruntime_worker import OnnxRuntime
from benchmarks.kernels.libraries.quantized_steps import Quantization
from benchmarks.kernels.processes import LibraryProcess, contenders
from benchmarks.kernels.results import OWN, Case, Sample, Series
from benchmarks.kernels.workloads import Image, Workload
from cross.inspection.cpu_loops import LoopReport, Prediction


def series(library: str, seconds: float, error: float | None = 0.01) -> Series:
    rounds = tuple(Sample(seconds=seconds * factor, kept=7, disturbed=0) for factor in (1.0, 1.1, 0.9))
    return Series(library=library, variant="all", error=error, work=1e9, rounds=rounds)


def test_ratios_are_over_the_fastest_rival_that_is_right_and_over_our_floats() -> None:
    case = Case(
        workload="resnet50-int8", suite="networks", shape="", threads=1, flops=10**9, bytes_once=1,
        series=(series(OWN, 0.010), series(FLOATS, 0.030), series("slow", 0.020), series("fast", 0.015),
                series("wrong", 0.001, error=0.9)),
        not_measured={"absent": "no Python"},
    )  # fmt: skip
    found = row(case)
    assert found.best == "fast all"
    assert found.against is not None and abs(found.against.median - 1.5) < 1e-9
    assert found.over_floats is not None and abs(found.over_floats.median - 3.0) < 1e-9
    assert found.milliseconds[f"{OWN} all"] == 10.0
    text = found.text()
    assert "over the best rival (fast all): 1.50" in text and "goal 2.2" in text
    assert "over the others: slow all 2.00" in text
    assert "not measured: wrong all: wrong by 9.0e-01" in text and "absent: no Python" in text


def test_onnxruntime_is_a_rival_that_does_not_saturate_too(tmp_path: Path) -> None:
    """Sums of two products of the largest bytes exceed 16 bits; of networks of floats there is one way."""
    data, weight = np.full((4, 64), 2.55, np.float32), np.full((64, 32), 1.27, np.float32)
    weight[:, 1::2] = -1.27
    stored = {"s": np.float32(0.01), "z": np.uint8(0), "t": np.float32(0.01), "y": np.int8(0)}
    stored |= {"w": np.round(100 * weight).astype(np.int8), "r": np.float32(2.0), "q": np.uint8(128)}
    nodes = [
        helper.make_node(f"{kind}Linear", [value, scale, zero], [result])
        for kind, value, scale, zero, result in (
            ("Quantize", "x", "s", "z", "xq"), ("Dequantize", "xq", "s", "z", "xf"),
            ("Dequantize", "w", "t", "y", "wf"), ("Quantize", "m", "r", "q", "mq"),
            ("Dequantize", "mq", "r", "q", "out"),
        )
    ]  # fmt: skip
    nodes.insert(3, helper.make_node("MatMul", ["xf", "wf"], ["m"]))
    ends = [helper.make_tensor_value_info("x", 1, [4, 64]), helper.make_tensor_value_info("out", 1, [4, 32])]
    tensors = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "largest", ends[:1], ends[1:], tensors)
    model, arrays = tmp_path / "largest.onnx", tmp_path / "largest.npz"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), model)
    np.savez(arrays, input=data, output=data.astype(np.float64) @ weight)
    network = Network("largest", str(model), str(arrays), "", "", 0, 0, float_library="floats")
    library = OnnxRuntime(1)
    variants = {item.name: item for item in library.open_network(network, data)}
    assert list(variants) == ["all", "precise"]
    variants["precise"].call()
    exact = variants["precise"].output
    assert (
        exact is not None and np.abs(exact() - data.astype(np.float64) @ weight).max() <= 1.0
    )  # half a step
    floats = replace(network, float_library="")
    assert [item.name for item in library.open_network(floats, data)] == ["all"]


LOOP = LoopReport(
    function="k", label="l", depth=1, innermost=True, counts={}, flops=96, load_bytes=0, store_bytes=16,
    element_loads=0, vector_spills=0, scalar_spills=0, code_bytes=None,
    predictions=(Prediction("model", 20.0, 0.5),),
    lines=("smull\tv0.8h, v1.8b, v2.8b", "smlal\tv0.8h, v3.8b, v4.8b", "smull2\tv5.8h, v1.16b, v2.16b",
           "sadalp\tv6.4s, v0.8h", "sadalp\tv7.4s, v5.8h", "fmul\tv6.4s, v6.4s, v8.4s", "str\tq6, [x0]"),
    line_cycles=(1.0, 1.0, 2.0, 2.0, 1.5, 4.0, 1.0),
)  # fmt: skip


def test_products_of_a_loop_end_at_its_last_sum() -> None:
    """Three multiplications of eight bytes each; scaling and storing behind the sums takes no part."""
    assert _products(LOOP) == (24, 7.5)


@pytest.mark.parametrize("change", [{"store_bytes": 0}, {"lines": LOOP.lines[:3]}])
def test_products_of_other_loops_are_half_their_operations(change: dict[str, Any]) -> None:
    """Of loops that store nothing, or in which no pairs are added, every cycle counts."""
    assert _products(msgspec.structs.replace(LOOP, **change)) == (48.0, 20.0)


@pytest.mark.slow
def test_layers_of_a_network_are_compared_by_kind(tmp_path: Path) -> None:
    lines = steps_table(quantized_network("bert", tmp_path, 16)[1], seed=0).splitlines()
    kinds = {line.split()[0]: line.split() for line in lines[1:]}
    assert {"matmul", "lookup", "normalize"} <= kinds.keys()
    assert all(int(cells[-1]) <= 1 for cells in kinds.values())


def with_pairs(network: Steps) -> onnx.ModelProto:
    """The steps as an ONNX model in which each value is int8 with the quantization that it has there."""
    nodes, weights = [], dict(network.constants)

    def pair(name: str, result: str, known: Quantization) -> None:
        weights[f"{result}/scale"] = np.float32(known.scales[0])
        weights[f"{result}/zero"] = np.int8(known.zero)
        parameters = [f"{result}/scale", f"{result}/zero"]
        nodes.append(helper.make_node("QuantizeLinear", [name, *parameters], [f"{result}/q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{result}/q", *parameters], [result]))

    pair(network.input, f"{network.input}/same", network.quantization[network.input])
    for step in network.steps:
        known = network.quantization.get(step.output)
        names = [f"{name}/same" if name == network.input else name for name in step.inputs]
        made = f"{step.output}/float" if known else step.output
        nodes.append(helper.make_node(step.operator, names, [made], **step.attributes))
        if known:
            pair(made, step.output, known)
    ends = [helper.make_tensor_value_info(name, 1, None) for name in (network.input, network.output)]
    tensors = [
        numpy_helper.from_array(
            np.asarray(array, np.float32 if array.dtype == np.float64 else array.dtype), name
        )
        for name, array in weights.items()
    ]
    graph = helper.make_graph(nodes, "pairs", ends[:1], ends[1:], tensors)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["onnxruntime", "pytorch"])
def test_values_have_the_quantization_of_the_file(form: str, tmp_path: Path) -> None:
    path = quantized_network("squeezenet", tmp_path, 32, form)[1]
    network, proto = network_steps(path), onnx.load(str(path))
    assert "QuantizeLinear" not in {step.operator for step in network.steps}
    shape = network.shapes[network.input]
    data = {network.input: np.random.default_rng(0).normal(0, 1, shape).astype(np.float32)}
    (output,) = (item.name for item in proto.graph.output)
    want = onnxruntime_values(proto, data, [output])[output]
    found = onnxruntime_values(with_pairs(network), data, [network.output])[network.output]
    assert len(np.unique(want)) > 5 and np.array_equal(found, want)


@pytest.fixture
def litert() -> Iterator[LibraryProcess]:
    (found,) = (item for item in contenders(PEERS, (), ["litert"]) if item.name == "litert")
    if not found.python.exists():
        pytest.skip(f"no LiteRT at {PEERS}")
    process = LibraryProcess(found, 1)
    yield process
    process.close()


def error_of(process: LibraryProcess, path: Path, dtype: str) -> float:
    """Of a library on a file, from ONNX Runtime without optimizing, of the largest output."""
    proto = onnx.load(str(path))
    (given,), (output,) = proto.graph.input, proto.graph.output
    shape = [size.dim_value for size in given.type.tensor_type.shape.dim]
    rng = np.random.default_rng(0)
    data = rng.normal(0, 1, shape) if dtype == "float32" else rng.integers(0, 256, shape)
    inputs = {given.name: data.astype(dtype)}
    want = onnxruntime_values(proto, inputs, [output.name])[output.name]
    arrays = path.with_suffix(".npz")
    np.savez(arrays, input=inputs[given.name], output=want)
    network = Network("net", str(path), str(arrays), "", "", 1, 1)
    answer = process.ask({"do": "open", "workload": network.described()}, timeout_s=60)
    (variant,) = answer["variants"]
    return float(variant["error"])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["squeezenet", "mobilenet_v2", "bert"])
def test_litert_computes_a_network_of_integers(name: str, tmp_path: Path, litert: LibraryProcess) -> None:
    assert error_of(litert, quantized_network(name, tmp_path, 32)[1], "float32") < WRONG_NETWORK


@pytest.mark.slow
@pytest.mark.parametrize(
    "image",
    [
        Image("conv", 9, 3, 24, 3, 2, 1),
        Image("conv", 8, 16, 24, 1, 1, 0),
        Image("depthwise", 8, 16, 16, 3, 1, 1),
    ],
    ids=lambda image: image.text,
)
def test_litert_computes_an_operator_on_bytes(image: Image, tmp_path: Path, litert: LibraryProcess) -> None:
    path = tmp_path / "operator.onnx"
    path.write_bytes(as_qdq(Workload("one", "conv", image), FULL).SerializeToString())
    assert error_of(litert, path, "uint8") < WRONG


@pytest.mark.slow
def test_our_integers_are_measured_beside_onnxruntime(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whose outputs must be the same, whatever this CPU's own sums of bytes do."""
    assert main(["measure", "--only", "C1,D9", "--drawn", "1", "--peers", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "not measured: litert: no Python at" in said and "not measured: openvino: no Python at" in said
    rows = [line.split() for line in said.splitlines() if line.startswith(("C1", "D9"))]
    assert [row[0] for row in rows] == ["C1", "D9"]
    assert all(float(cell) > 0 for row in rows for cell in row[2:6])
