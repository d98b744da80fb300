"""Launches of GPU kernels against a board's limits: what the source and the cubin say of them."""

from __future__ import annotations

import re

import msgspec
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.errors import CompileError
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.inspection.gpu_launches import inspect_gpu, shares
from cross.loopnest import LoopNest, Programs
from cross.nvrtc import compile_cubin, usage
from cross.schedule.choose import space_of


def conv(target: Target, **knobs: list[int]) -> LoopNest:
    """A padded convolution, untuned but for some knobs."""
    data, weight = placeholder((1, 8, 8, 4), "X"), placeholder((3, 3, 4, 16), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv")
    space = space_of(Operator("conv", (data, weight), output, frozenset({1})), target)
    return Programs(space).nest(space.parse({**space.describe(space.default()), **knobs}))


@pytest.mark.parametrize(("board", "target_name"), [("pocl", "opencl"), ("jetson-nano", "gpu")])
def test_what_a_launch_takes_is_what_the_source_says(board: str, target_name: str) -> None:
    target = load(board).target(target_name)
    if target.kind == "cuda":
        pytest.importorskip("nvidia.cuda_nvrtc")
    tiles = {"conv.y": [1, 1, 1, 1], "conv.x": [1, 8, 1, 1], "conv.c": [1, 16, 1, 1]}
    nest = conv(target, **tiles)
    program = gpu_program("k", nest, target)
    found = inspect_gpu("k", nest, target)
    assert [(one.name, one.blocks, one.threads, one.shared_bytes) for one in found] == [
        (one.name, one.blocks, one.threads, one.shared_bytes) for one in program.functions
    ]
    (launch,) = found
    assert launch.shared_bytes == 4 * (3 * 10 * 4 + 3 * 3 * 4 * 16)  # rows of the padded image, the weights
    assert launch.private_bytes == 4  # one accumulator
    loads = [int(lanes) for lanes in re.findall(r"vload(\d+)", program.source)]
    assert launch.vector_lanes == max(loads, default=4)
    assert launch.shares(target)["threads"] == launch.threads / target.gpu.max_threads_per_block  # type: ignore[union-attr]
    assert max(launch.shares(target).values()) <= 1


def test_what_a_thread_keeps_is_its_own_part_of_an_array() -> None:
    target = load("pocl").target("opencl")
    (launch,) = inspect_gpu("k", conv(target, **{"conv.c": [1, 4, 1, 4]}), target)
    assert launch.private_bytes == 4 * 4


def test_registers_are_those_of_the_cubin() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    target = load("jetson-nano").target("gpu")
    nest = conv(target)
    (launch,) = inspect_gpu("k", nest, target)
    needs = usage(compile_cubin(gpu_program("k", nest, target).source, "sm_53"))[launch.name]
    assert launch.registers == needs.registers > 0
    assert launch.local_bytes == needs.local_bytes == 0
    assert launch.shares(target)["registers of a thread"] == needs.registers / 255


def test_registers_are_given_to_whole_warps_in_eights() -> None:
    limits = load("jetson-nano").target("gpu").gpu
    assert limits is not None
    assert shares(limits, 33, 0, 25)["registers"] == 64 * 32 / 32768
    assert shares(limits, 64, 0, 32)["registers"] == 64 * 32 / 32768


def test_what_does_not_fit_the_registers_of_a_thread_is_counted() -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    sums = " ".join(f"float s{number} = x[{number}];" for number in range(80))
    uses = " ".join(f"s{number} = s{number} * x[i] + s{(number + 7) % 80};" for number in range(80))
    total = " + ".join(f"s{number}" for number in range(80))
    source = (
        'extern "C" __global__ __launch_bounds__(1024) void k(const float *x, float *y, int n) '
        f"{{ {sums} for (int i = 0; i < n; ++i) {{ {uses} }} *y = {total}; }}"
    )
    found = usage(compile_cubin(source, "sm_53"))["k"]
    assert found.registers == 32  # 32768 for 1024 threads
    assert found.local_bytes >= 4 * (80 - 32)


def test_opencl_has_no_register_count() -> None:
    target = load("pocl").target("opencl")
    (launch,) = inspect_gpu("k", conv(target), target)
    assert launch.registers is None
    assert "registers" not in launch.shares(target)


def test_more_than_the_board_has_is_refused() -> None:
    target = load("pocl").target("opencl")
    assert target.gpu is not None
    small = msgspec.structs.replace(target, gpu=msgspec.structs.replace(target.gpu, max_threads_per_block=4))
    with pytest.raises(CompileError, match="threads a block, opencl has at most 4"):
        inspect_gpu("k", conv(target), small)
