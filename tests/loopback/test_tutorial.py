"""The commands of docs/tutorial.md, run as they stand on a terminal of 80 columns; with fewer trials, on a
smaller network, and in the environment that the tests run in instead of one that `make venv` makes anew."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COLUMNS = 80

pytestmark = pytest.mark.slow


def commands() -> list[str]:
    text = (ROOT / "docs/tutorial.md").read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    return [line for block in blocks for line in block.splitlines()]


def on_terminal(line: str, folder: Path) -> str:
    """What a command prints on a terminal; nothing may come to stderr but words without escapes."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "HOME": str(folder), "PATH": path, "PYTHONPATH": str(ROOT)}
    for name in ("COLUMNS", "LINES"):
        environment.pop(name, None)
    ours, theirs = pty.openpty()
    subprocess.run(["stty", "cols", str(COLUMNS), "rows", "24"], stdin=theirs, check=True)
    printed = b""
    with subprocess.Popen(
        ["sh", "-c", line], cwd=folder, env=environment, stdout=theirs, stderr=subprocess.PIPE
    ) as process:
        os.close(theirs)
        with os.fdopen(ours, "rb", buffering=0) as stream:
            try:
                while block := stream.read(1 << 16):
                    printed += block
            except OSError:  # a terminal whose other side is closed
                pass
        assert process.stderr is not None
        said = process.stderr.read().decode()
    assert process.returncode == 0, said
    assert "\x1b" not in said
    return printed.decode()


def test_at_most_six_commands_lead_to_the_slowest_layer(tmp_path: Path) -> None:
    clone, setup, *others = lines = commands()
    assert len(lines) <= 6
    assert clone.startswith("git clone ") and setup == "make venv && . .venv/bin/activate"
    (tmp_path / "benchmarks").symlink_to(ROOT / "benchmarks")
    network, tune, bench, inspect = others
    on_terminal(network.replace("net.onnx", "net.onnx --size 4"), tmp_path)
    for line, expected in (
        (tune.replace("--trials 32", "--trials 2"), ("convtranspose", "end to end after", "bundle")),
        (bench, ("slowest layers", "median", "measured")),
        (inspect, ("share of the roof", "one iteration of that loop", "alternatives that were tried")),
    ):
        shown = on_terminal(line, tmp_path)
        assert [part for part in expected if part not in shown] == []
        assert "\x1b" not in shown
        rows = [row for row in shown.splitlines() if len(row.expandtabs()) > COLUMNS and " " in row.strip()]
        assert rows == []
