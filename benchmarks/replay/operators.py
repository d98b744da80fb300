"""The operators whose reduced spaces are recorded, and how large each is."""

from __future__ import annotations

from typing import Final

from benchmarks.harness.operators import Convolution
from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from benchmarks.replay.reduce import Size
from cross.expression import Operator

# M1024 takes seconds where its tiles are bad, and too few random ones are good
TABLES: Final = {
    "C6": Size(2700),
    "C9": Size(2400),
    "M1024": Size(2000, random_every=2),
    "tiny": Size(240, tuned=24),
}


def operator(name: str) -> Operator:
    """The operator of a table. Raises KeyError for an unknown name."""
    return _tiny() if name == "tiny" else workload_operator(WORKLOADS[name])


def _tiny() -> Operator:
    """8x8, 16 -> 16 channels, 3x3: microseconds in any of the three algorithms; what the tests search in."""
    layer = Convolution("conv2d", (8, 8), 16, 16, (3, 3), (1, 1), (1, 1))
    return layer.operator("tiny", ("data", "weight", "tiny"))
