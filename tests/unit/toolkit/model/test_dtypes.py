"""Models whose values are no float32: against ONNX's reference evaluator, by numpy and by generated code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tests.onnx_models import node, onnxruntime_values, save
from tests.whole_models import run_generated
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

Array = NDArray[Any]

SIGNED, UNSIGNED = ("int8", "int16", "int32", "int64"), ("uint8", "uint16", "uint32", "uint64")
FLOATS = ("bfloat16", "float16", "float32", "float64")
INTEGERS = (*SIGNED, *UNSIGNED)
VALUES = (*FLOATS, *INTEGERS, "bool")


@dataclass(frozen=True)
class Case:
    """One node over inputs of these dtypes and shapes, then weights."""

    op: str
    dtypes: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...] = ((3, 5),)
    weights: tuple[Array, ...] = ()
    attributes: Mapping[str, Any] = field(default_factory=dict)
    output: str = ""  # dtype; "": that of the first input

    def __str__(self) -> str:
        settings = "".join(f"-{key}={value}" for key, value in self.attributes.items())
        return f"{self.op}-{'-'.join(self.dtypes)}{settings}"


PAIR = ((3, 5), (3, 5))


def onnx_type(dtype: str) -> int:
    return int(helper.np_dtype_to_tensor_dtype(np.dtype(dtype)))


CASES = [
    *(
        Case(op, (dtype,) * 2, PAIR)
        for op in ("Add", "Sub", "Mul", "Max", "Min")
        for dtype in (*INTEGERS, "float16")
    ),
    *(Case("Div", (dtype,), PAIR[:1], (np.array([3, 7, 2, 1, 5], dtype),)) for dtype in INTEGERS),
    *(Case("Div", (dtype,), PAIR[:1], (np.array([-3, 7, -1, 1, -5], dtype),)) for dtype in SIGNED),
    *(
        Case(op, (dtype,))
        for op in ("Abs", "Neg", "Relu")
        for dtype in SIGNED
        if (op, dtype) != ("Relu", "int64")
    ),
    *(Case("Clip", (dtype,), weights=(np.array(2, dtype), np.array(90, dtype))) for dtype in INTEGERS),
    *(
        Case(op, (dtype,) * 2, PAIR, output="bool")
        for op in ("Equal", "Less", "GreaterOrEqual")
        for dtype in INTEGERS
    ),
    Case("Equal", ("bool", "bool"), PAIR),
    Case("Not", ("bool",)),
    *(
        Case("Cast", (one,), attributes={"to": onnx_type(other)}, output=other)
        for one in VALUES
        for other in VALUES
        if one != other and ("float16" not in other or one in (*FLOATS, "int8", "uint8", "bool"))
    ),
    *(Case("Where", ("bool", dtype, dtype), ((3, 5), (5,), (3, 1)), output=dtype) for dtype in VALUES),
    Case("Concat", ("bool", "bool"), PAIR, attributes={"axis": 1}),
    *(Case("Transpose", (dtype,)) for dtype in VALUES),
    *(Case("Slice", (dtype,), weights=tuple(np.array([k]) for k in (1, 5, 1, 2))) for dtype in VALUES),
    *(Case("Expand", (dtype,), ((3, 1),), (np.array([2, 3, 4]),)) for dtype in ("int64", "bool")),
    *(Case("Pad", (dtype,), weights=(np.array([0, 1, 2, 0]), np.array(1, dtype))) for dtype in VALUES),
    *(
        Case(op, (dtype,), attributes={"axes": [1]})
        for op in ("ReduceMax", "ReduceMin")
        for dtype in ("int8", "uint8", "int64")
    ),
    Case("ReduceSum", ("int64",), weights=(np.array([0]),)),
    Case("MatMul", ("int32", "int32"), ((3, 4), (4, 5))),
    Case("Gemm", ("int64",), ((3, 4),), (np.arange(20).reshape(4, 5), np.arange(5))),
    *(
        Case("MaxPool", (dtype,), ((1, 2, 6, 6),), attributes={"kernel_shape": [3, 3], "pads": [1] * 4})
        for dtype in ("int8", "uint8")
    ),
]


def data(dtype: str, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
    """Values up to the ends of small types, so that sums wrap; casts of floats stay in range."""
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(bool)
    if dtype in FLOATS:
        return rng.uniform(0.0, 100.0, shape).astype(dtype)
    ends = np.iinfo(dtype)
    return rng.integers(max(ends.min, -(2**40)), min(ends.max, 2**40), shape, dtype, endpoint=True)


def case_model(case: Case) -> Any:
    opset = 13 if "axes" in case.attributes else 17
    names = [f"x{number}" for number in range(len(case.dtypes))]
    weights = [numpy_helper.from_array(array, f"w{number}") for number, array in enumerate(case.weights)]
    single = node(case.op, [*names, *(weight.name for weight in weights)], "y", **case.attributes)
    inputs = [
        helper.make_tensor_value_info(name, onnx_type(dtype), shape)
        for name, dtype, shape in zip(names, case.dtypes, case.shapes, strict=True)
    ]
    output = helper.make_tensor_value_info("y", onnx_type(case.output or case.dtypes[0]), None)
    graph = helper.make_graph([single], "typed", inputs, [output], weights)
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=8)
    return onnx.shape_inference.infer_shapes(proto)


def wanted(case: Case, proto: Any, inputs: Mapping[str, Array]) -> Array:
    """The output; the evaluator pads integers with NaN."""
    if case.op == "MaxPool":
        return onnxruntime_values(proto, inputs, ["y"])["y"]
    return np.asarray(ReferenceEvaluator(proto).run(None, dict(inputs))[0])


@pytest.mark.slow
def test_values_of_every_dtype_are_right(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    models, expected = [], []
    for case in CASES:
        proto = case_model(case)
        graph = load_model(save(tmp_path, proto))
        shapes = zip(case.dtypes, case.shapes, strict=True)
        inputs = {f"x{number}": data(dtype, shape, rng) for number, (dtype, shape) in enumerate(shapes)}
        models.append((graph, inputs))
        with np.errstate(all="ignore"):
            expected.append(wanted(case, proto, inputs))
    generated = run_generated(models, tmp_path)
    for case, (graph, inputs), want, found in zip(CASES, models, expected, generated, strict=True):
        for got in (run_reference(graph, inputs)["y"], found["y"]):
            assert got.dtype == want.dtype, str(case)
            np.testing.assert_array_equal(got, want, str(case))


def single_input(
    nodes: list[Any], weights: Mapping[str, Array], size: int, outputs: Mapping[str, str]
) -> Any:
    """A model of nodes over a float32 vector x and weights, with these outputs and their dtypes."""
    graph = helper.make_graph(
        nodes,
        "vector",
        [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [size])],
        [helper.make_tensor_value_info(name, onnx_type(dtype), [size]) for name, dtype in outputs.items()],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def both(proto: Any, x: Array, folder: Path) -> list[dict[str, Array]]:
    """The outputs by numpy and by generated code."""
    graph = load_model(save(folder, proto))
    return [run_reference(graph, {"x": x}), *run_generated([(graph, {"x": x})], folder)]


def test_quotients_that_are_halves_in_float32_are_quantized_to_even(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    scale, factor = np.float32(0.0196078438), np.float32(0.3)
    x = ((rng.integers(-300, 300, 500) + 0.5) * scale).astype(np.float32)
    x = np.concatenate([x, x / factor]).astype(np.float32)
    nodes = [
        node("QuantizeLinear", ["x", "scale", "zero"], "plain"),
        node("Mul", ["x", "factor"], "scaled"),
        node("QuantizeLinear", ["scaled", "scale", "zero"], "behind"),
    ]
    zero = np.array(7, np.int8)
    weights = {"scale": scale, "factor": factor, "zero": zero}
    proto = single_input(nodes, weights, x.size, {"plain": "int8", "behind": "int8"})
    for found in both(proto, x, tmp_path):
        for name, data in (("plain", x), ("behind", x * factor)):
            want = np.clip(np.rint(data / scale) + 7, -128, 127).astype(np.int8)
            np.testing.assert_array_equal(found[name], want)


def test_floats_beyond_an_integer_become_its_end_and_nan_becomes_0(tmp_path: Path) -> None:
    x = np.array([-np.inf, -1e30, -129.5, -0.5, 0.5, 127.9, 256.0, 1e30, np.inf, np.nan], np.float32)
    nodes = [node("Cast", ["x"], f"to_{dtype}", to=onnx_type(dtype)) for dtype in INTEGERS]
    proto = single_input(nodes, {}, x.size, {f"to_{dtype}": dtype for dtype in INTEGERS})
    for found in both(proto, x, tmp_path):
        for dtype in INTEGERS:
            ends = np.iinfo(dtype)
            exact = [0 if np.isnan(v) else max(min(v, ends.max), ends.min) for v in x.astype(np.float64)]
            want = np.array([min(int(v), int(ends.max)) for v in exact], dtype)
            np.testing.assert_array_equal(found[f"to_{dtype}"], want, dtype)


def test_comparisons_whose_shape_onnx_does_not_infer(tmp_path: Path) -> None:
    """LessOrEqual and GreaterOrEqual before opset 16, by broadcasting and without elements."""
    x, y = np.arange(-2, 1, dtype=np.float32)[:, None], np.array([-3, -1, 0, 5], np.float32)
    for op, function in (("LessOrEqual", np.less_equal), ("GreaterOrEqual", np.greater_equal)):
        for rows in (3, 0):
            text = f"m (float[{rows}, 1] x, float[4] y) => (bool[{rows}, 4] z) {{ z = {op} (x, y) }}"
            proto = onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["" : 13]> {text}')
            found = run_reference(load_model(save(tmp_path, proto)), {"x": x[:rows], "y": y})["z"]
            np.testing.assert_array_equal(found, function(x[:rows], y), strict=True)
