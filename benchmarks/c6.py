"""C6 of the AutoTVM paper's Table 1: the operator that both search benchmarks use."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window


def c6(images: int = 1) -> Operator:
    """28x28, 128 -> 128 channels, 3x3, stride 1, float32: 231 MFLOP an image."""
    data = placeholder((images, 28, 28, 128), "data")
    weight = placeholder((3, 3, 128, 128), "weight")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="C6")
    return Operator("C6", (data, weight), output, constants=frozenset({1}))


def spread(name: str, values: Sequence[float], unit: str) -> str:
    """One line: median, minimum and maximum of repeated figures."""
    middle = statistics.median(values)
    return (
        f"{name:44s} {middle:12,.1f} {unit:14s} (min {min(values):,.1f}, max {max(values):,.1f}, "
        f"{len(values)} runs)"
    )
