"""The benchmark of verdicts: its models differ by the work that it says, and its counts add up."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.harness.place import board_with, open_place
from benchmarks.verdicts import PRODUCTS, main, model
from toolkit.bundle.model_plan import Loop


@pytest.mark.slow
def test_the_slower_model_does_3_percent_more_and_one_pair_decides_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))  # others may be measuring on this board
    board, target = board_with(1)
    with open_place(board, target, "test") as place:
        (built, _), (slower, _) = model(place, PRODUCTS), model(place, round(1.03 * PRODUCTS))
    counts = [step.count for item in (built, slower) for step in item.plan.steps if isinstance(step, Loop)]
    assert counts == [100, 103]
    assert main(["--comparisons", "1", "--pairs", "1", "--neighbour"]) == 1
    *_, last = capsys.readouterr().out.splitlines()
    assert last == "3.0% slower, 1 comparisons: 1 too few runs to tell; goal missed"
