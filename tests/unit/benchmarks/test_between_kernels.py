"""What networks cost beside their kernels: the figures by hand, and a network from its file to the table."""

from __future__ import annotations

import pytest

from benchmarks.between_kernels import Costs, main


def test_ratios_are_of_pairs_and_copies_are_no_kernels() -> None:
    costs = Costs(0.01, 0.006, 7, (0.004, 0.004, 0.008), (0.003, 0.004, 0.004), (0.0001, 0.0001, 0.0001))
    assert costs.row() == ["10.00", "6.00", "4.00", "1.50", "7", "0.750 (0.625-0.875)", "0.250", "0.0250"]


@pytest.mark.slow
def test_a_network_with_loops_and_copies(capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["--only", "lstm_lm", "--size", "24", "--threads", "1", "--runs", "3", "--layers", "2"]
    assert main(asked) == 0
    *layers, _, row, _ = (line.split() for line in capsys.readouterr().out.splitlines())
    assert layers[0] == ["lstm_lm"] and layers[1][:2] == ["layer", "ms"]
    slowest, next_one = (float(line[1]) for line in layers[2:])
    assert slowest >= next_one > 0
    name, threads, load, first, warm, *_, copies = row
    assert (name, threads) == ("lstm_lm", "1")
    assert all(float(found) > 0 for found in (load, first, warm, copies))
