"""Inputs that always hold the same numbers: they decide branches and sizes, and a model has them no more."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.onnx_models import onnxruntime_values, save
from toolkit.errors import ModelError
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

# as detectors of voices are: each rate has frames of its own, whose weights fit no other
RATES = """<ir_version: 8, opset_import: ["" : 17]>
m (float[1, N] x, int64 rate, float[2] gains) => (float[1, 3] y)
    <float[8, 3] wide =
        {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23},
     float[4, 3] narrow = {0, 2, 4, 6, 8, 1, 3, 5, 7, 9, 11, 13}> {
    high = Constant <value = int64 {16000}> ()
    is = Equal (rate, high)
    gain = ReduceSum <keepdims = 0> (gains)
    p = If (is) <then_branch = t () => (float[1, 3] a) { a = MatMul (x, wide) },
        else_branch = e () => (float[1, 3] b) { b = MatMul (x, narrow) }>
    y = Mul (p, gain)
}"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return save(tmp_path, onnx.parser.parse_model(RATES))


@pytest.mark.parametrize(("rate", "samples"), [(16000, 8), (8000, 4)])
def test_a_constant_decides_a_branch_that_fits_no_other_shape(path: Path, rate: int, samples: int) -> None:
    graph = load_model(path, {"x": (1, samples)}, constants={"rate": (rate,), "gains": (0.5, 1.0)})
    assert graph.inputs == ("x",) and all(node.control is None for node in graph.nodes)
    x = np.random.default_rng(0).standard_normal((1, samples)).astype(np.float32)
    given = {"x": x, "rate": np.array(rate), "gains": np.array([0.5, 1.0], np.float32)}
    want = onnxruntime_values(onnx.load(path), given, ["y"])["y"]
    np.testing.assert_allclose(run_reference(graph, {"x": x})["y"], want, rtol=1e-5)


def test_one_number_is_for_all_elements(path: Path) -> None:
    graph = load_model(path, {"x": (1, 8)}, constants={"rate": (16000,), "gains": (2,)})
    x = np.ones((1, 8), np.float32)
    wide = np.arange(24, dtype=np.float32).reshape(8, 3)
    np.testing.assert_allclose(run_reference(graph, {"x": x})["y"], 4.0 * (x @ wide), rtol=1e-6)


def test_a_branch_that_cannot_be_computed_says_what_decides_it(path: Path) -> None:
    with pytest.raises(ModelError, match="its else_branch cannot be computed: .*--constant 'rate=NUMBER'"):
        load_model(path, {"x": (1, 8)})


@pytest.mark.parametrize(
    ("constants", "words"),
    [
        (
            {"speed": (1,)},
            "which the model does not have; its inputs are gains, rate, x",
        ),
        ({"rate": (1, 2)}, r"gives \[1, 2\] for the input 'rate'; expected one int64$"),
        ({"rate": (0.5,)}, "expected one int64"),
        ({"rate": (float("nan"),)}, "expected one int64"),
        ({"rate": (1 << 64,)}, "expected one int64"),
        ({"gains": (1, 2, 3)}, r"expected one float32 for all of its elements, or one for each of \[2\]"),
    ],
)
def test_what_an_input_cannot_hold_is_refused(
    path: Path, constants: dict[str, tuple[float]], words: str
) -> None:
    with pytest.raises(ModelError, match=words):
        load_model(path, {"x": (1, 8)}, constants=constants)
