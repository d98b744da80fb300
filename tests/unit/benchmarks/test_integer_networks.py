"""Figures of networks of integers from a case, and their layers beside ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.integer_networks import FLOATS, quantized_network, row
from benchmarks.integer_steps import steps_table
from benchmarks.kernels.results import OWN, Case, Sample, Series


def series(library: str, seconds: float, error: float | None = 0.01) -> Series:
    rounds = tuple(Sample(seconds=seconds * factor, kept=7, disturbed=0) for factor in (1.0, 1.1, 0.9))
    return Series(library=library, variant="all", error=error, work=1e9, rounds=rounds)


def test_ratios_are_over_the_fastest_rival_that_is_right_and_over_our_floats() -> None:
    case = Case(
        workload="resnet50-int8", suite="networks", shape="", threads=1, flops=10**9, bytes_once=1,
        series=(series(OWN, 0.010), series(FLOATS, 0.030), series("slow", 0.020), series("fast", 0.015),
                series("wrong", 0.001, error=0.9)),
        not_measured={"absent": "no Python"},
    )  # fmt: skip
    found = row(case)
    assert found.best == "fast all"
    assert found.against is not None and abs(found.against.median - 1.5) < 1e-9
    assert found.over_floats is not None and abs(found.over_floats.median - 3.0) < 1e-9
    assert found.milliseconds[f"{OWN} all"] == 10.0
    text = found.text()
    assert "over the best rival (fast all): 1.50" in text and "goal 2.2" in text
    assert "not measured: wrong all: wrong by 9.0e-01" in text and "absent: no Python" in text


@pytest.mark.slow
def test_layers_of_a_network_are_compared_by_kind(tmp_path: Path) -> None:
    lines = steps_table(quantized_network("bert", tmp_path, 16)[1], seed=0).splitlines()
    kinds = {line.split()[0]: line.split() for line in lines[1:]}
    assert {"matmul", "lookup", "normalize"} <= kinds.keys()
    assert all(int(cells[-1]) <= 1 for cells in kinds.values())
