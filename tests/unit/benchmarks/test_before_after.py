"""Networks of two checkouts in turn: the figures by hand, refusals, and a network beside itself."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from benchmarks.before_after import HERE, main, row


def test_ratios_are_of_pairs() -> None:
    found = row("yolo", 2, (0.004, 0.006, 0.008), (0.004, 0.004, 0.004))
    assert found == ["yolo", "2", "1.500 [1.250, 1.750]", "1.000", "6.000", "4.000", "3"]


def test_what_is_no_checkout_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(tmp_path), "--only", "yolo"]) == 2
    assert f"{tmp_path}: expected a checkout" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_the_other_checkout_builds_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A copy of this one is built; one that cannot build says why. This process keeps its cores."""
    cores = os.sched_getaffinity(0)
    other = tmp_path / "other"
    for folder in ("benchmarks", "boards", "cross", "device_runtime", "toolkit"):
        shutil.copytree(HERE / folder, other / folder, ignore=shutil.ignore_patterns("__pycache__"))
    asked = [str(other), "--only", "yolo", "--size", "32", "--threads", "2,1", "--seconds", "0.1"]
    assert main(asked) == 0
    assert "yolo" in capsys.readouterr().out
    assert os.sched_getaffinity(0) == cores
    with (other / "cross" / "compile.py").open("a") as file:
        file.write("raise ImportError('this is the other one')\n")
    assert main(asked) == 2
    assert "this is the other one" in capsys.readouterr().err
