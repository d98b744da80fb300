"""Tiles in the interior of an image run without guards, tiles at its border with few registers."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from boards.target import Target
from cross.codegen.instructions import (
    Definition,
    Instruction,
    Line,
    Value,
    call,
    element_pointer,
    integer,
    load_from,
    printed,
    selection,
)
from cross.codegen.llvm.memory import ZEROS
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.tile_versions import idle_unless, versions
from cross.codegen.scheduling.steps import counted_from_bases, paced
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.data_movement import concat
from cross.expression.families.dense import dense
from cross.expression.families.elementwise import combine
from cross.expression.families.window import Window
from cross.expression.language.terms import Binary, Select
from cross.expression.reference import evaluate
from cross.inspection.cpu_loops import inspect
from cross.loopnest import LoopNest, Programs
from cross.loopnest.nodes import Allocate, Expr, For, LoopKind, Statement, statements, stores
from cross.schedule.cpu_sketch import cpu_space
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.fuzz.test_compiler import HOST


def _target(triple: str, cpu: str, vector_bytes: int) -> Target:
    return Target(
        name="cpu", kind="cpu", triple=triple, cpu=cpu, vector_bytes=vector_bytes, l2_bytes=1 << 20,
        clock_hz=1e9, vector_registers=32, flops_per_cycle=32.0,
    )  # fmt: skip


AVX512 = _target("x86_64-unknown-linux-gnu", "skylake-avx512", 64)
A53 = _target("aarch64-unknown-linux-gnu", "cortex-a53", 16)
TARGETS = pytest.mark.parametrize("target", [AVX512, A53], ids=["avx512", "cortex-a53"])

IMAGES = [(14, 512, 2), (28, 256, 2), (56, 128, 1), (7, 1024, 1), (112, 64, 2), (9, 40, 3), (13, 24, 1)]
"""Size, channels, stride of 3x3 depthwise convolutions: MobileNet's kinds, and sizes that divide badly."""


def depthwise(size: int, channels: int, stride: int, kernel: int = 3) -> Operator:
    data = placeholder((1, size, size, channels), "X")
    weight = placeholder((kernel, kernel, channels), "W")
    pads = (kernel // 2,) * 4
    output = depthwise_conv(data, weight, Window(strides=(stride, stride), pads=pads), name="dw")
    return Operator("dw", (data, weight), output, frozenset({1}))


def convolution(size: int, channels: int, stride: int) -> Operator:
    data, weight = placeholder((1, size, size, channels), "X"), placeholder((3, 3, channels, 64), "W")
    window = Window(strides=(stride, stride), pads=(1, 1, 1, 1))
    return Operator("conv", (data, weight), conv2d(data, weight, window, name="conv"), frozenset({1}))


def inlined(operator: Operator, target: Target, **knobs: list[int]) -> LoopNest:
    """The program of a space with the padding inlined, the default but for the knobs named."""
    space = cpu_space(operator, target, winograd=False)
    described = space.describe(space.default()) | {"padding": [1], "tiling": [0]}
    return Programs(space).nest(space.parse(described | {k.replace("_", "."): v for k, v in knobs.items()}))


def spills(nest: LoopNest, target: Target) -> dict[str, int]:
    """Spills in the loops of a kernel that multiply and add."""
    report = inspect("kernel", nest, target, predict=False)
    assert any(loop.fma for loop in report.loops)
    return {loop.label: loop.spills for loop in report.loops if loop.fma and loop.spills}


# ----------------------------------------------------------------------------------------- machine code


@pytest.mark.slow
@TARGETS
@pytest.mark.parametrize(("size", "channels", "stride"), IMAGES)
def test_depthwise_spills_nothing(target: Target, size: int, channels: int, stride: int) -> None:
    """The untuned program and a sample of the space, with the padding inlined and materialized."""
    space = cpu_space(depthwise(size, channels, stride), target)
    programs = Programs(space)
    rows = space.sample(np.random.default_rng(size), 8)
    for configuration in [space.default(), *map(space.configuration, rows)]:
        found = spills(programs.nest(configuration), target)
        assert not found, f"{space.describe(configuration)}: {found}"


@pytest.mark.slow
@TARGETS
@pytest.mark.parametrize("stride", [1, 2])
def test_convolutions_with_inlined_padding_spill_nothing(target: Target, stride: int) -> None:
    space = cpu_space(convolution(28, 32, stride), target, winograd=False)
    programs = Programs(space)
    rows = space.sample(np.random.default_rng(stride), 24)
    rows = rows[space.values(rows)["padding"] == 1][:8]
    assert len(rows) == 8
    for configuration in map(space.configuration, rows):
        found = spills(programs.nest(configuration), target)
        assert not found, f"{space.describe(configuration)}: {found}"


@TARGETS
def test_the_loop_over_interior_tiles_chooses_no_address(target: Target) -> None:
    text = llvm_module("kernel", inlined(depthwise(28, 64, 1), target, dw_x=[1, 1, 4]), target)
    border, region = text.split("define internal preserve_mostcc")[1].split("define internal void", 1)
    assert "select i1" in border
    assert "select i1" not in region and region.count("call preserve_mostcc") == 1


@TARGETS
def test_columns_that_are_known_are_written_out_in_the_version_at_a_border(target: Target) -> None:
    """Of a tile as wide as the image rows alone may lie outside of it: their loop runs and skips them."""
    nest = inlined(depthwise(7, 16, 1, 5), target, dw_x=[1, 1, 7], dw_y=[1, 1, 1], unroll=[192])
    text = llvm_module("kernel", nest, target)
    border = text.split("define internal preserve_mostcc")[1].split("define internal void")[0]
    assert "select i1" not in border and border.count("phi i64") == 1
    taps = sum(0 <= column + tap - 2 < 7 for column in range(7) for tap in range(5))
    vectors = 16 // target.vector_lanes(4) if target is AVX512 else 1  # of a tile of that many channels
    assert len(re.findall(r"= call <\d+ x float> @llvm.fmuladd", border)) == taps * vectors


def test_versions_at_borders_of_arm_cores_align_the_stack_no_further() -> None:
    """LLVM then overwrites a register that they have to keep, and says so where it asserts. A tile of three
    columns of ten reads a residual and stores under guards."""
    data, weight = placeholder((1, 6, 13, 16), "X"), placeholder((1, 5, 16, 19), "W")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 0)), name="conv")
    residual = placeholder(output.shape, "R")
    output = combine(lambda x, y: x + y, output, residual, "sum")
    space = cpu_space(Operator("conv", (data, weight, residual), output, frozenset({1})), A53)
    described = {
        "algorithm": [2], "staging": [0], "order": [1], "padding": [1], "block.h": [8, 2], "block.w": [4, 2],
        "products.c": [4], "products.kc": [16], "data.c": [4], "output.c": [8],
    }  # fmt: skip
    nest = Programs(space).nest(space.parse(described))
    borders = llvm_module("kernel", nest, A53).split("define internal preserve_mostcc")[1:]
    (allocated,) = re.findall(
        r"alloca .*, align (\d+)", "".join(border.split("\n}")[0] for border in borders)
    )
    assert allocated == "16"
    assert compile_jobs([Job(nest, [])], A53).kernels


def test_taps_in_the_padding_for_certain_are_left_out() -> None:
    """A tile as wide as the image: of seven pixels by three columns, two lie in the padding."""
    nest = inlined(depthwise(7, 16, 1), AVX512, dw_x=[1, 1, 7], dw_y=[1, 1, 1], unroll=[192])
    text = llvm_module("kernel", nest, AVX512)
    region = text.split("define internal void")[1]
    assert "select i1" not in region
    assert len(re.findall(r"= call .*fmuladd", region)) == 3 * (7 * 3 - 2)


# ---------------------------------------------------------------------------------------------- results


@pytest.mark.slow
@pytest.mark.parametrize("stride", [1, 2, 3])
@pytest.mark.parametrize("kernel", [3, 5])
def test_every_tile_of_small_images(stride: int, kernel: int, tmp_path: Path) -> None:
    """Tiles of every place and shape: within one border, touching two, larger than the window."""
    operator = depthwise(11, 20, stride, kernel)
    space = cpu_space(operator, HOST)
    rows = space.sample(np.random.default_rng(kernel), 400)
    rows = rows[space.values(rows)["padding"] == 1][:24]
    programs = Programs(space)
    rng = np.random.default_rng(0)
    inputs = [rng.uniform(-1.0, 1.0, tensor.shape).astype(np.float32) for tensor in operator.inputs]
    want = evaluate(operator, inputs)
    jobs = [Job(programs.nest(space.configuration(row)), inputs) for row in rows]
    for row, got in zip(rows, run_here(compile_jobs(jobs, HOST), jobs, tmp_path), strict=True):
        np.testing.assert_allclose(
            got, want, rtol=1e-5, atol=1e-5, err_msg=str(space.describe(space.configuration(row)))
        )


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("size", [14, 28])
def test_tiles_at_the_edges_compute_what_the_operator_says(size: int, kernel: int, tmp_path: Path) -> None:
    """Two tiles in a row, and four."""
    operator = depthwise(size, 16, 1, kernel)
    rng = np.random.default_rng(size)
    inputs = [rng.uniform(-1.0, 1.0, tensor.shape).astype(np.float32) for tensor in operator.inputs]
    nest = inlined(operator, HOST, dw_x=[1, 1, 7], dw_y=[1, 1, 1], dw_c=[1, 1, 16], unroll=[192])
    tile, ranges = register_tile(nest)
    split = versions(tile, ranges)
    assert split is not None and len(split.interiors) + len(split.edges) == min(3, size // 7)
    jobs = [Job(nest, inputs)]
    (got,) = run_here(compile_jobs(jobs, HOST), jobs, tmp_path)
    np.testing.assert_allclose(got, evaluate(operator, inputs), rtol=1e-5, atol=1e-5)


# ---------------------------------------------------------------------------------------------- parts


def register_tile(nest: LoopNest) -> tuple[Allocate, dict[str, tuple[int, int]]]:
    """The tile of a nest and the ranges of the loops around it."""
    ranges = {}
    for item in (part for root in nest.body.statements for part in statements(root)):
        if isinstance(item, Allocate):
            return item, ranges
        if isinstance(item, For):
            ranges[item.var] = (0, item.extent.value - 1)  # type: ignore[union-attr]
    raise AssertionError("no register tile")


def conditions(statement: Statement) -> list[Expr]:
    def walk(expr: Expr) -> list[Expr]:
        here = [expr.condition] if isinstance(expr, Select) else []
        return here + [item for part in expr.parts for item in walk(part)]

    return [condition for _, store in stores(statement) for condition in walk(store.value)]


def test_the_interior_has_no_guard_and_the_border_all() -> None:
    tile, ranges = register_tile(inlined(depthwise(28, 16, 1), AVX512, dw_x=[1, 1, 4]))
    split = versions(tile, ranges)
    assert split is not None
    assert conditions(tile) and not conditions(split.interiors[0][1])
    assert conditions(split.border) == conditions(tile)
    kinds = {item.kind for item in statements(split.border) if isinstance(item, For)}
    assert LoopKind.SERIAL in kinds


def test_a_tile_as_wide_as_the_image_keeps_the_guards_of_its_columns() -> None:
    tile, ranges = register_tile(inlined(depthwise(7, 16, 1), AVX512, dw_x=[1, 1, 7], dw_y=[1, 1, 1]))
    split = versions(tile, ranges)
    assert split is not None
    ((condition, interior),) = split.interiors
    assert len({str(item) for item in conditions(interior)}) == 1
    assert str(condition).count("dw.y") == 2 and "dw.x" not in str(condition)
    assert split.edges == ()


@pytest.mark.parametrize(("columns", "interiors", "edges"), [(14, 2, 0), (28, 1, 2), (119, 1, 0)])
def test_the_first_and_the_last_tile_of_a_row_have_versions(columns: int, interiors: int, edges: int) -> None:
    """Of two tiles there is none between them; of many, few are at the border."""
    data, weight = placeholder((1, 160, columns, 16), "X"), placeholder((3, 3, 16), "W")
    made = depthwise_conv(data, weight, Window(pads=(1, 1, 1, 1)), name="dw")
    operator = Operator("dw", (data, weight), made, frozenset({1}))
    tile, ranges = register_tile(inlined(operator, AVX512, dw_x=[1, 1, 7], dw_y=[1, 1, 1], unroll=[192]))
    split = versions(tile, ranges)
    assert split is not None
    assert (len(split.interiors), len(split.edges)) == (interiors, edges)
    for _, interior in (*split.interiors, *split.edges):
        assert not any("dw.y" in str(guard) or "dw.x.0" in str(guard) for guard in conditions(interior))


def test_without_a_guard_there_is_one_version() -> None:
    data, weight = placeholder((1, 8, 8, 16), "X"), placeholder((3, 3, 16), "W")
    operator = Operator("dw", (data, weight), depthwise_conv(data, weight, Window(), name="dw"))
    space = cpu_space(operator, AVX512)
    tile, ranges = register_tile(Programs(space).nest(space.default()))
    assert versions(tile, ranges) is None


def test_a_seam_is_no_border() -> None:
    """Where both branches read, neither side of a concatenation is the rule and the other the exception."""
    left, right = placeholder((9, 16), "L"), placeholder((7, 16), "R")
    weight = placeholder((16, 16), "W")
    both = concat([left, right], 0)
    operator = Operator("joined", (left, right, weight), dense(both, weight, "joined"), frozenset({2}))
    space = cpu_space(operator, AVX512)
    tile, ranges = register_tile(Programs(space).nest(space.default()))
    assert versions(tile, ranges) is None


def test_a_row_of_the_window_outside_the_image_is_idle() -> None:
    tile, _ = register_tile(inlined(depthwise(28, 16, 1), AVX512, dw_x=[1, 1, 4], dw_y=[1, 1, 1]))
    rows = next(item for item in statements(tile) if isinstance(item, For) and "kh" in item.var)
    found = idle_unless(rows.body)
    assert found is not None
    condition, body = found
    assert isinstance(condition, Binary) and condition.op == "and"
    assert "kh" in str(condition) and "kw" not in str(condition)
    assert conditions(body) and not any("kh" in str(item) for item in conditions(body))


X, Y, LANES = Value("%x", "pointer"), Value("%y", "pointer"), 16


def vector(name: str) -> Value:
    return Value(name, "float32", LANES)


def guarded(pixel: int) -> list[Line]:
    """A pixel that is read where `%inside` holds, times the weights %w, added to a sum."""
    place, chosen = Value(f"%p{pixel}", "pointer"), Value(f"%q{pixel}", "pointer")
    product = (vector(f"%a{pixel}"), vector("%w"), vector(f"%r{pixel}"))
    return [
        Definition(place.text, element_pointer(X, "float32", integer(LANES * pixel))),
        Definition(chosen.text, selection(Value("%inside", "bool"), place, ZEROS)),
        Definition(f"%a{pixel}", load_from(chosen, "float32", LANES, 64)),
        Definition(f"%s{pixel}", call("llvm.fmuladd.v16f32", "float32", LANES, product)),
    ]


GUARDED: list[Line] = [
    Definition("%w", load_from(Y, "float32", LANES, 64)),
    *(line for pixel in range(4) for line in guarded(pixel)),
]


NUMBERS = itertools.count(100)


def fresh(hint: str) -> str:
    return f"%{hint}{next(NUMBERS)}"


def test_guarded_addresses_wait_for_the_sums_before_them() -> None:
    lines = paced(GUARDED, AVX512, fresh)
    assert lines is not None
    ordered = [line.instruction for line in lines if isinstance(line, Definition)]
    passed = [instruction for instruction in ordered if instruction.op == "asm sideeffect"]
    assert [[name for name in line.uses if name.startswith("%s")] for line in passed] == [[], ["%s0", "%s1"]]
    weights = [line for line in ordered if line.op == "load" and line.operands == (Y,)]
    assert len(weights) == 2  # of the step, and as it was
    store = Instruction("store", "", 1, (vector("%w"), X), 4)
    assert paced([*GUARDED, store], AVX512, fresh) is None


def test_many_addresses_are_counted_from_one_pointer() -> None:
    lines = [Definition(f"%p{place}", element_pointer(X, "float32", integer(place))) for place in range(8)]
    found = counted_from_bases(lines, fresh)
    assert found is not None
    assert printed(found)[0].endswith('call ptr asm "", "=r,0"(ptr %x)')
    assert not any("%x" in line.instruction.uses for line in found[1:] if isinstance(line, Definition))
    assert counted_from_bases(lines[:7], fresh) is None
