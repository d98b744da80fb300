"""Inner loops of the int8 convolutions that the benchmark has of boards."""

from __future__ import annotations

import pytest

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
