"""kill -9 of the host's or the board's process at every step of a flash leaves a slot that runs."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from boards.board import Board, load
from tests.loopback.conftest import in_folder
from tests.loopback.flashing import Flasher
from toolkit.errors import BoardUnreachable, NotCommitted
from toolkit.flash import FlashEvent

STEPS = ("upload", "install", "self_test", "activate", "health_check", "commit")
MOMENTS = [(step, state) for step in STEPS for state in ("begin", "end")]
RANDOM_KILLS = 12

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
    flasher.options = dataclasses.replace(flasher.options, wait_s=10.0)
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


def _kill_if_running(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):  # the step, and all that followed, took less than the delay
        os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("seed", range(RANDOM_KILLS))
def test_the_board_side_is_killed_within_a_step(flasher: Flasher, seed: int) -> None:
    """At a random moment after the board was asked, so also within its own work."""
    rng = np.random.default_rng(seed)
    step = STEPS[seed % len(STEPS)]
    delay_s = float(rng.uniform(0, 0.02))

    def kill(event: FlashEvent) -> None:
        if (event.step, event.state) == (step, "begin"):
            threading.Timer(delay_s, _kill_if_running, [_runtime_pid(flasher)]).start()

    with contextlib.suppress(BoardUnreachable, NotCommitted):
        flasher.flash(2, kill)
    _assert_recovers(flasher, {1, 2})


@pytest.mark.parametrize(("step", "state"), MOMENTS, ids=[f"{step}-{state}" for step, state in MOMENTS])
def test_the_host_side_is_killed(flasher: Flasher, step: str, state: str) -> None:
    assert flasher.options.config_dir is not None
    assert flasher.options.cache_dir is not None
    arguments = [flasher.bundle(2), flasher.device_dir, flasher.options.config_dir, flasher.options.cache_dir]
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.loopback.flash_process", *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        for line in process.stdout:
            if line.split() == [step, state]:
                process.kill()
                break
            process.stdin.write("\n")
            process.stdin.flush()
        else:
            pytest.fail(f"the flash ended without {step} {state}")
    allowed = {1} if step in ("upload", "install", "self_test") else {1, 2}
    _assert_recovers(flasher, {2} if step in ("health_check", "commit") else allowed)
