"""Values whose size depends on data, and what may read them, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.onnx_models import onnxruntime_values
from toolkit.errors import ModelError
from toolkit.model.load import load_model
from toolkit.model.reference import cut, run_reference

HEAD = '<ir_version: 8, opset_import: ["" : 17]>\n'
NON_ZERO = """m (float[4, 5] x) => (float[N] found, float[N, 1, 2] parts, int64[2, N] places) {
    places = NonZero (x)
    rows = Transpose (places)
    values = GatherND (x, rows)
    half = Constant <value = float {0.5}> ()
    found = Mul (values, half)
    floats = Cast <to = 1> (rows)
    one = Constant <value = int64[1] {1}> ()
    parts = Unsqueeze (floats, one)
}"""
SELECTED = """m (float[1, 6, 4] boxes, float[1, 2, 6] scores) => (float[N, 6] found, int64[N, 3] chosen) {
    most = Constant <value = int64[1] {3}> ()
    share = Constant <value = float[1] {0.4}> ()
    least = Constant <value = float[1] {0.6}> ()
    chosen = NonMaxSuppression (boxes, scores, most, share, least)
    two = Constant <value = int64[1] {2}> ()
    three = Constant <value = int64[1] {3}> ()
    one = Constant <value = int64[1] {1}> ()
    column = Slice (chosen, two, three, one)
    numbers = Squeeze (column, one)
    zero = Constant <value = int64[1] {0}> ()
    table = Squeeze (boxes, zero)
    own = Gather (table, numbers)
    first, second = Split <axis = 1> (own)
    both = Concat <axis = 1> (second, first, first)
    found = Relu (both)
}"""


BOUNDED = """m (float[4, 5] x, int64 many, float[1, 6, 4] boxes, float[1, 2, 6] scores)
    => (int64[R] numbers, float[2, T] best, int64[2, T] places, int64[N, 3] chosen,
        float[C, 3] ones, int64[I] ids) {
    four = Constant <value = int64 {4}> ()
    one = Constant <value = int64 {1}> ()
    two = Constant <value = int64 {2}> ()
    first = Constant <value = int64[1] {0}> ()
    rows = Constant <value = int64[2] {2, 10}> ()
    three = Constant <value = int64[1] {3}> ()
    few = Min (many, four)
    twice = Mul (few, two)
    end = Add (twice, one)
    numbers = Range (one, end, two)
    table = Reshape (x, rows)
    k = Unsqueeze (few, first)
    best, places = TopK (table, k)
    chosen = NonMaxSuppression (boxes, scores, many)
    found = NonZero (x)
    sizes = Shape (found)
    size = Gather (sizes, one)
    wide = Unsqueeze (size, first)
    shape = Concat <axis = 0> (wide, three)
    ones = ConstantOfShape <value = float[1] {1.0}> (shape)
    zero = Constant <value = int64 {0}> ()
    ids = Range (zero, size, one)
}"""


def check(text: str, folder: Path, inputs: dict[str, np.ndarray]) -> int:
    """Compare all outputs, and return how many slices the first one has."""
    path = folder / "model.onnx"
    proto = onnx.parser.parse_model(HEAD + text)
    onnx.save(proto, path)
    graph = load_model(path)
    names = [item.name for item in proto.graph.output]
    found = cut(graph, run_reference(graph, inputs))
    assert list(found) == names
    expected = onnxruntime_values(proto, inputs, names)
    for name in names:
        assert (found[name].shape, found[name].dtype) == (expected[name].shape, expected[name].dtype)
        np.testing.assert_allclose(found[name], expected[name])
    return len(found[names[0]])


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_what_goes_by_the_slice_keeps_the_count(tmp_path: Path, share: float) -> None:
    rng = np.random.default_rng(3)
    x = np.where(rng.random((4, 5)) < share, rng.standard_normal((4, 5)), 0).astype(np.float32)
    assert check(NON_ZERO, tmp_path, {"x": x}) == np.count_nonzero(x)


def test_selected_boxes_are_gathered(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    inputs = {"boxes": rng.uniform(0, 1, (1, 6, 4)), "scores": rng.uniform(0, 1, (1, 2, 6))}
    count = check(SELECTED, tmp_path, {name: array.astype(np.float32) for name, array in inputs.items()})
    assert 0 < count < 6


@pytest.mark.parametrize("many", [0, 1, 3, 9])
def test_computed_sizes_with_a_bound_are_counted(tmp_path: Path, many: int) -> None:
    rng = np.random.default_rng(many)
    inputs = {"x": np.round(rng.standard_normal((4, 5))), "boxes": rng.uniform(0, 1, (1, 6, 4))}
    given = {name: array.astype(np.float32) for name, array in inputs.items()}
    given["scores"] = rng.uniform(0, 1, (1, 2, 6)).astype(np.float32)
    assert check(BOUNDED, tmp_path, given | {"many": np.array(many)}) == min(many, 4)


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("(one, end, two)", "(one, many, two)", "its limit .input 'many'. is computed, without a bound"),
        ("(one, end, two)", "(many, end, two)", "its start .input 'many'. must be a constant"),
        ("(wide, three)", "(wide, wide)", "2 of its dimensions depend on data"),
        ("(wide, three)", "(wide, many1)", "its shape .input 'shape'. is computed, without a bound"),
    ],
)
def test_sizes_that_stay_open_are_refused(tmp_path: Path, old: str, new: str, words: str) -> None:
    text = BOUNDED.replace(old, new).replace("float[C, 3]", "float[C, D]")
    text = text.replace("found = NonZero", "many1 = Unsqueeze (many, first)\n    found = NonZero")
    onnx.save(onnx.parser.parse_model(HEAD + text), tmp_path / "model.onnx")
    with pytest.raises(ModelError, match=words):
        load_model(tmp_path / "model.onnx")


@pytest.mark.parametrize(
    "reader",
    [
        "y = Add (f, more)",  # as many columns as there is room for
        "y = Concat <axis = 0> (f, more)",
        "y = Concat <axis = 1> (f, f)",
        "y = Gather <axis = 1> (f, zero)",
        "y = Slice (f, zero, last, one)",
        "y = ReduceSum (f)",
    ],
)
def test_what_reads_several_slices_is_refused(tmp_path: Path, reader: str) -> None:
    text = f"""m (float[2, 3] x, float[2, 6] more) => (float[N, M] y) {{
    zero = Constant <value = int64[1] {{0}}> ()
    one = Constant <value = int64[1] {{1}}> ()
    last = Constant <value = int64[1] {{2}}> ()
    i = NonZero (x)
    f = Cast <to = 1> (i)
    {reader}
}}"""
    (tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
    with pytest.raises(ModelError, match="reads 'f', whose size depends on data"):
        load_model(tmp_path / "model.onnx")


def test_a_graph_in_a_loop_keeps_its_sizes(tmp_path: Path) -> None:
    text = """m (float[3] x, bool c) => (int64[1, N] y) {
    y = If (c) <
        then_branch = g () => (int64[1, N] a) { a = NonZero (x) },
        else_branch = h () => (int64[1, N] b) { n = Neg (x) b = NonZero (n) }
    >
}"""
    (tmp_path / "model.onnx").write_bytes(onnx.parser.parse_model(HEAD + text).SerializeToString())
    with pytest.raises(ModelError, match="the size of its graph's result 'a' depends on data"):
        load_model(tmp_path / "model.onnx")
