"""The command line: what it refuses, and a measurement from end to end with what every machine has."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.kernels.__main__ import main
from benchmarks.kernels.results import read


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["measure", "--only", "X9"], "unknown operators X9: expected names of C1, "),
        (["measure", "--libraries", "nope"], "unknown libraries nope: expected names of numpy, torch"),
        (["loops", "--board", "toaster"], "No board is named 'toaster'"),
        (["loops", "--threads", "4096"], "board host: expected 1 to "),
        (["report", "/nowhere.json"], "No such file or directory"),
    ],
)
def test_refusals(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("benchmarks.kernels: ")
    assert message in said


@pytest.mark.slow
def test_random_shapes_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = tmp_path / "random.json"
    records = ["--records", str(tmp_path / "none.db")]
    short = ["--rounds", "2", "--batches", "1", "--batch-ms", "1"]
    assert main(["random", "--count", "5", *records, *short, "--json", str(result)]) == 0
    printed = capsys.readouterr().out
    cases = read(result).cases
    assert [case.workload for case in cases] == ["R0", "R1", "R2", "R3", "R4"]
    assert all(case.shape in printed for case in cases)
    for case in cases:
        names = {series.name for series in case.series}
        assert {"machine fma", "machine read", "ours default"} < names
        assert any(name.startswith("numpy ") for name in names)
        assert case.not_measured == {}
        assert all(series.error is None or series.error < 1e-5 for series in case.series)
    assert main(["report", str(result)]) == 0
    assert capsys.readouterr().out == printed
