"""The OpenCL C and CUDA C of GPU programs, as text to review. `make golden` rewrites the files."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from boards.board import load
from boards.target import GpuLimits, Target
from cross.codegen.c.gpu_code import gpu_program
from cross.expression import Operator, maximum, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import dense
from cross.expression.families.elementwise import apply, bias_add
from cross.expression.families.norm import softmax
from cross.expression.families.window import Window
from cross.loopnest import Programs, verify
from cross.schedule.choose import space_of

Golden = Callable[[str, str], None]

LIMITS = GpuLimits(
    max_threads_per_block=256, max_block_dims=(256, 256, 256), shared_memory_bytes=32768,
    registers_per_block=0, warp_size=32, compute_units=8, vector_float_lanes=4,
)  # fmt: skip
TARGETS = {
    "cl": Target(name="gpu", kind="opencl", l2_bytes=1 << 20, clock_hz=1e9, flops_per_cycle=128, gpu=LIMITS),
    "cu": load("jetson-nano").target("gpu"),
}


def write(
    golden: Golden,
    name: str,
    operator: Operator,
    target: Target,
    knobs: dict[str, list[int]],
    algorithm: int = 0,
) -> None:
    """The source of one configuration: an algorithm's untuned one but for some knobs."""
    space = space_of(operator, target, winograd=False)
    untuned = space.defaults()[algorithm]
    nest = Programs(space).nest(space.parse({**space.describe(untuned), **knobs}))
    verify(nest)
    golden(f"gpu/{name}", gpu_program("kernel", nest, target).source + "\n")


def relu_after_bias(operator_name: str, data_shape: tuple[int, ...], channels: int) -> Operator:
    """A padded 3x3 convolution, a bias and a relu."""
    data = placeholder(data_shape, "X")
    weight, bias = placeholder((3, 3, data_shape[-1], channels), "W"), placeholder((channels,), "b")
    biased = bias_add(conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv"), bias)
    output = apply(lambda x: maximum(x, 0.0), biased, "relu")
    return Operator(operator_name, (data, weight, bias), output, frozenset({1, 2}))


@pytest.mark.parametrize("language", sorted(TARGETS))
def test_matmul_through_shared_memory(golden: Golden, language: str) -> None:
    """Blocks of 32 x 64 elements, 8 steps of the reduction at once, 4 x 4 elements a thread."""
    a, b = placeholder((64, 64), "A"), placeholder((64, 128), "B")
    operator = Operator("matmul", (a, b), dense(a, b, "matmul"))
    knobs = {
        "shared": [0], "matmul.i": [2, 8, 2, 1], "matmul.j": [1, 16, 1, 4], "matmul.acc.k": [4, 2],
        "matmul.fetch.A": [4], "matmul.fetch.B": [4], "unroll": [16],
    }  # fmt: skip
    write(golden, f"matmul.{language}", operator, TARGETS[language], knobs)


@pytest.mark.parametrize("language", sorted(TARGETS))
def test_convolution_reading_its_padding(golden: Golden, language: str) -> None:
    """The edge of the image is a condition; two rows a block do not divide 13, so the last one is shifted."""
    knobs = {
        "shared": [1], "padding": [1], "relu.i1": [1, 2, 1, 1], "relu.i2": [1, 2, 2, 1],
        "relu.i3": [1, 4, 1, 4], "conv.kh": [1, 1], "conv.kw": [3, 1], "conv.kc": [2, 2], "unroll": [16],
    }  # fmt: skip
    write(golden, f"conv.{language}", relu_after_bias("conv", (1, 13, 12, 8), 16), TARGETS[language], knobs)


@pytest.mark.parametrize("language", sorted(TARGETS))
def test_sums_that_the_threads_of_a_block_share(golden: Golden, language: str) -> None:
    data = placeholder((6, 100), "X")
    operator = Operator("softmax", (data,), softmax(data, 1))
    write(golden, f"softmax.{language}", operator, TARGETS[language], {}, algorithm=0)


def test_a_convolution_for_a_mali(golden: Golden) -> None:
    """No shared memory; weights packed in the order in which threads read them."""
    operator = relu_after_bias("conv", (1, 12, 12, 8), 32)
    write(golden, "conv_mali.cl", operator, load("rock960").target("mali"), {})
