"""The whole way with a loop and other values than float32: token ids and a past without elements in, half
floats, truth values, an empty tensor and one whose size depends on data out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner
from numpy.typing import NDArray

from tests.loopback.tune_board import HOST, board_file
from tests.onnx_models import save
from toolkit.cli.main import main

Array = NDArray[Any]

STEPS, WORDS, WIDTH, HIDDEN = 6, 10, 4, 8
TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
m (int64[{STEPS}, 1] ids, bool[{HIDDEN}] keep, float[P, {WIDTH}] past,
    bfloat16[{HIDDEN}] gain) =>
    (float16[1, 1, {HIDDEN}] state, int64[1, 1, {HIDDEN}] signs, bool[{STEPS}, 1] late, float[P, {WIDTH}] no,
    bfloat16[{HIDDEN}] twice,
     int64[2, N] places) {{
    hit = Equal (ids, words)
    one = Cast <to = 10> (hit)
    row = MatMul (one, table)
    new = Cast <to = 1> (row)
    wide = Concat <axis = 0> (past, new)
    axis = Constant <value = int64[1] {{1}}> ()
    x = Unsqueeze (wide, axis)
    all, last, cell = LSTM <hidden_size = {HIDDEN}> (x, w, r)
    zero = Constant <value = float {{0.0}}> ()
    kept = Where (keep, last, zero)
    state = Cast <to = 10> (kept)
    above = Less (zero, last)
    signs = Cast <to = 7> (above)
    five = Constant <value = int64 {{5}}> ()
    late = Less (five, ids)
    no = Exp (past)
    places = NonZero (late)
    twice = Add (gain, gain)
}}"""


def tokens() -> Any:
    """A little language model: an embedding by comparison, an LSTM, and questions about its state."""
    rng = np.random.default_rng(8)
    proto = onnx.parser.parse_model(TEXT)
    weights = {
        "words": np.arange(WORDS, dtype=np.int64)[None, :],
        "table": rng.uniform(-1, 1, (WORDS, WIDTH)).astype(np.float16),
        "w": rng.uniform(-1, 1, (1, 4 * HIDDEN, WIDTH)).astype(np.float32),
        "r": rng.uniform(-1, 1, (1, 4 * HIDDEN, HIDDEN)).astype(np.float32),
    }
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(array, name) for name, array in weights.items()
    )
    return proto


@pytest.mark.slow
def test_token_ids_go_the_whole_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object, code: int = 0) -> str:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == code, result.output
        return result.output if code else result.stdout

    board = board_file(tmp_path, HOST)
    path = save(tmp_path, tokens(), "tokens.onnx")
    options = ("--records", "r.db", "--trials", 1, "--shape", f"past=0,{WIDTH}", "-o", "t.tfb", "--json")
    told = json.loads(run("tune", path, "--board", board, *options))
    counts = {item["operator"].split()[0]: item["count"] for item in told["operators"]}
    assert counts["lstmcell"] == counts["lstmoutput"] == STEPS
    run("flash", "t.tfb", "--board", board)
    inputs = {
        "ids": np.array([[3], [9], [0], [7], [7], [1]], np.int64),
        "keep": np.arange(HIDDEN) % 3 > 0,
        "past": np.empty((0, WIDTH), np.float32),
        "gain": np.linspace(-1, 1, HIDDEN).astype("bfloat16"),
    }
    for name, array in inputs.items():
        np.save(name, array)
    given = [f"{name}={name}.npy" for name in inputs]
    shown = json.loads(run("run", *given, "--board", board, "-o", "out", "--json"))
    twice = np.load(shown["outputs"].pop("twice")).view("bfloat16")
    np.testing.assert_array_equal(twice, inputs.pop("gain") * 2)  # of which ONNX Runtime takes no arrays
    names = list(shown["outputs"])
    onnx.utils.extract_model(path, "rest.onnx", list(inputs), names)
    session = onnxruntime.InferenceSession("rest.onnx")
    for name, want in zip(names, session.run(names, inputs), strict=True):
        got = np.load(shown["outputs"][name])
        assert (got.dtype, got.shape) == (want.dtype, want.shape)
        np.testing.assert_allclose(got, want, atol=2e-3 if name == "state" else 0)
    np.save("ids", inputs["ids"].astype(np.int32))
    assert "expected int64 [6, 1]" in run("run", *given, "--board", board, code=2)
