"""kill -9 of the board's process at every step of a flash leaves a slot that runs, and the exit code says so.

Every call of either side, and random moments, are killed by tests/torture/attack_flash.py.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
from pathlib import Path

import pytest
from msgspec.structs import replace

from boards.board import Board, load
from tests.loopback.conftest import in_folder
from tests.loopback.flashing import Flasher
from toolkit.errors import BoardUnreachable, NotCommitted
from toolkit.flash.values import FlashEvent

STEPS = ("upload", "install", "self_test", "activate", "health_check", "commit")
MOMENTS = [(step, state) for step in STEPS for state in ("begin", "end")]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with packed bundles, a key and a device directory on which version 1 is committed."""
    folder = tmp_path_factory.mktemp("prepared")
    flasher = Flasher(in_folder(load("host"), folder / "device"), folder)
    flasher.flash(1)
    flasher.bundle(2)
    return folder


@pytest.fixture
def flasher(prepared: Path, local_board: Board, tmp_path: Path) -> Flasher:
    """The prepared board, as a copy of one's own; waits for the lease of whoever was killed."""
    shutil.copytree(prepared, tmp_path, symlinks=True, dirs_exist_ok=True)
    flasher = Flasher(local_board, tmp_path)
    flasher.options = replace(flasher.options, wait_s=10.0)
    return flasher


def _runtime_pid(flasher: Flasher) -> int:
    """The runtime that holds the lease."""
    pid = json.loads((flasher.device_dir / "lease.json").read_text())["pid"]
    assert isinstance(pid, int)
    return pid


def _assert_recovers(flasher: Flasher, allowed: set[int]) -> None:
    """Something that runs is current, and the next flash finishes what was begun."""
    assert flasher.running_version() in allowed
    flasher.flash(2)
    flasher.assert_runs(2)
    status = flasher.status()
    assert status.current == status.committed
    assert not status.on_trial


@pytest.mark.parametrize(("step", "state"), MOMENTS, ids=[f"{step}-{state}" for step, state in MOMENTS])
def test_the_board_side_is_killed(flasher: Flasher, step: str, state: str) -> None:
    def kill(event: FlashEvent) -> None:
        if (event.step, event.state) == (step, state):
            os.kill(_runtime_pid(flasher), signal.SIGKILL)

    if (step, state) == ("commit", "end"):
        assert flasher.flash(2, kill).changed
    else:
        switched = step in ("activate", "health_check", "commit") or (step, state) == ("self_test", "end")
        with pytest.raises(NotCommitted if switched else BoardUnreachable) as caught:
            flasher.flash(2, kill)
        assert caught.value.exit_code == (8 if switched else 3)
    _assert_recovers(flasher, {2} if step in ("health_check", "commit") else {1, 2})
