"""Budgets of time beside many trials: the jobs by hand, and two real ones of a small network."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path

import pytest

from benchmarks.budgets import MANY, UNTUNED, jobs, main


def test_jobs_and_their_budgets() -> None:
    asked = argparse.Namespace(trials=400, seconds=[90, 30], prior=None, prior_seconds=[45], seed=3)
    assert {name: (item.trials, item.seconds) for name, item in jobs(asked).items()} == {
        MANY: (400, None), "90 s": (None, 90), "30 s": (None, 30),
    }  # fmt: skip
    asked.prior = "some"
    found = jobs(asked)
    assert found["45 s, prior"].seconds == 45
    assert [item.tuning.search.prior for item in found.values()] == [None, None, None, "some"]
    assert {item.tuning.seed for item in found.values()} == {3}


def test_unknown_networks_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--only", "vgg", "--folder", str(tmp_path)]) == 2
    assert "unknown networks vgg" in capsys.readouterr().err


@pytest.mark.slow
def test_a_small_network(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Many trials are kept, and this process keeps its cores. A job is given what this machine needs under
    its load of this moment."""
    cores = os.sched_getaffinity(0)
    asked = ["--only", "dcgan", "--size", "8", "--threads", "1", "--trials", "2"]
    asked += ["--measure", "0.2", "--folder", str(tmp_path)]
    assert main([*asked, "--seconds", "0"]) == 2
    smallest = re.search(r"give --budget (\d+)s or more", capsys.readouterr().err)
    assert smallest is not None
    seconds = 2 * int(smallest[1])
    assert main([*asked, "--seconds", str(seconds)]) == 0
    lines = [re.split(r"  +", line.strip()) for line in capsys.readouterr().out.splitlines()[1:]]
    assert [line[2] for line in lines] == [UNTUNED, MANY, f"{seconds} s"]
    assert lines[1][-1] == "1.000 [1.000, 1.000]"
    assert all(int(line[4]) > 0 for line in lines[1:])
    assert all(float(line[5]) > 0 for line in lines)
    assert os.sched_getaffinity(0) == cores
    assert (tmp_path / "dcgan-1-0.db").exists()
