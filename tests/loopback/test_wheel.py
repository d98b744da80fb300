"""The wheel in an environment of its own, away from the source: README's quick start, man pages."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

from tests.loopback.tune_board import HOST, board_file, write_network

ROOT = Path(__file__).parents[2]
NOT_BUILT = ("build", ".venv", ".git", "*.egg-info", "__pycache__", ".*_cache", "tests")
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prefix(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A virtual environment with the wheel, and what it depends on from the environment of the tests."""
    pytest.importorskip("click_man", reason="made by `make venv` anew: builds need click-man")
    folder = tmp_path_factory.mktemp("wheel")
    shutil.copytree(ROOT, folder / "source", ignore=shutil.ignore_patterns(*NOT_BUILT))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    built = [*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", str(folder), str(folder / "source")]
    subprocess.run(built, check=True)
    prefix = folder / "environment"
    venv.create(prefix)
    (wheel,) = folder.glob("*.whl")
    install = ["install", "--no-deps", "--no-index", str(wheel)]
    subprocess.run([*pip, "--python", str(prefix / "bin/python"), *install], check=True)
    depends = folder / "dependencies"
    depends.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"__editable__|tune_for_board|_virtualenv|.*\.pth$", entry.name):
            (depends / entry.name).symlink_to(entry)
    (site,) = prefix.glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(f"{depends}\n")
    return prefix


def run(prefix: Path, folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}", "HOME": str(folder / "home"), "LANG": "C.UTF-8",
    }  # fmt: skip
    return subprocess.run(["sh", "-ec", command], cwd=folder, env=environment, capture_output=True, text=True)


def test_the_quick_start_of_the_readme(prefix: Path, tmp_path: Path) -> None:
    """On this machine instead of a board over SSH, with a small network and few trials."""
    board = board_file(tmp_path, HOST)
    write_network(tmp_path).rename(tmp_path / "squeezenet.onnx")
    (tmp_path / "home").mkdir()
    section = (ROOT / "README.md").read_text().split("## Quick start")[1]
    commands = re.findall(r"```sh\n(.*?)```", section, re.S)[0].splitlines()[
        1:
    ]  # without `. .venv/bin/activate`
    make = "import numpy; numpy.save('input.npy', numpy.zeros((1, 3, 14, 14), 'float32'))"
    assert run(prefix, tmp_path, f"python -c {shlex.quote(make)}").returncode == 0
    for line in commands:
        line = line.replace("rpi3b@pi@192.168.1.7", shlex.quote(str(board))).replace(
            "--trials 64", "--trials 1"
        )
        if line.startswith("tune-for-board"):
            line += " --shape x=1,3,14,14"
        done = run(prefix, tmp_path, line.replace(" -o squeezenet.tfb", " -o ./squeezenet.tfb"))
        assert done.returncode in ((0, 6) if "doctor" in line else (0,)), (line, done.stdout, done.stderr)
        assert "\x1b" not in done.stdout + done.stderr, line
    where = run(prefix, tmp_path, "python -c 'import toolkit; print(toolkit.__file__)'").stdout
    assert Path(where.strip()).is_relative_to(prefix)
    assert {"squeezenet.tfb", "squeezenet.html", "outputs"} <= {path.name for path in tmp_path.iterdir()}


def test_man_pages_and_completions_are_installed(prefix: Path, tmp_path: Path) -> None:
    pages = {path.name for path in (prefix / "share/man/man1").iterdir()}
    assert {"toolkit.1", "toolkit-boards-new.1", "tune-for-board.1", "flash.1"} <= pages
    assert "--trials" in (prefix / "share/man/man1/toolkit-tune.1").read_text().replace("\\", "")
    if shutil.which("man"):
        shown = run(prefix, tmp_path, "MANWIDTH=80 man --warnings toolkit-bench")
        assert "--against" in shown.stdout and shown.stderr == "", shown
    bash = (prefix / "share/bash-completion/completions/toolkit").read_text()
    assert "_TOOLKIT_COMPLETE=bash_complete" in bash
    assert (prefix / "share/zsh/site-functions/_flash").read_text().startswith("#compdef flash")
    completed = run(
        prefix, tmp_path, "COMP_WORDS='toolkit boards n' COMP_CWORD=2 _TOOLKIT_COMPLETE=bash_complete toolkit"
    )
    assert completed.stdout == "plain,new\n"


def test_the_version_and_short_help_are_everywhere(prefix: Path, tmp_path: Path) -> None:
    for program in ("toolkit", "tune-for-board", "flash"):
        assert run(prefix, tmp_path, f"{program} --version").stdout == f"{program}, version 0.1.0\n"
        assert run(prefix, tmp_path, f"{program} -h").stdout.startswith("Usage: ")
