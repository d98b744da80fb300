"""GPU kernels beside a library's: the figures, and the whole way with PoCL and numpy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.gpu_peers import NUMPY, Compared, lines, main
from tests.fuzz.pocl import Pocl, pocl
from tests.loopback.tune_board import POCL, board_file

__all__ = ["pocl"]  # a fixture


def test_ratios_are_taken_round_by_round_against_the_best_variant() -> None:
    item = Compared(
        "C3",
        10**9,
        (1e-3, 2e-3, 1e-3),
        {"nchw": (2e-3, 2e-3, 3e-3), "nhwc": (4e-3, 1e-3, 4e-3)},
        8,
        1,
        2.0,
        0.5,
    )
    assert item.ratios == pytest.approx([2.0, 0.5, 3.0])
    _, row, mean = lines([item])
    assert row.split() == ["C3", "1000", "1000", "nhwc", "2.000", "0.500", "3.000", "2.0", "50%", "1"]
    assert mean == "geometric mean of 1: 2.000, lowest 2.000"


@pytest.mark.slow
def test_ours_on_pocl_beside_numpy(tmp_path: Path, pocl: Pocl, capsys: pytest.CaptureFixture[str]) -> None:
    pocl.teach(tmp_path / "device")
    board = str(board_file(tmp_path, POCL))
    asked = ["--board", board, "--module", NUMPY, "--operators", "C11", "--trials", "1"]
    assert main([*asked, "--work", str(tmp_path / "work"), "--json", str(tmp_path / "all.json")]) == 0
    assert "geometric mean of 1" in capsys.readouterr().out
    found = json.loads((tmp_path / "all.json").read_text())
    (operator,) = found["operators"]
    assert operator["operator"] == "C11" and len(operator["ratios"]) == len(operator["ours_s"])
    assert all(ratio > 0 for ratio in operator["ratios"]) and "numpy" in found["peer"]


def test_a_peer_that_is_not_there_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--python", str(tmp_path / "python"), "--work", str(tmp_path)]) == 1
    assert "no Python at" in capsys.readouterr().err
