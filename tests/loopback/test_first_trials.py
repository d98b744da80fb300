"""The two beginnings of a search beside each other, on a real operator of this machine."""

from __future__ import annotations

import pytest

from benchmarks.first_trials import main

pytestmark = pytest.mark.slow


def test_both_searches_are_run_and_their_winners_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--operators", "D8,T1", "--trials", "8"]) == 0
    head, *rows, half, whole = capsys.readouterr().out.splitlines()
    assert head.split() == ["operator", "seed", "4", "trials", "8", "trials"]
    assert [row.split()[:2] for row in rows] == [["D8", "0"], ["T1", "0"]]
    assert all(0.1 < float(ratio) < 10 for row in rows for ratio in row.split()[2:])
    assert half.startswith("4 trials: ") and whole.startswith("8 trials: ")


def test_unknown_operators_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["--operators", "C1,Z9"])
    assert "unknown operators Z9: expected some of C1, C2" in capsys.readouterr().err
