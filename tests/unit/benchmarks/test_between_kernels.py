"""What networks cost beside their kernels: the figures by hand, and a network from its file to the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.between_kernels import Costs, branch_share, main
from benchmarks.estimates import main as estimates
from tests.onnx_models import model, node, save
from toolkit.model.load import load_model


def test_ratios_are_of_pairs_and_copies_are_no_kernels() -> None:
    runs = (0.004, 0.004, 0.008), (0.003, 0.004, 0.004), (0.0001, 0.0001, 0.0001), (0.009, 0.005, 0.002)
    first = ["10.00", "6.00", "4.00", "1.50", "1.25", "7"]
    assert Costs(0.01, 0.006, 7, *runs).row() == [*first, "0.750 (0.625-0.875)", "0.250", "0.0250"]


def test_only_what_may_run_beside_others_can_take_less_time_in_branches(tmp_path: Path) -> None:
    """Of four products the second and the third wait for the first, and the last for these two."""
    weights = {name: np.ones((8, 8), np.float32) for name in "vwx"}
    weights["u"] = np.ones((16, 8), np.float32)
    nodes = [
        node("MatMul", ["d", "v"], "a"),
        node("MatMul", ["a", "w"], "b"),
        node("MatMul", ["a", "x"], "c"),
        node("Concat", ["b", "c"], "e", axis=1),
        node("MatMul", ["e", "u"], "f"),
    ]
    graph = load_model(save(tmp_path, model(nodes, {"d": (4, 8)}, ["f"], weights)))
    alone = {f"node_{name}": 2.0 for name in "abcf"}
    together = {**alone, "node_b": 1.5, "node_c": 1.0}  # one core's share is 1.0
    assert branch_share(graph, alone, together, 2) == pytest.approx(0.5 / 6.5)
    del alone["node_b"]  # on one thread part of another chain
    assert branch_share(graph, alone, together, 2) == 0.0


@pytest.mark.slow
def test_a_board_that_is_not_here_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (main, estimates):
        arguments = ["tiles"] if command is estimates else []
        assert command([*arguments, "--only", "bert", "--board", "rpi3b"]) == 2
        assert "expected this machine, host or one of host:x86-64-v2" in capsys.readouterr().err


def test_a_network_with_loops_and_copies(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--only", "lstm_lm", "--size", "24", "--threads", "1", "--runs", "3", "--layers", "2"]
    assert main(asked) == 0
    *layers, _, row, _ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert layers[0] == ["lstm_lm"] and layers[1][:2] == ["layer", "ms"]
    slowest, next_one = (float(line[1]) for line in layers[2:])
    assert slowest >= next_one > 0
    name, threads, load, first, warm, *_, copies, branches = row
    assert branches == "-"  # of one thread
    assert (name, threads) == ("lstm_lm", "1")
    assert all(float(found) > 0 for found in (load, first, warm, copies))
