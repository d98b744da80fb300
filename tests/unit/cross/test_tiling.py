"""What a space says of its knobs: which loops they tile, and which configurations are near."""

from __future__ import annotations

from fractions import Fraction
from math import prod

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.schedule.choose import space_of
from cross.schedule.space import ScheduleSpace
from tests.targets import AVX2

GPU = load("jetson-nano").target("gpu")


def direct(kind: str) -> ScheduleSpace:
    data, weight = placeholder((1, 14, 14, 16), "X"), placeholder((5, 5, 16, 24), "W")
    output = conv2d(data, weight, Window(pads=(2, 2, 2, 2)), name="Y")
    operator = Operator("conv2d", (data, weight), output, constants=frozenset({1}))
    return space_of(operator, AVX2 if kind == "cpu" else GPU, winograd=False)


@pytest.mark.parametrize(("kind", "levels"), [("cpu", (3, 1)), ("gpu", (4, 2))])
def test_tiles_are_the_choices_of_the_knobs_of_each_loop(kind: str, levels: tuple[int, int]) -> None:
    space = direct(kind)
    (stage,) = (stage for stage in space.tiles if stage.space)
    assert stage.iterations == 14 * 14 * 24 * 5 * 5 * 16
    assert [loop.extent for loop in stage.space] == [14, 14, 24] and [loop.place for loop in stage.space] == [
        1,
        2,
        3,
    ]
    assert [loop.extent for loop in stage.reduce] == [5, 5, 16]
    for loops, count in zip((stage.space, stage.reduce), levels, strict=True):
        for loop in loops:
            assert loop.choices.tolist() == [list(choice) for choice in space.knobs[loop.column].choices]
            assert loop.choices.shape[1] == count and (loop.points(0) <= loop.extent).all()
    reduced = space.restricted({space.knobs[stage.space[0].column].name: [(1,) * levels[0]]})
    assert next(item for item in reduced.tiles if item.space).space[0].choices.tolist() == [[1] * levels[0]]


def test_a_padding_is_a_launch_that_may_be_inlined() -> None:
    (padding,) = (stage for stage in direct("gpu").tiles if stage.launch is not None)
    assert padding.is_padding and padding.iterations == 0
    names = [direct("gpu").knobs[column].name for column in padding.launch or ()]
    assert [name.rpartition(".")[2] for name in names] == ["threads", "vector"]


def factor(one: tuple[int, ...], other: tuple[int, ...]) -> Fraction:
    """The product of the factors between values; 0 counts as one half."""
    pairs = [
        (Fraction(a) or Fraction(1, 2), Fraction(b) or Fraction(1, 2))
        for a, b in zip(one, other, strict=True)
    ]
    return prod(max(a / b, b / a) for a, b in pairs)


@pytest.mark.parametrize("kind", ["cpu", "gpu"])
def test_neighbours_are_the_nearest_valid_other_choices(kind: str) -> None:
    space = direct(kind)
    row = space.batch([space.default()])[0]
    for column, knob in enumerate(space.knobs):
        found = space.neighbours(row, column, 4)
        assert len(found) <= 4 and space.valid(found).all()
        assert (found[:, column] != row[column]).all()
        assert (np.delete(found, column, axis=1) == np.delete(row, column)).all()
        own = knob.choices[row[column]]
        away = [factor(knob.choices[choice], own) for choice in found[:, column]]
        assert away == sorted(away)
