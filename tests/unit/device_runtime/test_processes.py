"""Ending every process below one, on a machine that is too busy to do so in time, too."""

from __future__ import annotations

import subprocess
import time

import pytest

from device_runtime import processes


def test_processes_that_were_stopped_are_killed_however_late_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "ENDING_S", 0.0)
    with subprocess.Popen(["sh", "-c", "sleep 60 & sleep 60 & wait"]) as parent:
        try:
            deadline_s = time.monotonic() + 30
            while len(processes.descendants(parent.pid)) < 2 and time.monotonic() < deadline_s:
                time.sleep(0.01)
            below = processes.descendants(parent.pid)
            assert len(below) == 2
            processes.kill_below(parent.pid)
            while processes.descendants(parent.pid) and time.monotonic() < deadline_s:
                time.sleep(0.01)
            assert all(processes.state_and_parent(child)[0] in "XZ" for child in below)
        finally:
            parent.kill()
