"""Ending every process below one, on a machine that is too busy to do so in time, too."""

from __future__ import annotations

import subprocess
import time

import pytest

from device_runtime.sandbox import process_tree


def test_processes_that_were_stopped_are_killed_however_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_tree, "ENDING_S", 0.0)
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"]) as parent:
        try:
            deadline_s = time.monotonic() + 30
            while len(process_tree.descendants(parent.pid)) < 2 and time.monotonic() < deadline_s:
                time.sleep(0.01)
            below = process_tree.descendants(parent.pid)
            assert len(below) == 2
            process_tree.kill_below(parent.pid)
            while process_tree.descendants(parent.pid) and time.monotonic() < deadline_s:
                time.sleep(0.01)
            assert all(process_tree.state_and_parent(child)[0] in "XZ" for child in below)
        finally:
            parent.kill()
