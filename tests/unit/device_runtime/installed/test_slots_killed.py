"""The slots of a board when what changes them is killed before any file operation."""

from __future__ import annotations

import os
import shutil
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.slot_boards import SlotBoard, three_bundles
from toolkit.bundle import verify

FILE_EVENTS = (
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.symlink",
    "os.truncate",
    "os.chmod",
)


@pytest.fixture(scope="module")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> dict[int, verify.VerifiedBundle]:
    return three_bundles(tmp_path_factory.mktemp("bundles"))


@pytest.fixture
def board(
    tmp_path: Path, bundles: dict[int, verify.VerifiedBundle], monkeypatch: pytest.MonkeyPatch
) -> SlotBoard:
    """Signatures are checked in Python alone, and nothing waits for the disk: a kill loses no write."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    return SlotBoard(tmp_path, bundles)


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_first_flash(board: SlotBoard) -> None:
    _kill_everywhere(board, lambda: board.flash(1), wanted=1, before=0)


@pytest.mark.slow
def test_killed_before_every_file_operation_of_an_update(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(2)
    _kill_everywhere(board, lambda: board.flash(3), wanted=3, before=2)


@pytest.mark.slow
def test_killed_before_every_file_operation_of_a_rollback(board: SlotBoard) -> None:
    board.flash(1)
    board.flash(2)

    def roll_back() -> None:
        slots = board.slots
        with slots.locked():
            slots.rollback(board.id(2))

    _kill_everywhere(board, roll_back, wanted=1, before=2)


def _kill_everywhere(board: SlotBoard, work: Callable[[], None], wanted: int, before: int) -> None:
    """Do `work` in processes killed before their 1st, 2nd, ... file operation, each from the same start."""
    kept = board.device_dir.with_name("kept")
    shutil.copytree(board.device_dir, kept, symlinks=True)
    count = 0
    while _killed(work, count):
        allowed = {board.id(number) for number in (wanted, before) if number}
        if before or board.linked():
            _assert_runs(board, board.linked(), allowed)  # what an application sees, before anybody cleans up
        slots = board.slots
        with slots.locked():
            current = slots.state()["current"]
            assert board.linked() == current
            if before or current:
                _assert_runs(board, slots.startable(), allowed)
        work()  # the same again finishes it
        assert board.linked() == board.slots.state()["committed"] == board.id(wanted)
        leftovers = [name for name in os.listdir(slots.slots_dir) if name.startswith((".in", ".rem"))]
        assert leftovers == []
        shutil.rmtree(board.device_dir)
        shutil.copytree(kept, board.device_dir, symlinks=True)
        count += 1
    assert count > 10


def _assert_runs(board: SlotBoard, bundle_id: str, allowed: set[str]) -> None:
    assert bundle_id in allowed
    assert board.slots.is_whole(bundle_id)


def _killed(work: Callable[[], None], at: int) -> bool:
    """Run `work` in a child that is killed before file operation `at`; False when it ended before that."""
    pid = os.fork()
    if pid == 0:
        seen = 0

        def watch(event: str, _: object) -> None:
            nonlocal seen
            if event in FILE_EVENTS:
                if seen == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                seen += 1

        sys.addaudithook(watch)
        try:
            work()
        finally:
            os._exit(0 if sys.exc_info()[0] is None else 1)
    _, status = os.waitpid(pid, 0)
    assert status in (0, signal.SIGKILL), status
    return status != 0
