"""What a candidate costs to make."""

from __future__ import annotations

from benchmarks.kernels.compile_cost import compile_cost, lines
from benchmarks.kernels.workloads import WORKLOADS


def test_every_part_has_its_time() -> None:
    cost = compile_cost(WORKLOADS["D9"], count=3, seed=0)
    assert len(cost.program_ms) == len(cost.object_ms) == len(cost.total_ms) == 3
    assert all(total > cost.link_ms > 0 for total in cost.total_ms)
    said = list(lines(WORKLOADS["D9"], cost))
    assert said[0] == "D9, 3 random configurations"
    assert all("ms a kernel" in line for line in said[1:])
