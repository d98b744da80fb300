"""Commands that talk to a board on a terminal of 80 columns: no row is wrapped; through a pipe, no escape."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from tests.bundles import small_model, write_bundle
from toolkit.bundle.sign import open_key
from toolkit.cli.main import main
from toolkit.model_job import bench as bench_job

COMMANDS = [
    "doctor host", "boards probe host", "boards new here.toml --local", "flash a.tfb --board host --dry-run",
    "flash a.tfb --board host", "flash --board host --status", "run x.npy --board host -o outputs",
    "bench --board host", "bench --board host --bundle b.tfb --against a.tfb", "runtime archive -o bench.pyz",
    "flash b.tfb --board host", "flash --board host --rollback",
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("terminal", [True, False])
def test_no_row_is_wrapped(
    terminal: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, teach: Callable[[Path], None]
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("toolkit.cli.answers.on_terminal", lambda: terminal)
    for board in ("host", "here"):
        teach(tmp_path / ".local/share/tune-for-board" / board)
    monkeypatch.setattr(bench_job, "PAIRS", 2)
    monkeypatch.setattr(bench_job, "ROUNDS", 1)
    key = open_key(tmp_path / ".config/tune-for-board/signing_key")
    for number, name in enumerate(("a.tfb", "b.tfb"), 1):
        write_bundle(tmp_path, key, small_model(number), name, number)
    np.save("x.npy", small_model().x)
    for command in COMMANDS:
        result = CliRunner().invoke(main, command.split())
        assert result.exit_code in ((0, 6) if "doctor" in command else (0,)), (command, result.stderr)
        assert "\x1b" not in result.output, command
        words = [line for line in result.stdout.splitlines() if " " in line.strip()]
        assert not terminal or [line for line in words if len(line) > 80] == [], command
