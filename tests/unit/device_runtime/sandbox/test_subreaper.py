"""A command's processes end with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from device_runtime.sandbox.process_tree import children, state_and_parent
from toolkit.measure.archive import runtime_archive
from toolkit.measure.links.process import SUBREAPER

PATIENCE_S = 30.0

FORKED_TWICE = """
import os, sys, time
if os.fork() == 0:
    if os.fork() == 0:
        print(os.getpid(), flush=True)
        os.close(1)
        time.sleep(1000)
    os._exit(0)
os.wait()
time.sleep(float(sys.argv[1]))
sys.exit(3)
"""


def started(archive: Path, *command: str) -> subprocess.Popen[bytes]:
    above = [sys.executable, "-I", "-c", SUBREAPER, str(archive)]
    return subprocess.Popen([*above, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("archive") / "runtime.pyz"
    path.write_bytes(runtime_archive())
    return path


def runs(pid: int) -> bool:
    return state_and_parent(pid)[0] not in "XZ"


def test_what_a_command_leaves_behind_ends_with_it(archive: Path) -> None:
    process = started(archive, sys.executable, "-c", FORKED_TWICE, "0")
    output, _ = process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 3
    assert not runs(int(output))


def test_a_command_ends_with_the_process_above_it(archive: Path) -> None:
    process = started(archive, sys.executable, "-c", FORKED_TWICE, "1000")
    assert process.stdout is not None
    orphan = int(process.stdout.readline())  # a child of the process above by now
    (command,) = set(children(process.pid)) - {orphan}
    process.kill()
    deadline_s = time.monotonic() + PATIENCE_S
    while runs(command) and time.monotonic() < deadline_s:
        time.sleep(0.01)
    assert not runs(command)
    os.kill(orphan, signal.SIGKILL)
    process.communicate(timeout=PATIENCE_S)


def test_a_command_that_does_not_end_is_ended_with_what_it_left(archive: Path) -> None:
    process = started(archive, sys.executable, "-c", FORKED_TWICE, "1000")
    assert process.stdout is not None
    orphan = int(process.stdout.readline())
    process.terminate()
    process.communicate(timeout=PATIENCE_S)
    assert process.returncode == 128 + signal.SIGKILL
    assert not runs(orphan)


@pytest.mark.parametrize(
    ("command", "status", "text"),
    [
        (["/nowhere/python"], 127, "/nowhere/python: No such file or directory"),
        (["sh", "-c", "kill -9 $$"], 128 + signal.SIGKILL, ""),
        (["sh", "-c", "exit 2"], 2, ""),
    ],
)
def test_it_ends_as_its_command_does(archive: Path, command: list[str], status: int, text: str) -> None:
    process = started(archive, *command)
    _, errors = process.communicate(timeout=PATIENCE_S)
    assert (process.returncode, errors.decode().strip()) == (status, text)
