"""The node cases that come with onnx: what is accepted computes what they expect, the rest is refused.

onnx_node_cases/ has what became of each case when it was last written; what passed must pass still. `make
golden` adds what passes since, and writes docs/operators.md from it.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conformance.operators_document import document

KNOWN = Path(__file__).with_name("onnx_node_cases")
DOCUMENT = Path(__file__).parents[2] / "docs" / "operators.md"
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
    path = KNOWN / f"{part}.json"
    if request.config.getoption("--update-golden"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(results, indent=0, sort_keys=True) + "\n")
    known = json.loads(path.read_text())
    lost = [name for name in known.keys() & results.keys() if known[name] == "passed" != results[name]]
    assert not lost, "\n".join(f"{name} is {results[name]}" for name in sorted(lost))


@pytest.mark.slow
def test_the_page_of_operators_is_true(request: pytest.FixtureRequest) -> None:
    known: dict[str, str] = {}
    for part in PARTS:
        known |= json.loads((KNOWN / f"{part}.json").read_text())
    text = document(known)
    if request.config.getoption("--update-golden"):
        DOCUMENT.write_text(text)
    assert DOCUMENT.read_text() == text, "run `make golden`"
