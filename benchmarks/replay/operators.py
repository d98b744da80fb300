"""The operators whose reduced spaces are recorded, and how large each is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from cross.expression import Operator, placeholder
from cross.expression.conv import conv2d
from cross.expression.window import Window


@dataclass(frozen=True, slots=True)
class Recorded:
    """A table: at most `most` configurations, around the fastest of `tuned` trials in the full space."""

    name: str
    most: int
    tuned: int


TABLES: Final = {
    item.name: item
    for item in (
        Recorded("C6", 3000, 96),
        Recorded("C9", 3000, 96),
        Recorded("M1024", 2400, 96),
        Recorded("tiny", 240, 24),
    )
}


def operator(name: str) -> Operator:
    """The operator of a table. Raises KeyError for an unknown name."""
    return _tiny() if name == "tiny" else workload_operator(WORKLOADS[name])


def _tiny() -> Operator:
    """4x4, 16 -> 16 channels, 3x3: microseconds in any of the three algorithms; what the tests search in."""
    data, weight = placeholder((1, 4, 4, 16), "data"), placeholder((3, 3, 16, 16), "weight")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="tiny")
    return Operator("tiny", (data, weight), output, constants=frozenset({1}))
