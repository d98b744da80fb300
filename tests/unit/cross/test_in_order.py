"""Inner loops of in-order cores: the same sums from fewer and better placed loads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from boards.board import load
from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    binary,
    call,
    element_pointer,
    insertion,
    integer,
    load_from,
    poison,
    printed,
    shuffle,
    text_of,
)
from cross.codegen.llvm.module import llvm_module
from cross.codegen.scheduling.in_order import LEAST, arranged
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.dense import dense
from cross.expression.families.window import Window
from cross.inspection.cpu_loops import inspect
from cross.loopnest import LoopNest, Programs
from cross.schedule import cpu_space
from tests.fuzz.kernels import Job, compile_jobs, run_emulated
from tests.interpreter.interpreter import interpret
from toolkit.measure import emulation

BOARD = load("emulated-a53")
TARGET = BOARD.target(None)


X, W, LANES = Value("%x", "pointer"), Value("%w", "pointer"), 4
SCALAR = Value("%s0.0", "float32")


def body(channels: int, pixels: int, vectors: int, stride: int = 64) -> list[Line]:
    """What the generator writes for `channels` unrolled steps of a tile of pixels x vectors."""
    lines: list[Line] = []

    def define(name: str, instruction: Instruction) -> Value:
        lines.append(Definition(name, instruction))
        return lines[-1].value

    for channel in range(channels):
        weights = []
        for pixel in range(pixels):
            at = f"{channel}.{pixel}"
            offset, place = pixel * stride + channel, X
            if offset:
                place = define(f"%p{at}", element_pointer(X, "float32", integer(offset)))
            scalar = define(f"%s{at}", load_from(place, "float32", 1, 4))
            first = define(f"%i{at}", insertion(poison("float32", LANES), scalar, 0))
            splat = define(f"%b{at}", shuffle(first, (0,) * LANES))
            for vector in range(vectors):
                if pixel == 0:
                    weight = f"{channel}.{vector}"
                    distance = integer(4 * (channel * vectors + vector))
                    place = define(f"%q{weight}", element_pointer(W, "float32", distance))
                    weights.append(define(f"%w{weight}", load_from(place, "float32", LANES, 16)))
                before = f"%a{channel - 1}.{pixel}.{vector}" if channel else f"%r{pixel}.{vector}"
                terms = (splat, weights[vector], Value(before, "float32", LANES))
                define(f"%a{at}.{vector}", call("llvm.fmuladd.v4f32", "float32", LANES, terms))
    return lines


def names() -> Callable[[str], str]:
    counter = itertools.count()
    return lambda hint: f"%{hint}.new{next(counter)}"


def test_scalars_of_neighbouring_channels_are_loaded_at_once_and_used_by_element() -> None:
    lines = arranged(body(4, 5, 4), names())
    assert lines is not None
    text = "\n".join(printed(lines))
    assert "load float" not in text
    assert len(re.findall(r"<i32 3, i32 3, i32 3, i32 3>", text)) == 5
    assert (
        len(re.findall("load <4 x float>", text)) + len(re.findall("load volatile i64", text)) / 2 == 5 + 16
    )


def test_every_sum_keeps_its_name_and_the_order_of_its_terms() -> None:
    before = body(8, 4, 4)
    after = arranged(before, names())
    assert after is not None

    def sums(lines: list[Line]) -> dict[str, str]:
        found = (line for line in lines if isinstance(line, Definition) and line.name.startswith("%a"))
        return {line.name: line.instruction.operands[2].text for line in found}

    assert sums(after) == sums(before)
    seen = {"%x", "%w"}
    for line in after:
        if isinstance(line, Definition):
            assert {use for use in line.instruction.uses if not use.startswith("%r")} <= seen
            seen.add(line.name)


def test_loads_stand_between_fences_in_the_middle_of_the_sums() -> None:
    lines = arranged(body(8, 5, 4), names())
    assert lines is not None
    text = printed(lines)
    first = next(position for position, line in enumerate(text) if "fmuladd" in line)
    inside = text[first:]
    assert not any("load <4 x float>" in line for line in inside[len(inside) // 4 :])
    assert sum(text_of(FENCE) in line for line in inside) > 2 * 8


@pytest.mark.parametrize(
    ("what", "lines"),
    [
        ("too few sums", body(1, 5, 4)),
        ("more loads than they can hide", body(8, 16, 1)),
        ("more registers than there are", body(4, 8, 4)),
        ("a store", [*body(8, 5, 4), Instruction("store", "", 1, (SCALAR, X), 4)]),
        ("other arithmetic", [*body(8, 5, 4), Definition("%z", binary("fadd", SCALAR, SCALAR))]),
    ],
)
def test_other_bodies_are_left_alone(what: str, lines: list[Line]) -> None:
    assert LEAST > 20
    assert arranged(lines, names()) is None, what


def operators() -> list[tuple[Operator, dict[str, list[int]]]]:
    """Operators and tiles: 1x1 and 3x3 convolutions, a strided one, matmuls with odd extents."""

    def conv(name: str, size: int, channels: int, kernel: int, window: Window) -> Operator:
        data, weight = (
            placeholder((1, size, size, channels), "X"),
            placeholder((kernel, kernel, channels, 32), "W"),
        )
        return Operator(name, (data, weight), conv2d(data, weight, window, name=name), frozenset({1}))

    a, b = placeholder((35, 24), "A"), placeholder((24, 40), "B")
    c, d = placeholder((30, 16), "C"), placeholder((16, 10), "D")
    narrow = Operator("narrow", (c, d), dense(c, d, "narrow"), frozenset({1}))
    matmul = Operator("mm", (a, b), dense(a, b, "mm"), frozenset({1}))
    e, f = placeholder((14, 32), "E"), placeholder((32, 24), "F")
    full = Operator("full", (e, f), dense(e, f, "full"), frozenset({1}))
    return [
        (conv("one", 10, 16, 1, Window()), {"one.x": [1, 1, 5], "one.c": [1, 1, 16], "one.acc.kc": [8]}),
        (conv("three", 8, 16, 3, Window(pads=(1, 1, 1, 1))), {
            "three.x": [1, 1, 4], "three.c": [1, 1, 16], "three.acc.kc": [4],
        }),
        (conv("two", 11, 8, 3, Window(strides=(2, 2))), {
            "two.x": [1, 1, 5], "two.c": [1, 1, 8], "two.acc.kc": [8],
        }),
        (matmul, {"mm.i": [1, 1, 7], "mm.j": [1, 1, 8], "mm.acc.k": [8]}),
        (narrow, {"narrow.i": [1, 1, 6], "narrow.j": [1, 1, 10], "narrow.acc.k": [8]}),
        (full, {"full.i": [1, 1, 7], "full.j": [1, 1, 12], "full.acc.k": [8]}),
    ]  # fmt: skip


def nest_of(operator: Operator, knobs: dict[str, list[int]]) -> LoopNest:
    space = cpu_space(operator, TARGET)
    described = space.describe(space.default())
    wanted = {"unroll": [192], "tiling": [0], **knobs}
    return Programs(space).nest(
        space.parse(described | {name: value for name, value in wanted.items() if name in described})
    )


@pytest.mark.slow
@pytest.mark.parametrize("position", range(6))
def test_kernels_are_arranged_and_spill_nothing(position: int) -> None:
    operator, knobs = operators()[position]
    nest = nest_of(operator, knobs)
    assert text_of(FENCE) in llvm_module("kernel", nest, TARGET)
    hot = inspect("kernel", nest, TARGET).hot
    assert hot is not None and hot.vector_spills == 0
    cycles = hot.predictions[0].cycles / hot.fma
    assert cycles < 2.0  # by the model; in LLVM's order 2.2 to 2.5


def test_loads_come_later_where_registers_do_not_last_for_earlier_ones() -> None:
    """31 registers hold the sums and what they multiply; by single elements it would take 1.6 cycles each."""
    operator, knobs = operators()[-1]
    hot = inspect("kernel", nest_of(operator, knobs), TARGET).hot
    assert hot is not None
    assert hot.predictions[0].cycles / hot.fma < 1.45  # by the model


@pytest.mark.emulated
def test_arranged_kernels_compute_what_the_interpreter_does(tmp_path: Path) -> None:
    paths = emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    rng = np.random.default_rng(7)
    jobs = []
    for operator, knobs in operators():
        inputs = [rng.standard_normal(item.shape).astype(np.float32) for item in operator.inputs]
        jobs.append(Job(nest_of(operator, knobs), inputs))
    outputs = run_emulated(compile_jobs(jobs, TARGET), jobs, tmp_path, paths.command(BOARD.link.command))
    for job, got in zip(jobs, outputs, strict=True):
        want = interpret(job.nest, list(job.inputs))
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


@pytest.mark.parametrize(("stride", "tile"), [(2, (1, 14)), (2, (2, 7)), (1, (2, 7))])
def test_windows_load_every_pixel_once(stride: int, tile: tuple[int, int]) -> None:
    """A 3x3 depthwise window over a tile: all pixels and the nine weights, each from memory once."""
    size = 28 * stride
    data, weight = placeholder((1, size, size, 8), "X"), placeholder((3, 3, 8), "W")
    window = Window(strides=(stride, stride), pads=(1, 1, 1, 1))
    output = depthwise_conv(data, weight, window, name="dw")
    space = cpu_space(Operator("dw", (data, weight), output, frozenset({1})), TARGET)
    knobs = {"dw.y": [1, 1, tile[0]], "dw.x": [1, 1, tile[1]], "dw.c": [1, 1, 4], "padding": [0]}
    described = space.describe(space.default()) | knobs | {"unroll": [192]}
    hot = inspect("dw", Programs(space).nest(space.parse(described)), TARGET, predict=False).hot
    assert hot is not None and hot.fma == 9 * tile[0] * tile[1]
    pixels = ((tile[0] - 1) * stride + 3) * ((tile[1] - 1) * stride + 3)
    assert hot.load_bytes <= 16 * (pixels + 9) + 128  # and addresses
    assert hot.spills == 0


def ring(columns: int, stride: int) -> list[Line]:
    """A 3x3 window over two rows of a tile, with the rows that it reads each behind a pointer of its own."""
    lines: list[Line] = []

    def load(base: str, place: int) -> Value:
        name = f"{base}.{place}"
        if not any(isinstance(line, Definition) and line.name == name for line in lines):
            pointer = Definition(
                f"{name}.place", element_pointer(Value(base, "pointer"), "float32", integer(place))
            )
            lines.extend([pointer, Definition(name, load_from(pointer.value, "float32", LANES, 16))])
        return Value(name, "float32", LANES)

    for tap, (y, x) in itertools.product(range(9), itertools.product(range(2), range(columns))):
        row, column = tap // 3 + stride * y, tap % 3 + stride * x
        terms = load(f"%row{row}", 4 * column), load("%w", 4 * tap)
        before = f"%a{tap - 1}.{y}.{x}" if tap else f"%r{y}.{x}"
        operands = (*terms, Value(before, "float32", LANES))
        lines.append(Definition(f"%a{tap}.{y}.{x}", call("llvm.fmuladd.v4f32", "float32", LANES, operands)))
    return lines


@pytest.mark.parametrize("stride", [1, 2])
def test_rows_behind_different_pointers_are_read_once_in_an_order_that_sums_allow(stride: int) -> None:
    lines = arranged(ring(7, stride), names())
    assert lines is not None
    pixels = (3 + stride) * (6 * stride + 3)
    assert len(re.findall("load <4 x float>", "\n".join(printed(lines)))) <= pixels + 9  # others in halves
    named = [line for line in lines if isinstance(line, Definition)]
    seen = {line.name: place for place, line in enumerate(named)}
    assert len(seen) == len(named)
    for line in named:
        assert all(seen.get(use, -1) < seen[line.name] for use in line.instruction.uses)


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "row", "inlined"),
    [
        (14, 3, 1, 14, 1),
        (14, 5, 1, 14, 1),
        (28, 5, 2, 14, 1),
        (7, 3, 1, 7, 1),
        (7, 5, 1, 7, 1),
        (28, 3, 1, 7, 0),  # registers do not last for the sums of a row
        (112, 3, 1, 7, 1),  # and a copy that no cache holds
    ],
)
def test_depthwise_tiles_are_whole_rows_where_registers_last_and_padding_is_copied_where_that_pays(
    size: int, kernel: int, stride: int, row: int, inlined: int
) -> None:
    operator = depthwise(size, 32, kernel, stride)
    described = (space := cpu_space(operator, TARGET)).describe(space.default())
    assert (described["dw.x"][-1], described["padding"]) == (row, [inlined])


def depthwise(size: int, channels: int, kernel: int, stride: int = 1) -> Operator:
    data = placeholder((1, size, size, channels), "X")
    weight = placeholder((kernel, kernel, channels), "W")
    window = Window(strides=(stride, stride), pads=(kernel // 2,) * 4)
    return Operator("dw", (data, weight), depthwise_conv(data, weight, window, name="dw"), frozenset({1}))
