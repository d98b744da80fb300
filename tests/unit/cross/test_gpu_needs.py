"""What constraints expect GPU programs to take, and what these take: shared memory, code of one thread."""

from __future__ import annotations

import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.window import Window
from cross.expression.language.terms import Int
from cross.inspection.gpu_launches import inspect_gpu
from cross.loopnest import Programs
from cross.loopnest.nodes import Allocate, Block, For, LoopKind, Statement, Store
from cross.schedule.choose import space_of
from cross.schedule.gpu_multi_level import MOST_WRITTEN_OUT
from cross.schedule.gpu_operands import shared_size
from cross.schedule.space import ScheduleSpace

WRITTEN_OUT = (LoopKind.UNROLLED, LoopKind.VIRTUAL_THREAD, LoopKind.VECTORIZED)
JETSON = load("jetson-nano").target("gpu")
LONG = {
    "padding": [1], "shared": [1], "conv.y": [2, 1, 1, 1], "conv.x": [1, 1, 7, 1], "conv.c": [1, 4, 1, 4],
    "conv.acc.kh": [1, 3], "conv.acc.kw": [1, 3], "conv.acc.kc": [4, 2], "unroll": [16],
}  # fmt: skip


def conv_space(target: Target) -> ScheduleSpace:
    data, weight = placeholder((1, 14, 14, 64), "X"), placeholder((3, 3, 64, 32), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv")
    return space_of(Operator("conv", (data, weight), output, frozenset({1})), target, winograd=False)


def is_valid(space: ScheduleSpace, **knobs: list[int]) -> bool:
    configuration = space.parse({**space.describe(space.default()), **LONG, **knobs})
    return bool(space.valid(space.batch([configuration]))[0])


def multiply_adds(statement: Statement, times: int = 1) -> int:
    """The most that one store is repeated in the source, its unrolled loops written out."""
    match statement:
        case For(_, Int(extent), kind, body):
            return multiply_adds(body, times * extent if kind in WRITTEN_OUT else times)
        case Allocate(_, body):
            return multiply_adds(body, times)
        case Block(statements):
            return max(multiply_adds(item, times) for item in statements)
        case Store():
            return times
        case _:
            return 0


def test_programs_are_short_enough_to_compile() -> None:
    space = conv_space(JETSON)
    programs = Programs(space)
    for row in space.sample(np.random.default_rng(0), 60):
        nest = programs.nest(space.configuration(row))
        assert multiply_adds(nest.body) <= MOST_WRITTEN_OUT, space.describe(space.configuration(row))


@pytest.mark.slow
@pytest.mark.parametrize("board", ["jetson-nano", "pocl"])
def test_shared_memory_is_what_the_space_says(board: str) -> None:
    target = next(item for item in load(board).targets if item.gpu is not None)
    space = conv_space(target)
    programs = Programs(space)
    sizes = set()
    for row in space.sample(np.random.default_rng(1), 40):
        configuration = space.configuration(row)
        *_, last = gpu_program("k", programs.nest(configuration), target).functions
        assert last.shared_bytes == space.needs(configuration).get("conv.shared", 0)
        sizes.add(last.shared_bytes)
    assert len(sizes) > 5


def test_arrays_in_shared_memory_start_at_multiples_of_16_bytes() -> None:
    assert [shared_size(size) for size in (0, 4, 16, 3576)] == [0, 16, 16, 3584]


def test_branches_at_the_edge_of_the_image_are_counted_apart() -> None:
    space = conv_space(JETSON)
    assert is_valid(space, **{"conv.acc.kc": [4, 1]})  # 2 * 7 * 9 reads
    assert is_valid(space)  # 2 * 7 * 18 = 252
    assert not is_valid(space, **{"conv.acc.kc": [4, 4]})
    assert is_valid(space, **{"conv.acc.kc": [4, 4]}, padding=[0])  # nothing is guarded
    assert not is_valid(space, **{"conv.acc.kc": [4, 8]}, padding=[0])  # 2 * 7 * 4 * 72 multiply-adds
    assert not is_valid(space, unroll=[512])  # the middle loop would be written out as well


def test_what_all_lanes_read_under_a_condition_is_read_once() -> None:
    space = conv_space(JETSON)
    nest = Programs(space).nest(space.parse({**space.describe(space.default()), **LONG}))
    source = gpu_program("k", nest, JETSON).source
    (definition,) = [line.strip() for line in source.splitlines() if "const float read = " in line]
    assert " ? X[" in definition and definition.endswith(" : 0.0f;")
    (use,) = [line for line in source.splitlines() if "(read * " in line]
    assert "?" not in use
    assert source.index("const float read") < source.index(
        "for (int c_4 = 0", source.index("const float read")
    )


@pytest.mark.parametrize("board", ["pocl", "rock960"])
def test_vectors_read_once_by_themselves(board: str) -> None:
    target = next(item for item in load(board).targets if item.kind == "opencl")
    space = conv_space(target)
    described = space.describe(space.default())
    knobs = {name: value for name, value in LONG.items() if name in described}
    source = gpu_program("k", Programs(space).nest(space.parse({**described, **knobs})), target).source
    assert "float read = " not in source


def test_steps_between_barriers_are_not_written_out_by_the_compiler() -> None:
    """Three by three steps of 180 fetches, all in one: NVRTC took 25 s, and a thread spilled 3.7 KB."""
    pytest.importorskip("nvidia.cuda_nvrtc")
    data, weight = placeholder((1, 112, 112, 64), "X"), placeholder((3, 3, 64), "W")
    output = depthwise_conv(data, weight, Window((2, 2), (1, 1, 1, 1)), name="conv")
    space = space_of(Operator("conv", (data, weight), output, frozenset({1})), JETSON)
    knobs = {
        "shared": [0], "padding": [0], "conv.y": [1, 2, 2, 2], "conv.x": [2, 1, 1, 1], "conv.c": [1, 1, 8, 1],
        "conv.acc.kh": [1, 1], "conv.acc.kw": [1, 1], "unroll": [0],
    }  # fmt: skip
    nest = Programs(space).nest(space.parse({**space.describe(space.default()), **knobs}))
    *_, conv = inspect_gpu("k", nest, JETSON)
    assert conv.local_bytes == 0
