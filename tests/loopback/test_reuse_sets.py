"""A set of operators by every method: tuned, timed in turn, and not measured again the second time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.reuse.__main__ import main

pytestmark = pytest.mark.slow

METHODS = ("search", "reuse-none", "selective")


def test_a_set_is_tuned_by_every_method_and_resumed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["sets", "--sets", "1d-ir", "--limit", "2", "--trials", "4", "--work", str(tmp_path), "--json"]
    asked += ["--methods", *METHODS]
    assert main(asked) == 0
    first = capsys.readouterr()
    found = json.loads(first.out)["outcomes"]
    assert [item["method"] for item in found] == list(METHODS)
    assert all(item["latency_s"] > 0 and item["seconds"] > 0 for item in found)
    assert (found[0]["trials"], found[0]["time"], found[0]["speed"]) == (8, 1.0, 1.0)
    records = {path.name: path.read_bytes() for path in tmp_path.glob("*.db")}
    assert main(asked) == 0
    assert capsys.readouterr().out == first.out
    assert {path.name: path.read_bytes() for path in tmp_path.glob("*.db")} == records
