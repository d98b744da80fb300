"""The Python of the documents, run as it stands, or with this machine for the board and a smaller network."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tests.loopback.tune_board import related_convolutions
from tests.onnx_models import save

ROOT = Path(__file__).parents[2]
RECORDS = ".local/share/tune-for-board/records.db"

pytestmark = pytest.mark.slow


def example(heading: str) -> str:
    """The first Python below a heading."""
    text = (ROOT / "docs/python-api.md").read_text()
    found = re.search(rf"^#+ {heading}\n(?:(?!^#).)*?^```python\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert found is not None, heading
    return found[1]


def readme_blocks() -> list[str]:
    """The README's Python, block by block."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.DOTALL | re.MULTILINE)


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
    printed = run(tmp_path, example("Cost models") + "print(options.prior)\n")
    assert printed.splitlines() == [
        "reading 32 records of records.db",
        "fitting gbt to 32 of them",
        "prior.tfbm",
    ]


def test_the_readme_s_model(tmp_path: Path) -> None:
    """Tuned, bundled, flashed and run: here, and with fewer trials."""
    save(tmp_path, related_convolutions(), "squeezenet.onnx")
    np.save(tmp_path / "input.npy", np.zeros((1, 8, 14, 14), np.float32))
    code = readme_blocks()[0].replace("rpi3b@pi@192.168.1.7", "host").replace("trials=64", "trials=1")
    printed = run(tmp_path, code + "print(*(array.shape for array in run.outputs.values()))\n")
    assert printed.splitlines()[-1] == "(1, 32, 14, 14)"


def test_the_readme_s_operator(tmp_path: Path) -> None:
    code = readme_blocks()[1].replace("trials=128", "trials=2")
    assert float(run(tmp_path, code).split()[0]) > 0


def test_a_search(tmp_path: Path) -> None:
    assert run(tmp_path, "import toolkit\n" + example("The search") + "print(options.batch)\n") == "64\n"


def test_a_search_without_a_board(tmp_path: Path) -> None:
    printed = run(tmp_path, example("Searching without a board") + "print(len(rows), len(costs_s))\n")
    assert printed == "200 200\n"
