"""Every supported ONNX operator, alone in a model, against onnxruntime."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.onnx_models import model, node, onnxruntime_values, random_inputs, save
from tests.whole_models import run_generated
from toolkit.errors import ModelError
from toolkit.model.importers import IMPORTERS
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

RNG = np.random.default_rng(7)
ROOT = Path(__file__).parents[4]


def weight(*shape: int) -> Any:
    return RNG.uniform(-1.0, 1.0, shape).astype(np.float32)


def integers(*values: int) -> Any:
    return np.asarray(values, np.int64)


def numbers(*values: float) -> Any:
    return np.asarray(values, np.float32)


def number(value: float) -> Any:
    return np.asarray(value, np.float32)


@dataclass
class Case:
    """One node: its input shapes, its weights behind them, its attributes."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    weights: tuple[Any, ...] = ()
    attributes: dict[str, Any] = field(default_factory=dict)
    opset: int = 17
    low: float = -1.0
    outputs: int = 1

    def __str__(self) -> str:
        shapes = "-".join("x".join(str(extent) for extent in shape) for shape in self.shapes)
        settings = "-".join(f"{key}={value}".replace(" ", "") for key, value in self.attributes.items())
        return f"{self.op}@{self.opset}-{shapes}-{settings}"


IMAGE = ((2, 3, 7, 9),)
VOLUME = ((1, 3, 4, 5, 6),)
CASES = [
    # convolutions
    Case("Conv", IMAGE, (weight(4, 3, 3, 3),)),
    Case("Conv", IMAGE, (weight(4, 3, 3, 3), weight(4)), {"pads": [1, 0, 2, 1], "strides": [2, 3]}),
    Case("Conv", IMAGE, (weight(4, 3, 3, 2), weight(4)), {"pads": [2, 1, 2, 1], "dilations": [2, 2]}),
    Case("Conv", IMAGE, (weight(4, 3, 3, 3),), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}),
    Case("Conv", IMAGE, (weight(4, 3, 4, 4),), {"auto_pad": "SAME_LOWER"}),
    Case("Conv", IMAGE, (weight(4, 3, 3, 3),), {"auto_pad": "VALID"}),
    Case("Conv", ((1, 6, 5, 5),), (weight(6, 1, 3, 3), weight(6)), {"group": 6, "pads": [1, 1, 1, 1]}),
    Case("Conv", ((1, 6, 5, 5),), (weight(12, 1, 3, 3), weight(12)), {"group": 6}),
    Case("Conv", ((1, 6, 5, 5),), (weight(4, 3, 3, 3), weight(4)), {"group": 2, "strides": [2, 2]}),
    Case("Conv", ((2, 3, 20),), (weight(4, 3, 5), weight(4)), {"pads": [2, 1], "strides": [2]}),
    Case("Conv", (*IMAGE, (4, 3, 3, 3)), ()),
    Case("Conv", (*IMAGE, (4, 3, 3, 3), (4,)), ()),
    Case(
        "Conv", VOLUME, (weight(4, 3, 2, 3, 2), weight(4)), {"pads": [1, 0, 1, 0, 1, 0], "strides": [1, 2, 1]}
    ),
    Case("Conv", VOLUME, (weight(6, 1, 2, 2, 2), weight(6)), {"group": 3, "dilations": [1, 2, 1]}),
    Case("Conv", VOLUME, (weight(3, 1, 2, 2, 2),), {"group": 3, "auto_pad": "SAME_UPPER"}),
    Case("Conv", ((1, 6, 9),), (weight(6, 1, 3), weight(6)), {"group": 6}),
    # transposed convolutions
    Case("ConvTranspose", IMAGE, (weight(3, 4, 4, 4), weight(4)), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case("ConvTranspose", IMAGE, (weight(3, 4, 3, 3),), {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    Case(
        "ConvTranspose",
        IMAGE,
        (weight(3, 4, 3, 3), weight(4)),
        {"strides": [2, 2], "pads": [1, 1, 1, 1], "output_padding": [1, 1]},
    ),
    Case("ConvTranspose", IMAGE, (weight(3, 4, 5, 2),), {"strides": [3, 2], "pads": [1, 0, 2, 1]}),
    Case("ConvTranspose", IMAGE, (weight(3, 4, 3, 2),), {"dilations": [2, 3], "strides": [1, 2]}),
    Case("ConvTranspose", IMAGE, (weight(3, 1, 3, 3), weight(3)), {"group": 3, "strides": [2, 2]}),
    Case("ConvTranspose", ((1, 4, 3, 5),), (weight(4, 3, 2, 2), weight(6)), {"group": 2, "strides": [2, 2]}),
    Case("ConvTranspose", IMAGE, (weight(3, 4, 3, 3),), {"auto_pad": "SAME_UPPER", "strides": [2, 3]}),
    Case("ConvTranspose", IMAGE, (weight(3, 4, 4, 4),), {"strides": [2, 2], "output_shape": [14, 17]}),
    Case("ConvTranspose", IMAGE, (weight(3, 4, 1, 2),), {"strides": [4, 4], "output_shape": [28, 32]}),
    Case("ConvTranspose", ((2, 3, 6),), (weight(3, 4, 4), weight(4)), {"strides": [2], "pads": [1, 1]}),
    Case("ConvTranspose", ((2, 3, 6),), (weight(3, 4, 3),), {"strides": [2], "pads": [1, 1]}),
    Case("ConvTranspose", VOLUME, (weight(3, 2, 2, 4, 3), weight(2)), {"strides": [2, 2, 1]}),
    Case("ConvTranspose", ((2, 5, 1, 1),), (weight(5, 4, 4, 4), weight(4))),
    Case("ConvTranspose", ((2, 5, 1),), (weight(5, 4, 4),), {"pads": [1, 0], "dilations": [2]}),
    # windows
    Case(
        "MaxPool", VOLUME, (), {"kernel_shape": [2, 2, 3], "strides": [1, 2, 1], "pads": [1, 0, 1, 0, 1, 1]}
    ),
    Case("AveragePool", VOLUME, (), {"kernel_shape": [2, 2, 3], "pads": [1, 0, 1, 0, 1, 1]}),
    Case("MaxPool", IMAGE, (), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 1]}),
    Case("MaxPool", IMAGE, (), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    Case("MaxPool", IMAGE, (), {"kernel_shape": [2, 2], "dilations": [2, 3]}),
    Case("MaxPool", ((1, 2, 11),), (), {"kernel_shape": [3], "strides": [2]}),
    Case("AveragePool", IMAGE, (), {"kernel_shape": [3, 3], "strides": [2, 2]}),
    Case("AveragePool", IMAGE, (), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    Case("AveragePool", IMAGE, (), {"kernel_shape": [3, 3], "pads": [1, 1, 1, 1], "count_include_pad": 1}),
    Case("AveragePool", IMAGE, (), {"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}, opset=19),
    Case("AveragePool", ((1, 2, 11),), (), {"kernel_shape": [3], "pads": [1, 1]}),
    Case("GlobalAveragePool", IMAGE),
    Case("GlobalMaxPool", IMAGE),
    Case("LRN", ((1, 7, 3, 3),), (), {"size": 5, "alpha": 0.5, "beta": 0.6, "bias": 2.0}),
    # elementwise
    *(
        Case(op, IMAGE)
        for op in ("Relu", "Sigmoid", "Tanh", "Exp", "Abs", "Neg", "Erf", "Softplus", "HardSwish")
    ),
    *(Case(op, IMAGE, low=0.1) for op in ("Log", "Sqrt", "Reciprocal")),
    *(Case(op, IMAGE) for op in ("Floor", "Ceil", "Round", "Sign", "Asin", "Acos", "Sinh", "Cosh", "Atanh")),
    *(Case(op, IMAGE, low=-40.0) for op in ("Sin", "Cos", "Tan", "Atan", "Asinh")),
    Case("Acosh", ((2, 3),), (), low=1.0),
    Case("Mod", ((4, 5),), (number(0.3),), {"fmod": 1}),
    Case("LeakyRelu", IMAGE, (), {"alpha": 0.2}),
    Case("Elu", IMAGE, (), {"alpha": 0.7}),
    Case("Mish", IMAGE, opset=18),
    Case("Softsign", IMAGE),
    Case("Gelu", IMAGE, opset=20),
    Case("Gelu", IMAGE, (), {"approximate": "tanh"}, opset=20),
    Case("Celu", IMAGE, (), {"alpha": 0.6}),
    Case("Selu", IMAGE),
    Case("Selu", IMAGE, (), {"alpha": 1.5, "gamma": 0.9}),
    Case("ThresholdedRelu", IMAGE, (), {"alpha": 0.3}),
    Case("PRelu", IMAGE, (weight(3, 1, 1),)),
    Case("PRelu", (IMAGE[0], (9,))),
    Case("Mean", ((4, 5), (5,), (1, 5))),
    Case("HardSigmoid", IMAGE, (), {"alpha": 0.3, "beta": 0.4}),
    Case("Clip", IMAGE, (number(-0.3), number(0.5))),
    Case("Clip", IMAGE, (number(-0.3),)),
    Case("Clip", IMAGE, (), {"min": -0.2, "max": 0.1}, opset=7),
    *(Case(op, (IMAGE[0], IMAGE[0])) for op in ("Add", "Sub", "Mul", "Div", "Sum", "Max", "Min")),
    Case("Add", ((2, 3, 7, 9), (3, 1, 1))),
    Case("Sub", ((2, 3, 7, 9), (9,))),
    Case("Mul", ((3, 1), (4,))),
    Case("Add", ((2, 3, 7, 9),), (weight(3, 1, 1),)),
    Case("Mul", ((2, 3, 7, 9),), (number(2.5),)),
    Case("Div", ((4, 5),), (weight(5) + 3,)),
    Case("Sum", ((4, 5), (5,), (1, 5))),
    Case("Max", ((4, 5), (5,), (1, 5))),
    Case("Pow", ((4, 5),), (number(2.0),)),
    Case("Pow", ((4, 5),), (number(3.0),)),
    Case("Pow", ((4, 5),), (number(1.5),), low=0.1),
    Case("Pow", ((4, 5), (5,)), (), low=0.1),
    Case("Dropout", ((4, 5),)),
    Case("Identity", ((4, 5),)),
    Case("Cast", ((4, 5),), (), {"to": 1}),
    # matrices
    Case("MatMul", ((4, 5), (5, 6))),
    Case("MatMul", ((4, 5),), (weight(5, 6),)),
    Case("MatMul", ((2, 3, 4, 5),), (weight(5, 6),)),
    Case("MatMul", ((2, 3, 4, 5), (3, 5, 6))),
    Case("MatMul", ((5,), (5, 6))),
    Case("MatMul", ((4, 5), (5,))),
    Case("Gemm", ((4, 5),), (weight(5, 6), weight(6))),
    Case(
        "Gemm", ((5, 4),), (weight(6, 5), weight(4, 6)), {"transA": 1, "transB": 1, "alpha": 0.5, "beta": 2.0}
    ),
    Case("Gemm", ((4, 5), (5, 6), (6,)), (), {"beta": 0.5}),
    Case("Einsum", ((2, 4, 5), (2, 5, 6)), (), {"equation": "...ij, ...jk -> ...ik"}),
    Case("Einsum", ((4, 4), (4,)), (), {"equation": "ii,j"}),
    # normalizations
    Case(
        "BatchNormalization",
        IMAGE,
        (weight(3), weight(3), weight(3), weight(3) ** 2 + 0.5),
        {"epsilon": 1e-3},
    ),
    Case("LayerNormalization", ((2, 3, 8),), (weight(8), weight(8)), {"epsilon": 1e-3}),
    Case("LayerNormalization", ((2, 3, 8),), (weight(3, 8),), {"axis": 1}),
    Case("InstanceNormalization", IMAGE, (weight(3), weight(3))),
    Case("InstanceNormalization", ((2, 3, 8), (3,), (3,)), (), {"epsilon": 1e-2}),
    Case("Softmax", ((2, 3, 4),), (), {"axis": 1}),
    Case("Softmax", ((2, 3, 4),), (), {"axis": 1}, opset=11),
    Case("Softmax", ((1, 5, 1, 1),), (), {}, opset=9),
    Case("LogSoftmax", ((2, 3, 4),), (), {"axis": -1}),
    Case("LogSoftmax", ((2, 3, 4),), (), {"axis": 1}, opset=11),
    # shapes
    Case("Reshape", ((2, 3, 4),), (integers(4, -1),)),
    Case("Reshape", ((2, 3, 4),), (integers(0, 0, 2, 2),)),
    Case("Flatten", ((2, 3, 4),), (), {"axis": 2}),
    Case("Squeeze", ((1, 3, 1, 4),), (integers(0, 2),)),
    Case("Squeeze", ((1, 3, 1, 4),), (), {"axes": [2]}, opset=11),
    Case("Unsqueeze", ((3, 4),), (integers(0, 3),)),
    Case("Unsqueeze", ((3, 4),), (), {"axes": [1]}, opset=11),
    Case("Transpose", ((2, 3, 4),), (), {"perm": [2, 0, 1]}),
    Case("Transpose", ((2, 3, 4),)),
    Case("Concat", ((2, 3, 4), (2, 1, 4), (2, 2, 4)), (), {"axis": 1}),
    Case("Concat", ((2, 3), (2, 4)), (), {"axis": -1}),
    Case("Slice", ((5, 7, 6),), (integers(1, -2), integers(4, -9999), integers(0, 1), integers(2, -2))),
    Case("Slice", ((5, 7),), (), {"starts": [1, 2], "ends": [3, 1000], "axes": [0, 1]}, opset=9),
    Case("Split", ((6, 5),), (integers(1, 2, 3),), {"axis": 0}, outputs=3),
    Case("Split", ((6, 5),), (), {"axis": 0}, opset=11, outputs=2),
    Case("Gather", ((5, 6),), (integers(-1),), {"axis": 1}),
    Case("Gather", ((5, 6),), (np.asarray(2, np.int64),), {"axis": 0}),
    Case("Gather", ((5, 6),), (integers(4, 2, 0),), {"axis": 0}),
    Case("Pad", ((3, 4),), (integers(1, 0, 2, 3), number(0.5))),
    Case("Pad", ((3, 4),), (integers(1, -1, -2, 3),)),
    Case("Pad", ((5, 6),), (integers(2, 1, 4, 3),), {"mode": "reflect"}),
    Case("Pad", ((5, 6),), (integers(2, 1, 4, 3),), {"mode": "edge"}),
    Case("Pad", ((3, 4),), (), {"pads": [0, 1, 1, 0], "value": 1.5}, opset=9),
    Case("Pad", ((2, 3, 4),), (integers(1, 2), number(0.5), integers(-1)), opset=18),
    # repeating and resampling
    Case("Expand", ((3, 1),), (integers(2, 3, 4),)),
    Case("Expand", ((2, 3),), (integers(2, 3),)),
    Case("Tile", ((2, 3),), (integers(2, 1),)),
    Case("Tile", ((2, 3),), (integers(1, 1),)),
    Case("DepthToSpace", ((1, 8, 3, 2),), (), {"blocksize": 2}),
    Case("DepthToSpace", ((1, 8, 3, 2),), (), {"blocksize": 2, "mode": "CRD"}),
    Case("SpaceToDepth", ((1, 2, 6, 4),), (), {"blocksize": 2}),
    Case("Upsample", IMAGE, (numbers(1, 1, 2, 3),), {"mode": "nearest"}, opset=9),
    Case("Upsample", IMAGE, (numbers(1, 1, 2, 2),), {"mode": "linear"}, opset=9),
    Case("Resize", IMAGE, (numbers(1, 1, 2, 2),), {"mode": "nearest"}, opset=10),
    *(
        Case("Resize", IMAGE, (numbers(), numbers(1, 1, *factors)), attributes)
        for factors, attributes in (
            (
                (2, 2),
                {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"},
            ),
            ((2, 3), {"mode": "nearest"}),
            ((1.5, 0.6), {"mode": "nearest"}),
            ((2, 1), {"mode": "linear"}),
            ((2, 2), {"mode": "linear", "coordinate_transformation_mode": "pytorch_half_pixel"}),
            ((0.5, 1.4), {"mode": "linear"}),
            ((2, 2), {"mode": "cubic", "cubic_coeff_a": -0.5}),
        )
    ),
    Case(
        "Resize",
        IMAGE,
        (numbers(), numbers(), integers(2, 3, 13, 4)),
        {"mode": "linear", "coordinate_transformation_mode": "align_corners"},
    ),
    Case(
        "Resize",
        IMAGE,
        (numbers(), numbers(), integers(14, 18)),
        {"mode": "nearest", "axes": [2, 3]},
        opset=18,
    ),
    # reductions
    *(
        Case(op, ((2, 3, 4),), (), {"axes": [1], "keepdims": 0})
        for op in ("ReduceMean", "ReduceMax", "ReduceMin", "ReduceL1", "ReduceL2", "ReduceSumSquare")
    ),
    Case("ReduceMean", IMAGE, (), {"axes": [2, 3]}),
    Case("ReduceMean", IMAGE, (integers(-1, -2),), {"keepdims": 0}, opset=18),
    Case("ReduceSum", ((2, 3, 4),), (integers(0, 2),)),
    Case("ReduceSum", ((2, 3, 4),), (), {"keepdims": 0}),
    Case("ReduceSum", ((2, 3, 4),), (), {"axes": [0]}, opset=11),
    Case("ReduceSum", ((2, 3, 4),), (), {"noop_with_empty_axes": 1}),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_operator_equals_onnxruntime(case: Case, tmp_path: Path) -> None:
    names = [f"x{position}" for position in range(len(case.shapes))]
    weights = {f"w{position}": array for position, array in enumerate(case.weights)}
    outputs = [f"y{position}" for position in range(case.outputs)]
    single = node(case.op, [*names, *weights], outputs, **case.attributes)
    proto = model([single], dict(zip(names, case.shapes, strict=True)), outputs, weights, case.opset)
    graph = load_model(save(tmp_path, proto))
    inputs = random_inputs(graph, low=case.low)
    got, want = run_reference(graph, inputs), onnxruntime_values(proto, inputs, outputs)
    for name in outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-5, atol=1e-5 * np.abs(want[name]).max())
        assert got[name].shape == want[name].shape


def test_every_importer_has_a_case() -> None:
    rows = (ROOT / "docs" / "operators.md").read_text().splitlines()
    in_node_cases = {row.split(" | ")[0][2:] for row in rows if re.search(r"\| [1-9]\d* of ", row)}
    # test_dtypes.py, test_operator_models.py, test_quantized_transposed.py, test_quantized_recurrent.py
    elsewhere = {"CastLike", "Not", "MaxRoiPool", "ConvTransposeInteger", "DynamicQuantizeLSTM"}
    missing = set(IMPORTERS) - {case.op for case in CASES} - in_node_cases - elsewhere
    assert not missing


def test_bins_of_regions_end_where_their_quotient_does(tmp_path: Path) -> None:
    """Of three bins of seven columns the last ends at column 7; three times a rounded third of 7 is more."""
    pool = node("MaxRoiPool", ["x", "rois"], ["y"], pooled_shape=[1, 3])
    shapes = {"x": (1, 1, 1, 9), "rois": (1, 5)}
    proto = model([pool], shapes, ["y"], {}, 7)
    inputs = {"x": np.arange(9, dtype=np.float32).reshape(shapes["x"])}
    inputs["rois"] = np.array([[0, 0, 0, 6, 0]], np.float32)
    want = onnxruntime_values(proto, inputs, ["y"])["y"]
    assert want.ravel().tolist() == [2.0, 4.0, 6.0]
    graph = load_model(save(tmp_path, proto))
    (outputs,) = run_generated([(graph, inputs)], tmp_path)
    np.testing.assert_array_equal(outputs["y"], want)
    np.testing.assert_array_equal(run_reference(graph, inputs)["y"], want)


@pytest.mark.parametrize("op", ["Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual"])
def test_comparison_is_computed_inside_its_where(op: str, tmp_path: Path) -> None:
    proto = model(
        [
            node("Relu", ["x"], "r"),
            node(op, ["r", "zero"], "c"),
            node("Not", ["c"], "n"),
            node("Mul", ["r", "y"], "m"),
            node("Where", ["n", "m", "y"], "out"),
        ],
        {"x": (3, 4), "y": (3, 4)},
        ["out"],
        {"zero": number(0.0)},
    )
    graph = load_model(save(tmp_path, proto))
    inputs = random_inputs(graph)
    got = run_reference(graph, inputs)["out"]
    np.testing.assert_allclose(got, onnxruntime_values(proto, inputs, ["out"])["out"], rtol=1e-6)
    assert all(group.operator.output.dtype == "float32" for group in graph.groups)


@pytest.mark.parametrize(("op", "want"), [("Sum", 7.0), ("Mean", 7.0 / 3), ("Max", 4.0), ("Min", 1.0)])
def test_constants_stand_before_what_is_computed(op: str, want: float, tmp_path: Path) -> None:
    weights = {"low": number(1.0), "high": number(4.0)}
    proto = model([node(op, ["low", "high", "x"], "y")], {"x": (2, 3)}, ["y"], weights)
    found = run_reference(load_model(save(tmp_path, proto)), {"x": np.full((2, 3), 2.0, np.float32)})
    np.testing.assert_allclose(found["y"], np.full((2, 3), want), rtol=1e-6)


@pytest.mark.parametrize("op", ["Softmax", "LogSoftmax"])
def test_an_axis_that_is_none_is_refused(op: str, tmp_path: Path) -> None:
    """Of a vector, the axis that counted before opset 13 where none was named."""
    proto = model([node(op, ["x"], "y")], {"x": (8,)}, ["y"], opset=7)
    proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = 8
    with pytest.raises(ModelError, match="axis 1 .* is none of its 1 dimensions"):
        load_model(save(tmp_path, proto))


def test_a_pooling_without_any_window_is_refused(tmp_path: Path) -> None:
    """Three taps, three apart, do not fit three elements."""
    pooled = node("AveragePool", ["x"], "y", kernel_shape=[3, 3], dilations=[1, 3], ceil_mode=1)
    proto = model([pooled], {"x": (1, 2, 6, 3)}, ["y"], opset=19)
    with pytest.raises(ModelError, match=r"its window reaches over \[3, 7\] elements"):
        load_model(save(tmp_path, proto))
