"""`make help` lists every target with a line that says what it does; `make venv` takes a Python that can."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_help_lists_every_target() -> None:
    text = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", text, re.MULTILINE)
    assert phony is not None
    targets = set(phony.group(1).split())
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    assert set(re.findall(r"^  make (\S+)  +\S", listed, re.MULTILINE)) == targets
    assert targets == set(re.findall(r"^([a-z-]+):", text, re.MULTILINE))
    assert {"venv", "check", "test", "demo", "bench", "emulation", "golden", "clean", "help"} <= targets


def test_help_is_what_make_alone_prints() -> None:
    run = [
        subprocess.run(["make", *arg], cwd=ROOT, capture_output=True, check=True).stdout
        for arg in ([], ["help"])
    ]
    assert run[0] == run[1]


def chosen_python(*arguments: str) -> str:
    """The interpreter that `make venv` would take, printed by a rule that only this call has.

    Whoever runs these tests with `make test PYTHON=...` hands that on in MAKEFLAGS, which is left out here.
    """
    command = ["make", "--no-print-directory", "--eval", "chosen: ; @echo $(PYTHON)", *arguments, "chosen"]
    inherited = {"PYTHON", "MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS"}
    environment = {key: value for key, value in os.environ.items() if key not in inherited}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def makes_environments(python: Path) -> bool:
    return python.exists() and not subprocess.run([python, "-c", "import ensurepip, venv"]).returncode


def test_the_system_s_python_is_taken_where_it_makes_environments() -> None:
    names = [f"python3.{minor}" for minor in (11, 12, 13)]
    fitting = [f"/usr/bin/{name}" for name in names if makes_environments(Path("/usr/bin", name))]
    on_path = [found for name in (*names, "python3") if (found := shutil.which(name))]
    assert chosen_python() == [*fitting, *on_path][0]


def test_a_named_python_is_taken() -> None:
    assert chosen_python("PYTHON=/somewhere/python3.12") == "/somewhere/python3.12"
