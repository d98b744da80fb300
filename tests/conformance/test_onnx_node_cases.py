"""The node cases that come with onnx: what is accepted computes what they expect, the rest is refused.

onnx_node_cases/ names the cases that passed when it was last written; those must pass still. `make golden`
adds what passes since.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PASSING = Path(__file__).with_name("onnx_node_cases")
TIMEOUT_S = 500.0
# first letters of operators, in parts of about equal time
PARTS = ("ab", "c", "defg", "hijklm", "nopq", "rs", "tuvwxyz")


@pytest.mark.slow
@pytest.mark.parametrize("part", PARTS)
def test_accepted_node_cases_are_right(part: str, request: pytest.FixtureRequest) -> None:
    command = [sys.executable, "-m", "tests.conformance.node_cases", *part]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_S)
    assert done.returncode == 0, done.stderr[-3000:]
    results = json.loads(done.stdout)
    assert results
    wrong = {name: text for name, text in results.items() if text.startswith("wrong")}
    assert not wrong, "\n".join(f"{name} is {text}" for name, text in wrong.items())
    passed = sorted(name for name, text in results.items() if text == "passed")
    path = PASSING / f"{part}.txt"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(passed) + "\n")
    known = set(path.read_text().split()) & results.keys()  # another onnx may lack some
    lost = known - set(passed)
    assert not lost, "\n".join(f"{name} is {results[name]}" for name in sorted(lost))
