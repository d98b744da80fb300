"""Learned against random search on a GPU board: what is concluded, and a run from end to end on PoCL."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gpu_search
from benchmarks.experiments.collect import LEARNED, RANDOM
from benchmarks.gpu_search import Found, conclusion, main, row
from tests.fuzz.pocl import Pocl, pocl
from toolkit.records import Records

__all__ = ["pocl"]  # a fixture


def found(name: str, learned_s: list[float], random_s: list[float]) -> Found:
    curves = {LEARNED: learned_s, RANDOM: random_s}
    best = {method: float(np.nanmin(costs)) for method, costs in curves.items()}
    return Found(name, 0, 2_000_000_000, learned_s[0], best, curves, Counter({"timeout": 2}))


def test_an_operators_line_says_when_random_search_was_caught_up_with() -> None:
    line = row(found("C6", [0.2, np.nan, 0.1, 0.05], [0.2, 0.15, 0.1, np.nan]), 4)
    assert line == ["C6", "0", "10.0", "20.0", "40.0", "2.000", "3 trials", "2 timeout"]
    assert row(found("C6", [0.2, 0.2], [0.2, 0.1]), 2)[5:7] == ["0.500", "never"]


def test_the_ratio_is_a_geometric_mean_with_an_interval() -> None:
    halves = [[0.4, 0.4, 0.2, 0.1], [0.4, 0.4, 0.4, 0.2]]
    first, *parts = conclusion([found(f"C{number}", *halves) for number in range(1, 7)], 4)
    assert first == "learned/random after 4 trials: 2.000 [2.000, 2.000], geometric mean of 6 pairs: better"
    assert [part.split()[-1] for part in parts] == ["1.000", "1.000", "2.000"]


def test_an_operator_for_which_nothing_ran_is_named() -> None:
    dead = Found("C1", 3, 1, np.nan, {LEARNED: np.nan, RANDOM: 1.0}, {LEARNED: [], RANDOM: [1.0]}, Counter())
    assert list(conclusion([dead], 4)) == [
        "left out, because a search found no program that runs: C1 (seed 3)"
    ]


def test_unknown_operators_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--operators", "C1,X9"])
    assert "unknown operators X9: expected some of C1, " in capsys.readouterr().err


@pytest.mark.slow
def test_the_command_goes_on_where_it_was_stopped(
    tmp_path: Path, pocl: Pocl, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_search, "ROUNDS", 1)
    pocl.teach(tmp_path / "device")
    for trials in (1, 2, 2):
        folders = ["--work", str(tmp_path), "--device-dir", str(tmp_path / "device")]
        arguments = ["--operators", "D8", "--trials", str(trials), "--timeout", "60", *folders]
        assert main(arguments) == 0
        _, _, line, first, *_ = capsys.readouterr().out.splitlines()
        assert line.split()[0] == "D8"
        assert first.startswith(f"learned/random after {trials} trials: ")
        for path in tmp_path.glob("*.db"):
            with Records(path) as records:
                assert [record.trial for record in records] == list(range(trials))
    assert len(list(tmp_path.glob("*.db"))) == 2
