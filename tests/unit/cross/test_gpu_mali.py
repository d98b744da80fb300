"""Spaces for GPUs without shared memory on the chip: Mali's vectors, registers and work-groups."""

from __future__ import annotations

import re

import msgspec
import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.norm import softmax
from cross.expression.families.window import Window
from cross.loopnest import Programs
from cross.schedule import gpu_space
from cross.schedule.space import ScheduleSpace

MALI = load("rock960").target("mali")
SHARED = re.compile(r"__local|barrier")


def convolution(channels: int = 32, outputs: int = 32, depthwise: bool = False) -> Operator:
    data = placeholder((1, 14, 14, channels), "X")
    window = Window(pads=(1, 1, 1, 1))
    if depthwise:
        weight = placeholder((3, 3, channels), "W")
        output = depthwise_conv(data, weight, window, name="conv")
    else:
        weight = placeholder((3, 3, channels, outputs), "W")
        output = conv2d(data, weight, window, name="conv")
    return Operator("conv", (data, weight), output, frozenset({1}))


def distribution() -> Operator:
    data = placeholder((4, 512), "X")
    return Operator("softmax", (data,), softmax(data, 1, name="softmax"))


def with_limits(**limits: object) -> Target:
    assert MALI.gpu is not None
    return msgspec.structs.replace(MALI, gpu=msgspec.structs.replace(MALI.gpu, **limits))


def valid(space: ScheduleSpace, **knobs: list[int]) -> bool:
    configuration = space.parse(
        space.describe(space.default()) | {f"conv.{name}": tiles for name, tiles in knobs.items()}
    )
    return bool(space.valid(space.batch([configuration]))[0])


def source(space: ScheduleSpace, **knobs: list[int]) -> str:
    changed = {f"conv.{name}": tiles for name, tiles in knobs.items()}
    configuration = space.parse(space.describe(space.default()) | changed)
    return gpu_program("k", Programs(space).nest(configuration), space.target).source


@pytest.mark.slow
@pytest.mark.parametrize("operator", [convolution(), convolution(depthwise=True), distribution()])
def test_no_program_has_shared_memory(operator: Operator) -> None:
    space = gpu_space(operator, MALI)
    programs = Programs(space)
    rows = space.sample(np.random.default_rng(0), 12)
    for configuration in (space.default(), *map(space.configuration, rows)):
        assert not SHARED.search(gpu_program("k", programs.nest(configuration), MALI).source)


def test_long_sums_are_cut_in_two_launches() -> None:
    space = gpu_space(distribution(), MALI)
    assert space.knobs[0].labels == ("direct", "in two launches")
    labels = gpu_space(distribution(), load("h200").target()).knobs[0].labels
    assert labels[-1] == "direct" and all(label.startswith("across ") for label in labels[:-1])


@pytest.mark.parametrize("lanes", [2, 4, 8, 16])
def test_arithmetic_runs_on_vectors_of_every_width_of_the_board(lanes: int) -> None:
    text = source(gpu_space(convolution(), MALI), c=[1, 1, 1, lanes], x=[1, 2, 1, 1], y=[1, 2, 1, 1])
    assert f"float{lanes} conv_acc;" in text
    assert f"vload{lanes}(0, &W[" in text and f"vstore{lanes}(conv_acc, 0, &conv[" in text


def test_a_board_without_wide_vectors_gets_none() -> None:
    space = gpu_space(convolution(), with_limits(widest_vector_lanes=4), winograd=False)
    widths = {choice[-1] for knob in space.knobs if knob.name == "conv.c" for choice in knob.choices}
    assert widths == {1, 2, 4}


def test_an_axis_of_prime_length_runs_in_scalars_or_in_overlapping_vectors() -> None:
    space = gpu_space(convolution(outputs=7), MALI)
    choices = next(knob.choices for knob in space.knobs if knob.name == "conv.c")
    assert {choice[-1] for choice in choices} == {1, 2, 4}
    assert "float conv_acc" in source(space, c=[1, 7, 1, 1])
    assert "min(c_" in source(space, c=[1, 1, 1, 4]), "the second vector ends with the axis"


def test_the_registers_of_a_thread_bound_its_tile() -> None:
    space = gpu_space(convolution(), MALI)
    assert valid(space, c=[1, 4, 1, 4], x=[1, 2, 7, 1], y=[1, 1, 1, 1]), "28 sums"
    assert not valid(space, c=[1, 1, 1, 16], x=[1, 2, 7, 1], y=[1, 1, 1, 1]), "112 sums, of 64 registers"
    assert valid(
        gpu_space(convolution(), with_limits(registers_per_thread=256)), c=[1, 1, 1, 16], x=[1, 2, 7, 1]
    )


def test_work_groups_keep_to_the_first_dimension_of_the_board() -> None:
    tiles = {"c": [1, 8, 1, 4], "x": [1, 14, 1, 1], "y": [1, 2, 1, 1]}  # 224 threads
    assert valid(gpu_space(convolution(), MALI), **tiles)
    assert not valid(gpu_space(convolution(), with_limits(max_block_dims=(128, 256, 256))), **tiles)


def test_the_key_names_what_changes_the_space() -> None:
    for change in ({"shared_memory_on_chip": True}, {"registers_per_thread": 32}, {"widest_vector_lanes": 4}):
        assert with_limits(**change).key != MALI.key
