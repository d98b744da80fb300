"""Operators on quantized tensors against onnxruntime: integer sums are exact, others within a step."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from tests.onnx_models import save
from tests.quick import others_slow
from tests.whole_models import HOST, run_generated
from toolkit.model.load import adapted, load_model
from toolkit.model.reference import run_reference

Array = NDArray[Any]
Weights = dict[str, Array]
BYTES = ("uint8", "int8")


@dataclass
class Quantized:
    """A model of one node over inputs x (and x1 ...), and how many steps onnxruntime may be away."""

    proto: Any
    inputs: Weights
    steps: int = 0


def by_onnxruntime(model: bytes, inputs: Weights) -> Array:
    """The one output.

    On processors without VNNI its products of bytes saturate at 16 bits unless it is asked not to, and then
    it runs none of int8 data: their weights are of 7 bits here, which cannot saturate.
    """
    options = onnxruntime.SessionOptions()
    if all(array.dtype == np.uint8 for array in inputs.values()):
        options.add_session_config_entry("session.x64quantprecision", "1")
    (found,) = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"]).run(
        None, inputs
    )
    return np.asarray(found)


def integers(rng: np.random.Generator, shape: tuple[int, ...], dtype: str) -> Array:
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max + 1, shape, dtype)


def zero_point(rng: np.random.Generator, dtype: str) -> Array:
    limits = np.iinfo(dtype)
    return np.array(rng.integers(limits.min + 20, limits.max - 20), dtype)


def scale(rng: np.random.Generator, shape: tuple[int, ...] = ()) -> Array:
    return rng.uniform(0.004, 0.05, shape).astype(np.float32)


def quantized(
    rng: np.random.Generator,
    op: str,
    shapes: list[tuple[int, ...]],
    *,
    dtype: str,
    operands: list[Any],
    result: str = "",
    steps: int = 0,
    domain: str = "",
    **attributes: Any,
) -> Quantized:
    """Operands are "x", "x1" ... (inputs of the model), "" (absent) or weights."""
    names = [item if isinstance(item, str) else f"w{place}" for place, item in enumerate(operands)]
    weights = {name: item for name, item in zip(names, operands, strict=True) if not isinstance(item, str)}
    inputs = {f"x{place or ''}": integers(rng, shape, dtype) for place, shape in enumerate(shapes)}
    proto = helper.make_model(
        helper.make_graph(
            [helper.make_node(op, names, ["y"], domain=domain, **attributes)],
            "quantized",
            [
                helper.make_tensor_value_info(name, of(item.dtype), item.shape)
                for name, item in inputs.items()
            ],
            [helper.make_tensor_value_info("y", of(result or dtype), [None] * len(shapes[0]))],
            [numpy_helper.from_array(np.asarray(item), name) for name, item in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 20), helper.make_opsetid("com.microsoft", 1)],
        ir_version=8,
    )
    return Quantized(proto, inputs, steps)


def of(dtype: Any) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


def convolution(rng: np.random.Generator) -> Quantized:
    """QLinearConv or ConvInteger: drawn geometry, groups, scales and zero points by channel, bias."""
    dtype, groups = str(rng.choice(BYTES)), int(rng.choice((1, 1, 1, 2, 4)))
    channels, per_group = int(rng.choice((4, 8) if groups == 4 else (6, 8, 16))), int(rng.choice((1, 2, 21)))
    out, kernel = groups * per_group, int(rng.choice((1, 3)))
    shape, image = (1, channels, 7, 9), (out, channels // groups, kernel, kernel)
    weight_dtype = "int8" if dtype == "int8" else str(rng.choice(BYTES))
    by_channel = bool(rng.integers(2)) and weight_dtype == "int8"
    weight = integers(rng, image, weight_dtype) >> int(dtype == "int8")
    weight_zero = np.zeros(out, "int8") if by_channel else zero_point(rng, weight_dtype)
    geometry = {"pads": [int(rng.integers(2)) for _ in range(4)], "group": groups, "strides": [1, 2]}
    zero = zero_point(rng, dtype)
    if rng.integers(4) == 0 and dtype == weight_dtype == "uint8":
        return quantized(rng, "ConvInteger", [shape], dtype=dtype, operands=["x", weight, zero, weight_zero],
                         result="int32", **geometry)  # fmt: skip
    operands = ["x", scale(rng), zero, weight, scale(rng, (out,) if by_channel else ()), weight_zero]
    operands += [np.array(rng.uniform(0.2, 2.0), np.float32), zero_point(rng, dtype)]
    if rng.integers(2):
        operands.append(rng.integers(-5000, 5000, out, "int32"))
    return quantized(rng, "QLinearConv", [shape], dtype=dtype, operands=operands, **geometry)


def product(rng: np.random.Generator) -> Quantized:
    """A matrix product of one of five operators; one operand or both are inputs of the model."""
    op = str(rng.choice(["QLinearMatMul", "MatMulInteger", "QGemm", "MatMulIntegerToFloat", "one by rows"]))
    dtype, rows, columns, inner = "uint8", 5, int(rng.choice((8, 37))), int(rng.choice((11, 12, 64)))
    right_dtype = str(rng.choice(BYTES))
    right: Any = integers(rng, (inner, columns), right_dtype)
    by_column = bool(rng.integers(2)) and right_dtype == "int8"
    zero, right_zero = (
        zero_point(rng, dtype),
        np.zeros(columns, "int8") if by_column else zero_point(rng, right_dtype),
    )
    right_scale = scale(rng, (columns,) if by_column else ())
    shapes = [(rows, inner)]
    if right_dtype == dtype and rng.integers(2):
        right, shapes = "x1", [*shapes, (inner, columns)]
    output = [np.array(rng.uniform(0.2, 2.0), np.float32), zero_point(rng, dtype)]
    if op == "MatMulInteger":
        operands = ["x", right, zero, right_zero]
        return quantized(rng, op, shapes, dtype=dtype, operands=operands, result="int32")
    if op == "MatMulIntegerToFloat":
        operands = ["x", right, scale(rng), right_scale, zero, right_zero]
        operands += [rng.uniform(-1, 1, columns).astype(np.float32)]
        return quantized(
            rng, op, shapes, dtype=dtype, operands=operands, result="float32", domain="com.microsoft"
        )
    if op == "QGemm":
        operands = [
            "x",
            scale(rng),
            zero,
            right,
            right_scale,
            right_zero,
            rng.integers(-900, 900, columns, "int32"),
        ]
        return quantized(rng, op, shapes, dtype=dtype, operands=[*operands, *output], domain="com.microsoft")
    operands = ["x", scale(rng), zero, right, right_scale, right_zero, *output]
    return quantized(rng, "QLinearMatMul", shapes, dtype=dtype, operands=operands)


def of_activations(rng: np.random.Generator) -> Quantized:
    """A product of two inputs of the model, stacks of matrices, the second transposed or not."""
    return drawn_activations(rng)[0]


STACKS = [((), ()), ((2,), (2,)), ((2, 3), (2, 3)), ((3,), ()), ((), (2,)), ((2, 1), (1, 3)), ((1, 2), (2,))]


def drawn_activations(rng: np.random.Generator) -> tuple[Quantized, Array]:
    """`of_activations`, and what it computes, from exact sums."""
    op = str(rng.choice(["QLinearMatMul", "MatMulInteger"]))
    kinds = [str(rng.choice(BYTES)) for _ in range(3)]
    m, n, k = (int(rng.choice(few)) for few in ((1, 5, 12), (1, 8, 19, 37), (1, 2, 3, 4, 11, 16, 64, 70)))
    stacks = STACKS[int(rng.integers(len(STACKS)))]
    left, right = integers(rng, (*stacks[0], m, k), kinds[0]), integers(rng, (*stacks[1], k, n), kinds[1])
    zeros = [zero_point(rng, kind) if rng.integers(3) else np.zeros((), kind) for kind in kinds[:2]]
    products = (left.astype(np.int64) - int(zeros[0])) @ (right.astype(np.int64) - int(zeros[1]))
    scales, zero = (
        [scale(rng), scale(rng), np.array(rng.uniform(0.2, 2.0), np.float32)],
        zero_point(rng, kinds[2]),
    )
    moved = bool(rng.integers(2))
    inputs = {"x": left, "x1": np.ascontiguousarray(right.swapaxes(-1, -2)) if moved else right}
    weights = dict(zip(("s0", "s1", "s2", "z0", "z1", "z2"), (*scales, *zeros, zero), strict=True))
    order = [*range(right.ndim - 2), right.ndim - 1, right.ndim - 2]
    nodes = [helper.make_node("Transpose", ["x1"], ["t"], perm=order)] if moved else []
    second = "t" if moved else "x1"
    limits = np.iinfo(kinds[2])
    if op == "MatMulInteger":
        nodes.append(helper.make_node(op, ["x", second, "z0", "z1"], ["y"]))
        want = products.astype(np.int32)
    else:
        nodes.append(helper.make_node(op, ["x", "s0", "z0", second, "s1", "z1", "s2", "z2"], ["y"]))
        steps = np.rint(products.astype(np.float32) * (scales[0] * scales[1] / scales[2])) + float(zero)
        want = steps.clip(limits.min, limits.max).astype(kinds[2])
    ends = [helper.make_tensor_value_info(name, of(item.dtype), item.shape) for name, item in inputs.items()]
    results = [helper.make_tensor_value_info("y", of(want.dtype), want.shape)]
    used = {name for node in nodes for name in node.input}
    known = [
        numpy_helper.from_array(np.asarray(item), name) for name, item in weights.items() if name in used
    ]
    graph = helper.make_graph(nodes, "activations", ends, results, known)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=8)
    return Quantized(proto, inputs), want


def others(rng: np.random.Generator) -> Quantized:
    """An operator that computes in float32 inside."""
    dtype, shape = str(rng.choice(BYTES)), (1, 4, 6, 6)
    one, two, output = ([scale(rng), zero_point(rng, dtype)] for _ in range(3))
    op = str(rng.choice(["QLinearAdd", "QLinearMul", "QLinearSigmoid", "QLinearLeakyRelu", "QLinearConcat",
                         "QLinearAveragePool", "QLinearGlobalAveragePool"]))  # fmt: skip
    shapes, attributes = [shape], {}
    operands: list[Any] = ["x", *one]
    if op in ("QLinearAdd", "QLinearMul"):
        shapes, operands = [shape, shape], ["x", *one, "x1", *two]
    if op == "QLinearConcat":
        shapes, operands, attributes = [shape, shape], [*output, "x", *one, "x1", *two], {"axis": 1}
        output = []
    if op == "QLinearLeakyRelu":
        attributes = {"alpha": 0.1}
    if op == "QLinearAveragePool":
        attributes = {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "strides": [2, 2]}
    operands = [*operands, *output]
    return quantized(
        rng, op, shapes, dtype=dtype, operands=operands, steps=1, domain="com.microsoft", **attributes
    )


@pytest.mark.slow
@pytest.mark.parametrize("draw", [convolution, product, others])
def test_quantized_operators_equal_onnxruntime(draw: Any, tmp_path: Path) -> None:
    rng = np.random.default_rng(7)
    cases = [draw(rng) for _ in range(40)]
    graphs = [
        (load_model(save(tmp_path, case.proto, f"{place}.onnx")), case) for place, case in enumerate(cases)
    ]
    generated = run_generated([(graph, case.inputs) for graph, case in graphs], tmp_path)
    for (graph, case), found in zip(graphs, generated, strict=True):
        want = by_onnxruntime(case.proto.SerializeToString(), case.inputs)
        for got in (run_reference(graph, case.inputs)["y"], found["y"]):
            assert got.dtype == want.dtype
            what = onnx.printer.to_text(case.proto.graph.node[0])
            if want.dtype == np.float32:
                np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6, err_msg=what)
            else:
                off = np.abs(got.astype(np.int64) - want.astype(np.int64)).max()
                assert off <= case.steps, f"{what}: {off} steps away"


@pytest.mark.parametrize("same", [True, False])
def test_operators_that_choose_do_so_among_integers(same: bool, tmp_path: Path) -> None:
    """MaxPool of a Concat, quantized before and behind each: with one scale no floats are left."""
    rng = np.random.default_rng(5)
    node = helper.make_node
    numbers = {"s": np.float32(0.1), "s2": np.float32(0.1 if same else 0.07), "z": np.uint8(120)}
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        node("DequantizeLinear", ["x1", "s", "z"], ["b"]),
        node("Concat", ["a", "b"], ["c"], axis=1),
        node("QuantizeLinear", ["c", "s2", "z"], ["d"]),
        node("DequantizeLinear", ["d", "s2", "z"], ["e"]),
        node("MaxPool", ["e"], ["f"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("QuantizeLinear", ["f", "s2", "z"], ["y"]),
    ]
    byte = onnx.TensorProto.UINT8
    ends = [helper.make_tensor_value_info(name, byte, [1, 4, 9, 9]) for name in ("x", "x1")]
    result = [helper.make_tensor_value_info("y", byte, [1, 8, 5, 5])]
    weights = [numpy_helper.from_array(np.asarray(item), name) for name, item in numbers.items()]
    graph = helper.make_graph(nodes, "choosing", ends, result, weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    loaded = load_model(save(tmp_path, proto, "choosing.onnx"))
    assert any(value.dtype == "float32" for value in loaded.values.values() if value.data is None) != same
    inputs = {name: integers(rng, (1, 4, 9, 9), "uint8") for name in ("x", "x1")}
    np.testing.assert_array_equal(
        run_reference(loaded, inputs)["y"], by_onnxruntime(proto.SerializeToString(), inputs)
    )


def test_what_is_joined_is_quantized_where_it_is_made(tmp_path: Path) -> None:
    """Parts of other scales, one of them computed: no tensor of floats lies between kernels."""
    rng, node = np.random.default_rng(6), helper.make_node
    numbers = {"s": np.float32(0.1), "s2": np.float32(0.07), "s3": np.float32(1 / 256), "z": np.uint8(120)}
    limits = {"l0": 0, "l4": 4, "l8": 8, "one": 1}
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["a"]),
        node("Slice", ["a", "l0", "l4", "l0", "one"], ["b"]),
        node("QuantizeLinear", ["b", "s2", "z"], ["c"]),
        node("DequantizeLinear", ["c", "s2", "z"], ["d"]),
        node("Sigmoid", ["d"], ["e"]),
        node("QuantizeLinear", ["e", "s3", "z"], ["f"]),
        node("DequantizeLinear", ["f", "s3", "z"], ["g"]),
        node("Slice", ["a", "l4", "l8", "l0", "one"], ["h"]),
        node("Concat", ["g", "h"], ["i"], axis=1),
        node("QuantizeLinear", ["i", "s2", "z"], ["j"]),
        node("DequantizeLinear", ["j", "s2", "z"], ["k"]),
        node("QuantizeLinear", ["k", "s2", "z"], ["y"]),
    ]
    byte = onnx.TensorProto.UINT8
    weights = [numpy_helper.from_array(np.asarray(item), name) for name, item in numbers.items()]
    weights += [numpy_helper.from_array(np.array([item], np.int64), name) for name, item in limits.items()]
    graph = helper.make_graph(
        nodes, "joining", [helper.make_tensor_value_info("x", byte, [8, 5])],
        [helper.make_tensor_value_info("y", byte, [4, 10])], weights,
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=8)
    loaded = load_model(save(tmp_path, proto, "joining.onnx"))
    assert {loaded.values[group.output].dtype for group in loaded.groups} == {"uint8"}
    inputs = {"x": integers(rng, (8, 5), "uint8")}
    np.testing.assert_array_equal(
        run_reference(loaded, inputs)["y"], by_onnxruntime(proto.SerializeToString(), inputs)
    )


@pytest.mark.parametrize(("first", "zero"), others_slow([(True, 117), (False, 0), (True, 0)], (True, 117)))
def test_a_residual_sum_is_computed_by_the_convolution_of_integers(
    first: bool, zero: int, tmp_path: Path
) -> None:
    """No floats are in memory, and none is rounded to another integer than the reference rounds it to."""
    rng, node = np.random.default_rng(5), helper.make_node
    shape, scales = (1, 8, 96, 96), {"s": 0.05, "t": 0.15, "ws": 0.0071, "r": 0.1}  # many ties
    weights = {
        **{name: np.float32(scale) for name, scale in scales.items()},
        "z": np.uint8(zero),
        "y0": np.uint8(99),
        "w0": np.int8(0),
        **{name: integers(rng, (8, 8, 1, 1), "int8") for name in ("w", "w2")},
    }
    operands = ["d", "e"] if first else ["e", "d"]
    nodes = [
        node("DequantizeLinear", ["x", "s", "z"], ["xd"]),
        node("DequantizeLinear", ["w", "ws", "w0"], ["v"]),
        node("Conv", ["xd", "v"], ["b"]),
        node("QuantizeLinear", ["b", "s", "z"], ["p"]),
        node("DequantizeLinear", ["p", "s", "z"], ["d"]),
        node("DequantizeLinear", ["w2", "ws", "w0"], ["v2"]),
        node("Conv", ["d", "v2"], ["c"]),
        node("QuantizeLinear", ["c", "t", "z"], ["q"]),
        node("DequantizeLinear", ["q", "t", "z"], ["e"]),
        node("Add", operands, ["a"]),
        node("QuantizeLinear", ["a", "r", "y0"], ["y"]),
    ]
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.UINT8, shape) for name in "xy"]
    held = [numpy_helper.from_array(np.asarray(item), name) for name, item in weights.items()]
    graph = helper.make_graph(nodes, "residual", ends[:1], ends[1:], held)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 19)], ir_version=9)
    loaded = adapted(load_model(save(tmp_path, proto, "residual.onnx")), HOST)
    kept = {loaded.values[group.output].dtype for group in loaded.groups}
    assert kept <= {"uint8", "int16"}, "bytes, or bytes that are widened for a product"
    casts = [group.output for group in loaded.groups if group.operator.name == "cast"]
    assert all(loaded.values[name].dtype == "int16" for name in casts)
    inputs = {"x": integers(rng, shape, "uint8")}
    (found,) = run_generated([(loaded, inputs)], tmp_path)
    np.testing.assert_array_equal(found["y"], run_reference(loaded, inputs)["y"])
    off = np.abs(found["y"].astype(int) - ReferenceEvaluator(proto).run(None, inputs)[0])
    assert off.max() <= 2  # a step of the convolution, which ONNX computes in floats, is 1.5 of the sum
    assert (off == 0).mean() > 0.999


@pytest.mark.parametrize(
    ("node", "scale", "floats"),
    [
        ("AveragePool <kernel_shape = [3, 3], strides = [2, 2]> (a)", 0.0713, False),
        ("AveragePool <kernel_shape = [3, 3], pads = [1, 1, 1, 1]> (a)", 0.0713, False),
        (
            "AveragePool <kernel_shape = [2, 2], pads = [1, 0, 1, 0], count_include_pad = 1> (a)",
            0.0713,
            False,
        ),
        ("AveragePool <kernel_shape = [2, 2]> (a)", 0.1, False),  # a quarter of the averages lie midway
        ("GlobalAveragePool (a)", 0.0113, False),
        ('Resize <mode = "nearest"> (a, none, twice)', 0.1, False),
        ('Resize <mode = "nearest"> (a, none, more)', 0.1, False),
    ],
)
@pytest.mark.parametrize("dtype", BYTES)
def test_averages_and_repeated_elements_are_of_integers(
    node: str, scale: float, floats: bool, dtype: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(6)
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        quantized ({dtype}[1, 8, 9, 9] x) => ({dtype}[n, c, h, w] y)
        <float s = {{0.1}}, float t = {{{scale}}}, {dtype} z = {{117}}, float[0] none = {{}},
         float[4] twice = {{1, 1, 2, 2}}, float[4] more = {{1, 1, 2.4, 1.7}}> {{
        a = DequantizeLinear (x, s, z) b = {node} y = QuantizeLinear (b, t, z) }}""")
    graph = load_model(save(tmp_path, proto, "quantized.onnx"))
    stored = [group.operator.output.dtype for group in graph.groups]
    assert ("float32" in stored) == floats
    inputs = {"x": integers(rng, (1, 8, 9, 9), dtype)}
    off = run_reference(graph, inputs)["y"].astype(int) - unfused(proto, inputs).astype(int)
    assert np.abs(off).max() <= ("[2, 2]> (a)" in node)


ON_BYTES = (
    "LeakyRelu <alpha = 0.1> (a)",
    "HardSwish (a)",
    "Sub (a, b)",
    "Mul (a, b)",
    "Pad (a, pads)",
    'Pad <mode = "reflect"> (a, pads)',
    "Gather <axis = 1> (a, index)",
    "ReduceMax (a, axes)",
)


def test_what_reads_quantized_tensors_about_once_leaves_no_floats_in_memory(tmp_path: Path) -> None:
    rng, cases = np.random.default_rng(9), []
    for place, node in enumerate(ON_BYTES):
        proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
            quantized (uint8[1, 4, 6, 9] x, uint8[1, 4, 6, 9] x1) => (uint8[n, c, h, w] y)
            <float s = {{0.0317}}, float t = {{0.0171}}, uint8 z = {{117}}, int64[2] axes = {{1, 3}},
             int64[8] pads = {{0, 0, 1, 1, 0, 0, 2, 1}}, int64[3] index = {{1, 3, 2}}> {{
            a = DequantizeLinear (x, s, z) b = DequantizeLinear (x1, s, z) c = {node}
            y = QuantizeLinear (c, t, z) }}""")
        graph = adapted(load_model(save(tmp_path, proto, f"{place}.onnx")), HOST)
        assert [group.operator.output.dtype for group in graph.groups] == ["uint8"], node
        inputs = {name: integers(rng, (1, 4, 6, 9), "uint8") for name in ("x", "x1")}
        cases.append((node, proto, graph, inputs))
    outputs = run_generated([(graph, inputs) for *_, graph, inputs in cases], tmp_path)
    for (node, proto, _, inputs), found in zip(cases, outputs, strict=True):
        off = np.abs(found["y"].astype(int) - unfused(proto, inputs).astype(int))
        assert off.max() <= 1 and (off == 0).mean() > 0.98, node  # floats that lie nearly midway


@pytest.mark.parametrize("global_", [False, True], ids=["window", "global"])
@pytest.mark.parametrize("halved", [False, True])
def test_averages_midway_between_steps_are_rounded_to_even(
    halved: bool, global_: bool, tmp_path: Path
) -> None:
    """As ONNX defines it for real numbers; floats of onnxruntime turn them as their rounding errors fall."""
    rng, size = np.random.default_rng(8), 6 if global_ else 2
    pool = "GlobalAveragePool (a)" if global_ else "AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (a)"
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        quantized (uint8[1, 96, 6, 6] x) => (uint8[n, c, h, w] y)
        <float s = {{0.0231}}, float t = {{{0.0462 if halved else 0.0231}}}, uint8 z = {{117}}> {{
        a = DequantizeLinear (x, s, z) b = {pool} y = QuantizeLinear (b, t, z) }}""")
    graph = adapted(load_model(save(tmp_path, proto, "quantized.onnx")), HOST)
    inputs = {"x": integers(rng, (1, 96, 6, 6), "uint8")}
    windows = inputs["x"].astype(int).reshape(1, 96, 6 // size, size, 6 // size, size) - 117
    want = (
        np.rint(windows.sum((3, 5)) / (size * size * (1 + halved))) + 117
    )  # float64 holds the halves exactly
    (found,) = run_generated([(graph, inputs)], tmp_path)
    np.testing.assert_array_equal(found["y"], want)
    if global_ and not halved:
        np.testing.assert_array_equal(found["y"], by_onnxruntime(proto.SerializeToString(), inputs))


@pytest.mark.parametrize(
    ("node", "exact"),
    [
        ('Resize <mode = "linear"> (p, none, twice)', True),
        (
            'Resize <mode = "linear", coordinate_transformation_mode = "align_corners"> (p, "", "", sizes)',
            False,
        ),
        ('Resize <mode = "cubic"> (p, none, more)', False),
        ('Resize <mode = "linear"> (p, "", "", turned)', False),  # as many elements in another shape
    ],
)
@pytest.mark.parametrize(("result", "dtype"), [(0.1, "uint8"), (0.0713, "int8"), (0.2, "uint8")])
def test_images_are_interpolated_as_weighted_integers(
    node: str, exact: bool, result: float, dtype: str, tmp_path: Path
) -> None:
    """One operator on bytes, and what real numbers give, halves to even; float64 holds them exactly."""
    rng = np.random.default_rng(8)
    constants = """float[0] none = {}, float[4] twice = {1, 1, 2, 2}, float[4] more = {1, 1, 2.4, 1.7},
         int64[4] sizes = {1, 8, 31, 18}, int64[4] turned = {1, 8, 8, 11}"""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        quantized ({dtype}[1, 8, 11, 9] x) => ({dtype}[n, c, h, w] y)
        <float s = {{0.1}}, float t = {{{result}}}, {dtype} z = {{117}}, {constants}> {{
        a = DequantizeLinear (x, s, z) p = MaxPool <kernel_shape = [1, 2]> (a) b = {node}
        y = QuantizeLinear (b, t, z) }}""")
    wide = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        exact (double[1, 8, 11, 8] p) => (double[n, c, h, w] b) <{constants}> {{ b = {node} }}""")
    graph = adapted(load_model(save(tmp_path, proto, "quantized.onnx")), HOST)
    assert {group.operator.output.dtype for group in graph.groups} == {dtype}
    inputs = {"x": integers(rng, (1, 8, 11, 9), dtype)}
    pooled = np.maximum(inputs["x"][..., 1:], inputs["x"][..., :-1]).astype(np.float64) - 117
    limits, (numbers,) = np.iinfo(dtype), ReferenceEvaluator(wide).run(None, {"p": pooled})
    steps = numbers * float(np.float32(0.1) / np.float32(result))
    want = np.clip(np.rint(steps) + 117, limits.min, limits.max)
    (found,) = run_generated([(graph, inputs)], tmp_path)
    off = np.abs(found["y"] - want)
    assert off.max() <= (not exact)
    assert (off[np.abs(np.abs(steps - np.rint(steps)) - 0.5) > 1e-4] == 0).all()


@pytest.mark.parametrize("opset", [10, 11, 12, 18])
@pytest.mark.parametrize("pool", ["GlobalMaxPool", "MaxPool <kernel_shape = [3, 2]>"])
def test_maxima_of_quantized_images_of_any_opset(pool: str, opset: int, tmp_path: Path) -> None:
    """ONNX has MaxPool of integers since opset 12, and no GlobalMaxPool of integers."""
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": {opset}]>
        quantized (uint8[1, 8, 11, 9] x) => (uint8[n, c, h, w] y)
        <float s = {{0.1}}, float t = {{0.13}}, uint8 z = {{117}}> {{
        a = DequantizeLinear (x, s, z) b = {pool} (a) y = QuantizeLinear (b, t, z) }}""")
    inputs = {"x": integers(np.random.default_rng(8), (1, 8, 11, 9), "uint8")}
    graph = load_model(save(tmp_path, proto, "quantized.onnx"))
    (found,) = run_generated([(graph, inputs)], tmp_path)
    np.testing.assert_array_equal(found["y"], unfused(proto, inputs))


def unfused(proto: Any, inputs: Weights) -> Array:
    """As the file has it. Fused, windows' averages midway between steps are rounded with the zero point."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    return np.asarray(session.run(None, inputs)[0])


def float_model(rng: np.random.Generator) -> Any:
    """Convolutions, a pool, a sum, a matrix product: what onnxruntime's quantizer is given."""
    w1, b1 = rng.normal(0, 0.2, (8, 3, 3, 3)), rng.normal(0, 0.1, 8)
    w2, w3 = rng.normal(0, 0.2, (8, 1, 3, 3)), rng.normal(0, 0.2, (8, 8, 1, 1))
    w4, b4 = rng.normal(0, 0.2, (10, 8)), rng.normal(0, 0.1, 10)
    weights = {"w1": w1, "b1": b1, "w2": w2, "w3": w3, "w4": w4, "b4": b4, "w5": rng.normal(0, 0.3, (10, 4))}
    node = helper.make_node
    nodes = [
        node("Conv", ["x", "w1", "b1"], ["c1"], pads=[1, 1, 1, 1]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=8),
        node("Relu", ["c2"], ["r2"]),
        node("Conv", ["r2", "w3"], ["c3"]),
        node("Add", ["c3", "r1"], ["s"]),
        node("MaxPool", ["s"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["p"]),
        node("Flatten", ["p"], ["f"]),
        node("Gemm", ["f", "w4", "b4"], ["g"], transB=1),
        node("Relu", ["g"], ["h"]),
        node("MatMul", ["h", "w5"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes,
        "small",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, 3, 12, 12])],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [1, 4])],
        [numpy_helper.from_array(item.astype(np.float32), name) for name, item in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


class Samples(CalibrationDataReader):
    """Random images to calibrate with."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rest = [{"x": rng.normal(0, 1, (1, 3, 12, 12)).astype(np.float32)} for _ in range(8)]

    def get_next(self) -> dict[str, Any] | None:
        return self.rest.pop() if self.rest else None


@pytest.mark.parametrize(
    ("form", "by_channel", "activation"),
    others_slow(
        itertools.product(["QDQ", "QOperator"], [False, True], ["QUInt8", "QInt8"]),
        ("QDQ", True, "QInt8"),
        ("QOperator", False, "QUInt8"),
    ),
)
def test_models_of_onnxruntimes_quantizer(
    form: str, by_channel: bool, activation: str, tmp_path: Path
) -> None:
    rng = np.random.default_rng(3)
    source, target = save(tmp_path, float_model(rng), "float.onnx"), tmp_path / "integer.onnx"
    quantize_static(source, target, Samples(rng), quant_format=QuantFormat[form], per_channel=by_channel,
                    activation_type=QuantType[activation], weight_type=QuantType.QInt8,
                    reduce_range=True)  # fmt: skip
    graph = adapted(load_model(target), HOST)
    products = [node for node in graph.nodes if node.op in ("Conv", "MatMul")]
    assert len(products) == 6  # an average is one
    assert sum("packed" in node.attributes for node in products) == 4  # but the two of 8 groups
    assert all("int" in graph.values[name].dtype for node in products for name in node.inputs[:2])
    inputs = {"x": rng.normal(0, 1, (1, 3, 12, 12)).astype(np.float32)}
    want = by_onnxruntime(target.read_bytes(), inputs)
    (found,) = run_generated([(graph, inputs)], tmp_path)
    step = np.abs(want).max() / 100
    assert np.abs(found["y"] - want).max() <= step, (found["y"], want)


@pytest.mark.parametrize(
    ("dtype", "zero", "pads", "batch"),
    [("uint8", 114, [3, 2, 1, 3], 1), ("int8", -5, [0, 0, 0, 0], 2), ("uint8", 0, [1, 1, 1, 1], 1)],
)
def test_an_image_becomes_padded_words_in_one_pass(
    dtype: str, zero: int, pads: list[int], batch: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng(4)
    text = ", ".join(map(str, integers(rng, (8 * 3 * 9,), "int8") // 2))
    proto = onnx.parser.parse_model(f"""<ir_version: 8, opset_import: ["": 18]>
        image (float[{batch}, 3, 13, 21] x) => ({dtype}[n, c, h, w] y)
        <float s = {{0.02}}, float t = {{0.13}}, float ws = {{0.01}}, {dtype} z = {{{zero}}}, int8 w0 = {{0}},
         int8[8, 3, 3, 3] w = {{{text}}}> {{
        q = QuantizeLinear (x, s, z) d = DequantizeLinear (q, s, z) v = DequantizeLinear (w, ws, w0)
        c = Conv <pads = {pads}, strides = [2, 2]> (d, v) y = QuantizeLinear (c, t, z) }}""")
    graph = adapted(load_model(save(tmp_path, proto, "image.onnx")), HOST)
    assert [group.operator.name for group in graph.groups][:2] == ["words", "conv"]
    inputs = {"x": rng.normal(0, 2, (batch, 3, 13, 21)).astype(np.float32)}
    (found,) = run_generated([(graph, inputs)], tmp_path)
    np.testing.assert_array_equal(found["y"], run_reference(graph, inputs)["y"])
    np.testing.assert_array_equal(found["y"], by_onnxruntime(proto.SerializeToString(), inputs))


@pytest.mark.parametrize("opset", [13, 17])
def test_constants_of_models_before_opset_19_are_dequantized(opset: int, tmp_path: Path) -> None:
    weight = np.arange(-4, 4, dtype=np.int8)
    known = {"w": weight, "s": np.array(0.5, np.float32), "z": np.array(1, np.int8)}
    nodes = [("DequantizeLinear", list(known), ["f"]), ("Add", ["x", "f"], ["y"])]
    x, y = (helper.make_tensor_value_info(name, 1, [8]) for name in "xy")
    graph = helper.make_graph(
        [helper.make_node(*item) for item in nodes], "constant", [x], [y],
        [numpy_helper.from_array(item, name) for name, item in known.items()],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    found = run_reference(load_model(save(tmp_path, proto)), {"x": np.ones(8, np.float32)})
    assert found["y"].tolist() == (1 + (weight.astype(np.float32) - 1) / 2).tolist()
