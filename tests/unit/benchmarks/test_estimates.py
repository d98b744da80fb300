"""The study of estimates: what it measures are an operator's programs, and it says what a choice loses."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import estimates
from benchmarks.estimates import Case, Found, algorithms, tiles
from benchmarks.harness.place import board_with
from boards.target import IN_ORDER_CPUS
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import dense
from cross.expression.families.window import Window


def layer() -> Operator:
    data, weight = placeholder((40, 24), "data"), placeholder((24, 64), "weight")
    return Operator("layer", (data, weight), dense(data, weight, "layer"), frozenset({1}))


def convolution() -> Operator:
    data, weight = placeholder((1, 12, 12, 32), "data"), placeholder((3, 3, 32, 32), "weight")
    window = Window(pads=(1, 1, 1, 1))
    return Operator("conv", (data, weight), conv2d(data, weight, window, "conv"), frozenset({1}))


def test_tiles_are_measured_the_best_estimate_first() -> None:
    _, target = board_with(1)
    if target.cpu in IN_ORDER_CPUS:
        pytest.skip("cores that run in order have no estimated cycles")
    case = tiles("network", "layer", layer(), target, np.random.default_rng(0))
    assert case is not None and case.chosen == 0
    cycles = [found.cycles for found in case.programs]
    assert (
        len(cycles) >= 8 and min(cycles) == cycles[0] and len({found.choice for found in case.programs}) > 4
    )
    assert all(0 < found.seconds < math.inf for found in case.programs)
    assert max(cycles) <= estimates.LONGEST * cycles[0] or len(cycles) <= estimates.BEST
    assert algorithms("network", "layer", layer(), target, np.random.default_rng(0)) is None


def test_algorithms_are_measured_each() -> None:
    _, target = board_with(1)
    case = algorithms("network", "conv", convolution(), target, np.random.default_rng(0))
    assert case is not None
    assert [found.choice for found in case.programs] == ["direct", "F(2x2,3x3)", "F(4x4,3x3)"]
    assert all(0 < found.seconds < math.inf for found in case.programs)


def test_what_a_choice_loses() -> None:
    case = Case("n", "o", (Found("a", 1.0, 3.0), Found("b", 2.0, 2.0)), 0)
    assert math.isclose(case.lost, 1.5)
    assert case.line.startswith(" 1.50  n o: a 3000000 us, best b 2000000 us")
