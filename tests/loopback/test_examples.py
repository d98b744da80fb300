"""The Python of docs/python-api.md that needs no board but this machine, run as it stands."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RECORDS = ".local/share/tune-for-board/records.db"

pytestmark = pytest.mark.slow


def example(heading: str) -> str:
    """The first Python below a heading."""
    text = (ROOT / "docs/python-api.md").read_text()
    found = re.search(rf"^#+ {heading}\n(?:(?!^#).)*?^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def run(folder: Path, code: str) -> str:
    """What a script prints that runs in `folder`, with that as its home."""
    environment = os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder)}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_operator_then_its_records_and_a_prior(tmp_path: Path) -> None:
    printed = run(tmp_path, example("One operator") + "print(result.trials, result.best_gflops > 0)\n")
    assert printed == "32 True\n"
    shutil.copy(tmp_path / RECORDS, tmp_path / "records.db")
    (line,) = run(tmp_path, example("Records")).splitlines()
    assert " 32 TuningRecord(" in line
    assert run(tmp_path, example("Cost models") + "print(options.prior)\n") == "prior.tfbm\n"


def test_a_search(tmp_path: Path) -> None:
    assert run(tmp_path, "import toolkit\n" + example("The search") + "print(options.batch)\n") == "64\n"


def test_a_search_without_a_board(tmp_path: Path) -> None:
    printed = run(tmp_path, example("Searching without a board") + "print(len(rows), len(costs_s))\n")
    assert printed == "200 200\n"
