"""`make help` lists itself: every target, each with a line that says what it does."""

from __future__ import annotations

import re
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
