"""A depthwise and a pointwise convolution in one launch on GPUs, and where that is expected to pay."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.expression import Operator, maximum, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.elementwise import apply
from cross.expression.families.pool import pool2d
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.expression.rewrites.composition import composed
from cross.inspection.gpu_launches import inspect_gpu
from cross.loopnest import Programs, to_text, verify
from cross.loopnest.threads import launches
from cross.schedule import gpu_space
from cross.schedule.gpu_chain import fed_space, saved_seconds
from tests.fuzz.operators import random_inputs
from tests.interpreter.interpreter import interpret
from tests.unit.cross.test_gpu_rows import check_one_launch

JETSON = load("jetson-nano").target("gpu")
H100 = load("h100").target("gpu")
MALI = load("rock960").target("mali")
SAMPLES = 10
PLAIN = Window(pads=(0, 0, 0, 0))


def parts(side: int, channels: int, results: int, stride: int = 1, taps: int = 3) -> list[Operator]:
    """A depthwise convolution with a ReLU, and a pointwise one of what it makes."""
    x, w = placeholder((1, side, side + 1, channels), "X"), placeholder((taps, taps, channels), "W")
    pads = (taps // 2,) * 4
    output = apply(
        lambda value: maximum(value, 0.0),
        depthwise_conv(x, w, Window(strides=(stride, stride), pads=pads)),
        "relu",
    )
    y, v = placeholder(output.shape, "Y"), placeholder((1, 1, channels, results), "V")
    return [
        Operator("depthwise", (x, w), output, frozenset({1})),
        Operator("pointwise", (y, v), conv2d(y, v, PLAIN), frozenset({1})),
    ]


def chain(*sizes: int) -> Operator:
    return composed(*parts(*sizes), 0)


def saved(target: Target, *sizes: int) -> float:
    return saved_seconds(parts(*sizes), chain(*sizes), target)


def squeezed() -> Operator:
    """A largest element of each window and channel, and a pointwise convolution of them."""
    x = placeholder((1, 11, 10, 16), "X")
    output = pool2d(x, (3, 3), Window(strides=(2, 2), pads=(0, 0, 1, 1)), "max")
    y, v = placeholder(output.shape, "Y"), placeholder((1, 1, 16, 8), "V")
    pooling, pointwise = Operator("pooling", (x,), output), Operator("pointwise", (y, v), conv2d(y, v, PLAIN))
    return composed(pooling, pointwise, 0)


@pytest.mark.parametrize(
    "operator",
    [chain(7, 8, 6), chain(9, 16, 12, 2), chain(8, 24, 8, 1, 5), squeezed()],
    ids=["depthwise", "strided", "5x5", "pooling"],
)
def test_every_program_computes_what_the_operator_says(operator: Operator) -> None:
    """And is one launch, whose shared memory is what the space says it is."""
    assert JETSON.gpu is not None
    space = fed_space(operator, JETSON, JETSON.gpu)
    assert space is not None
    check_one_launch(space, SAMPLES, 1e-4)


@pytest.mark.parametrize("target", [JETSON, H100], ids=["jetson", "h100"])
def test_cubins_of_untuned_programs_keep_the_limits_of_the_board(target: Target) -> None:
    """Of the largest chain of MobileNet-v2, and of one with many channels."""
    for sizes in ((56, 144, 24), (14, 576, 96)):
        space = gpu_space(chain(*sizes), target)
        (launch,) = inspect_gpu("k", Programs(space).nest(space.default()), target)
        assert launch.registers and max(launch.shares(target).values()) <= 1.0


def test_threads_without_an_element_read_what_the_last_one_reads() -> None:
    """7 x 8 pixels of 8 channels are 112 vectors, fewer than a block's 168 threads."""
    operator = chain(7, 8, 12)
    assert JETSON.gpu is not None
    space = fed_space(operator, JETSON, JETSON.gpu)
    assert space is not None
    tiles = {"conv.y": [1, 7, 1, 1], "conv.x": [1, 8, 1, 1], "conv.c": [1, 3, 1, 4], "conv.acc.kc": [8, 1]}
    described = space.describe(space.default()) | tiles
    nest = Programs(space).nest(space.parse(described))
    verify(nest)
    assert "min(relu.f.1, 111)" in to_text(nest)
    inputs = random_inputs(operator, np.random.default_rng(1))
    np.testing.assert_allclose(interpret(nest, inputs), evaluate(operator, inputs), rtol=1e-4, atol=1e-5)


def test_the_untuned_program_is_one_launch_and_two_are_the_other_choice() -> None:
    space = gpu_space(chain(14, 96, 32), JETSON)
    assert [part.label for part in space.parts] == ["in one launch", "direct"]
    counts = [len(launches(Programs(space).nest(item))) for item in space.defaults()]
    assert counts == [1, 2]


def test_padding_is_no_launch_of_its_own() -> None:
    space = gpu_space(chain(14, 96, 32), JETSON).parts[0].space
    assert "pad" not in to_text(Programs(space).nest(space.default()))


@pytest.mark.parametrize("target", [JETSON, H100], ids=["jetson", "h100"])
def test_few_results_of_many_channels_are_worth_it(target: Target) -> None:
    """As where an inverted bottleneck becomes narrow again: no block computes what another one has."""
    assert saved(target, 56, 144, 24) > 0.0


def test_not_where_every_block_of_channels_would_compute_all_sums_again() -> None:
    assert saved(JETSON, 14, 512, 512) == saved(H100, 7, 960, 320) == 0.0


def test_what_a_second_cache_does_not_hold_saves_the_way_to_memory() -> None:
    larger = msgspec.structs.replace(JETSON, l2_bytes=1 << 24)
    sizes = (56, 144, 24)
    handed = 4 * 56 * 57 * 144
    assert JETSON.memory_gbs is not None
    more = saved(JETSON, *sizes) - saved(larger, *sizes)
    assert more == pytest.approx(2e-9 * handed / JETSON.memory_gbs)


def test_nothing_is_said_of_other_gpus() -> None:
    assert JETSON.gpu is not None
    without_warps = msgspec.structs.replace(JETSON, gpu=msgspec.structs.replace(JETSON.gpu, warp_size=1))
    assert saved(MALI, 56, 144, 24) == saved(without_warps, 56, 144, 24) == 0.0


def test_a_pooling_is_no_contraction_to_feed() -> None:
    depthwise, _ = parts(14, 32, 32)
    data = placeholder(depthwise.output.shape, "Y")
    pooling = Operator(
        "pooling", (data,), pool2d(data, (2, 2), Window(strides=(2, 2), pads=(0, 0, 0, 0)), "max")
    )
    assert JETSON.gpu is not None
    assert fed_space(composed(depthwise, pooling, 0), JETSON, JETSON.gpu) is None
