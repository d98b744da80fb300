"""int8 convolutions of the benchmark: who gets which cores, and inner loops of boards."""

from __future__ import annotations

import os
from typing import Any

import onnxruntime
import pytest

from benchmarks import integers
from benchmarks.harness.place import board_with
from benchmarks.integer_rivals import Rivals
from benchmarks.integers import FULL, NARROW, rate_and_spills
from benchmarks.kernels.workloads import chosen
from boards.board import load


@pytest.mark.parametrize("name", ["D2", "D3", "D4", "D6", "D8"])
def test_windows_of_bytes_stay_in_the_registers_of_a_cortex_a53(name: str) -> None:
    (workload,) = chosen([name])
    found = rate_and_spills(workload, FULL, load("rpi3b").target(None))
    assert found is not None and found[1] == 0


@pytest.mark.slow
@pytest.mark.parametrize(("bound", "least"), [(FULL, 3.5), (NARROW, 4.5)])
@pytest.mark.parametrize("name", ["C2", "C3", "C5", "C7", "C8", "C10", "C12"])
def test_convolutions_reach_their_goals_on_a_cortex_a53(name: str, bound: int, least: float) -> None:
    """Products of bytes a cycle by the issue model; XNNPACK's loop takes 3.46."""
    (workload,) = chosen([name])
    found = rate_and_spills(workload, bound, load("rpi3b").target(None))
    assert found is not None and found[0] >= least and found[1] == 0


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core")
def test_others_start_with_all_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Our pool pins the thread that makes it, and threads and processes inherit what they may run on."""
    (workload,), cores = chosen(["D8"]), os.sched_getaffinity(0)
    found: list[set[int]] = []

    def noted(function: Any) -> Any:
        def call(*arguments: Any, **named: Any) -> Any:
            found.append(os.sched_getaffinity(0))
            return function(*arguments, **named)

        return call

    monkeypatch.setattr(integers, "_session", noted(integers._session))
    monkeypatch.setattr(Rivals, "open", noted(Rivals.open))
    rounds = integers._rounds(workload, board_with(2)[1], 0, onnxruntime, Rivals([]))
    assert {"default", "onnxruntime"} <= rounds.seconds.keys()
    assert len(found) == 5 and all(item == cores for item in found)
    assert os.sched_getaffinity(0) == cores
