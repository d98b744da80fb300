"""Unrolled reductions keep to their registers: what the space allows does not spill in the inner loop."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable

import pytest

from boards.target import Target
from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    call,
    element_pointer,
    integer,
    load_from,
    printed,
    text_of,
)
from cross.codegen.llvm.module import llvm_module
from cross.codegen.scheduling.steps import stepwise
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.inspection.cpu_loops import inspect
from cross.loopnest import LoopNest, Programs
from cross.schedule.cpu_sketch import cpu_space
from tests.quick import others_slow


def _target(triple: str, cpu: str, vector_bytes: int, vector_registers: int) -> Target:
    return Target(
        name="cpu", kind="cpu", triple=triple, cpu=cpu, vector_bytes=vector_bytes, l2_bytes=1 << 20,
        clock_hz=1e9, vector_registers=vector_registers, flops_per_cycle=32.0,
    )  # fmt: skip


AVX2 = _target("x86_64-unknown-linux-gnu", "x86-64-v3", 32, 16)
AVX512 = _target("x86_64-unknown-linux-gnu", "skylake-avx512", 64, 32)
A53 = _target("aarch64-unknown-linux-gnu", "cortex-a53", 16, 32)
TILES = {  # pixels and vectors, at the edge of what the space allows
    AVX2: [(6, 2), (5, 2), (4, 3), (3, 3)],
    AVX512: [(14, 2), (12, 2), (8, 3), (6, 4)],
    A53: [(5, 4), (7, 3), (6, 3), (9, 2), (8, 2)],
}
CASES = [(target, *tile) for target, tiles in TILES.items() for tile in tiles]
CHANNELS = 8


def window_nest(target: Target, pixels: int, vectors: int, channels: int) -> LoopNest:
    """A 3x3 convolution whose inner loop is unrolled over the window's columns and some channels."""
    wide = vectors * target.vector_lanes()
    data, weight = placeholder((1, 4, 2 * pixels, CHANNELS), "X"), placeholder((3, 3, CHANNELS, wide), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="conv")
    space = cpu_space(Operator("conv", (data, weight), output, frozenset({1})), target, winograd=False)
    knobs = {"conv.y": [1, 1, 1], "conv.x": [1, 1, pixels], "conv.c": [1, 1, wide]}
    knobs |= {"conv.acc.kc": [channels], "tiling": [0], "padding": [0], "unroll": [192]}
    described = space.describe(space.default()) | knobs
    return Programs(space).nest(space.parse(described))


@pytest.mark.parametrize("channels", others_slow([4, 8], 4))
@pytest.mark.parametrize(("target", "pixels", "vectors"), CASES)
def test_unrolled_windows_spill_nothing(target: Target, pixels: int, vectors: int, channels: int) -> None:
    nest = window_nest(target, pixels, vectors, channels)
    hot = inspect("kernel", nest, target, predict=False).hot
    assert hot is not None and hot.fma > pixels * vectors
    assert hot.vector_spills == 0


def test_bodies_with_room_stay_as_llvm_likes_them() -> None:
    assert text_of(FENCE) not in llvm_module("kernel", window_nest(AVX512, 2, 1, 2), AVX512)


X, LANES = Value("%x", "pointer"), 16


def vector(name: str) -> Value:
    return Value(name, "float32", LANES)


def multiply_add(name: str, *operands: str) -> Definition:
    return Definition(name, call("llvm.fmuladd.v16f32", "float32", LANES, map(vector, operands)))


BODY: list[Line] = [
    Definition("%p", element_pointer(X, "float32", integer(LANES))),
    Definition("%a", load_from(X, "float32", LANES, 64)),
    Definition("%b", load_from(Value("%p", "pointer"), "float32", LANES, 64)),
    multiply_add("%s0", "%a", "%b", "%r0"),
    multiply_add("%s1", "%a", "%a", "%r1"),
    multiply_add("%t0", "%b", "%a", "%s0"),
    multiply_add("%t1", "%a", "%b", "%s1"),
]
STORE = Instruction("store", "", 1, (vector("%a"), X), 4)
NEGATION = Definition("%n", Instruction("fneg", "float32", LANES, (vector("%a"),)))


def names() -> Callable[[str], str]:
    counter = itertools.count()
    return lambda hint: f"%{hint}{next(counter)}"


def test_every_step_has_loads_of_its_own_behind_a_fence() -> None:
    lines = stepwise(BODY, 4, names())
    assert lines is not None
    assert lines.count(FENCE) == 2
    first, second = "\n".join(printed(lines)).split(text_of(FENCE))[:2]
    for step, sums in ((first, ("s0", "s1")), (second, ("t0", "t1"))):
        assert len(re.findall(r"= load", step)) == 2
        assert [name for name in ("s0", "s1", "t0", "t1") if f"%{name} =" in step] == list(sums)
    kept = [line for line in lines if isinstance(line, Definition) and line.name in ("%a", "%b", "%p")]
    assert kept == BODY[:3]


@pytest.mark.parametrize("lines", [BODY[:5], [*BODY, STORE], [*BODY, NEGATION]])
def test_other_bodies_are_left_alone(lines: list[Line]) -> None:
    assert stepwise(lines, 4, names()) is None


def test_there_is_room_in_many_registers() -> None:
    assert stepwise(BODY, 32, names()) is None
