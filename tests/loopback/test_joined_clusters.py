"""The whole way on two clusters of cores as one target, by the commands a user types, with aarch64 code."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.loopback.tune_board import EMULATED, board_file, onnxruntime_outputs, write_network
from toolkit.cli.main import main
from toolkit.measure import emulation

pytestmark = [pytest.mark.slow, pytest.mark.emulated]


def test_tune_flash_and_run_on_two_clusters(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if emulation.find() is None:
        pytest.skip("the emulation is not installed; run `make emulation`")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> str:
        result = CliRunner().invoke(main, [str(argument) for argument in arguments])
        assert result.exit_code == 0, result.output
        return result.stdout

    write_network(tmp_path)
    head, cpu = EMULATED.split("[[targets]]")
    big = cpu.replace('"cpu"\nkind', '"a72"\nkind').replace("cortex-a53", "cortex-a72")
    little = cpu.replace('"cpu"\nkind', '"a53"\nkind')
    pairs = (big, "[0]"), (little, "[1]")
    targets = ["[[targets]]" + text.replace("cores = [0, 1]", f"cores = {cores}") for text, cores in pairs]
    board = board_file(tmp_path, head + "".join(targets))
    asked = ("small.onnx", "--board", board, "--shape", "x=1,3,14,14", "--records", "r.db")
    report = json.loads(run("tune", *asked, "--target", "a72+a53", "--trials", 2, "--json"))
    assert report["measured"] > 0
    run("flash", report["bundle"], "--board", board)
    data = np.random.default_rng(3).standard_normal((1, 3, 14, 14)).astype(np.float32)
    np.save("x.npy", data)
    got = np.load(json.loads(run("run", "x.npy", "--board", board, "-o", "out", "--json"))["outputs"]["y"])
    expected = onnxruntime_outputs(data)
    assert np.abs(got - expected).max() <= 1e-4 * np.abs(expected).max()
    assert len(json.loads(run("report", *asked, "--target", "a72+a53", "--json"))["operators"]) >= 5
