"""Machine code of products of bytes: the instructions of each target; how fast a Cortex-A53 loops."""

from __future__ import annotations

import math
import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.llvm.dot_products import product_of
from cross.expression.families.conv import dense_conv
from cross.expression.families.dense import dense
from cross.expression.families.elementwise import apply
from cross.expression.families.window import Window
from cross.expression.language.operations import DOT_BYTES, OPERATIONS, WEIGHT_BOUNDS
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Tensor, placeholder
from cross.expression.language.terms import Binary, Const, Term, call, cast
from cross.inspection.cpu_loops import CodeReport, inspect
from cross.loopnest import Programs, to_text
from cross.schedule import space_of
from tests.fuzz.kernels import Job, compile_jobs, run_emulated, run_here
from tests.quick import others_slow
from tests.targets import AVX2, EACH_HOST
from toolkit.measure import emulation
from toolkit.model.labels import short_name

A53 = load("emulated-a53").target(None)
A76 = msgspec.structs.replace(A53, cpu="cortex-a76", features=("+neon", "+dotprod"))
N2 = msgspec.structs.replace(A53, cpu="neoverse-n2", features=("+neon", "+dotprod", "+i8mm"))
SSE2 = msgspec.structs.replace(AVX2, cpu="x86-64", vector_bytes=16)
VNNI = msgspec.structs.replace(AVX2, features=("+avxvnni",))


def convolution(function: str, channels: int, kernel: int, size: int = 28) -> Operator:
    """A convolution of square images by a product of words, rescaled to int8."""
    words = channels // DOT_BYTES[function]
    dtype = OPERATIONS[function].only
    data = placeholder((1, size, size, words), "x", dtype)
    weight = placeholder((kernel, kernel, words, channels), "w", dtype)

    def product(x: Term, w: Term) -> Term:
        return call(function, x, w)

    output: Tensor = dense_conv(data, weight, Window((1, 1), (kernel // 2,) * 4, (1, 1)), product=product)
    output = apply(lambda x: cast("int8", call("round", cast("float32", x) * 0.01)), output, "rescaled")
    return Operator("conv", (data, weight), output, frozenset({1}))


def report(target: Target, function: str, channels: int, kernel: int, size: int = 28) -> CodeReport:
    space = space_of(convolution(function, channels, kernel, size), target)
    return inspect("kernel", Programs(space).nest(space.default()), target)


@pytest.mark.parametrize(
    ("target", "largest", "product", "instruction"),
    [
        (AVX2, 128, "wide_dot2", "vpmaddwd"),
        (AVX2, 65, "wide_dot2", "vpmaddwd"),
        (AVX2, 64, "narrow_dot4", "vpmaddubsw"),
        (SSE2, 64, "wide_dot2", "pmaddwd"),
        (VNNI, 64, "dot4", "vpdpbusd"),
        (A76, 128, "sdot4", "sdot"),
        (N2, 128, "sdot8", "smmla"),
        (A53, 128, "dot2", "sadalp"),
        (A53, 127, "dot2x2", "smlal"),
        pytest.param(A53, 63, "dot2x4", "smlal", marks=pytest.mark.slow),
    ],
)
def test_each_target_has_its_instructions(
    target: Target, largest: int, product: str, instruction: str
) -> None:
    assert product_of(target, largest, rows=28 * 28, weight_bytes=32 * 32 * 9, channels=32) == product
    hot = report(target, product, 32, 3).hot
    assert hot is not None and any(instruction in line for line in hot.lines)


@pytest.mark.parametrize(("rows", "weight_bytes"), [(1, 1 << 10), (784, 8 << 20)])
def test_weights_that_are_waited_for_stay_bytes(rows: int, weight_bytes: int) -> None:
    assert product_of(AVX2, 128, rows, weight_bytes) == "dot4"
    hot = report(AVX2, "dot4", 32, 3).hot
    assert hot is not None and any("vpmaddwd" in line for line in hot.lines)


@pytest.mark.parametrize(
    ("rows", "channels", "signed", "product"),
    [(2, 16, True, "sdot8"), (2, 16, False, "dot8"), (1, 16, True, "sdot4"), (9, 12, True, "sdot4")],
)
def test_matrices_are_multiplied_where_rows_and_channels_fill_them(
    rows: int, channels: int, signed: bool, product: str
) -> None:
    assert product_of(N2, 128, rows, channels=channels, signed=signed) == product


@pytest.mark.parametrize("product", ["sdot8", "dot8"])
@pytest.mark.parametrize(("kernel", "size"), [(1, 28), (3, 28), (3, 7)])
def test_sums_of_two_rows_stay_together_in_registers(product: str, kernel: int, size: int) -> None:
    space = space_of(convolution(product, 64, kernel, size), N2)
    nest = Programs(space).nest(space.default())
    (tile,) = re.findall(r"allocate conv: int32\[(.*)\] in register", to_text(nest))
    *rows, columns = map(int, tile.split(","))
    hot = inspect("kernel", nest, N2).hot
    assert hot is not None and hot.spills == 0
    pairs = -(-math.prod(rows) // 2)
    sums = {
        line.split()[1] for line in hot.lines if "mmla" in line
    }  # registers, each of two rows by two columns
    assert len(sums) == pairs * columns // 2
    assert not any(line.startswith(("zip", "uzp", "ext", "dup", "mov\tv")) for line in hot.lines)


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize("product", ["sdot8", "dot8"])
@pytest.mark.parametrize("columns", [1, 2, 7, 12])
def test_rows_and_columns_that_fill_no_matrices(product: str, columns: int, tmp_path: Path) -> None:
    paths = emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    rng = np.random.default_rng(columns)
    byte = np.int8 if product == "sdot8" else np.uint8
    ends = np.iinfo(byte)
    image = rng.integers(ends.min, ends.max, (1, 5, 7, 24), byte, endpoint=True)
    taps = rng.integers(-128, 127, (3, 3, columns, 24), np.int8, endpoint=True)
    data, weight = placeholder((1, 5, 7, 3), "x", "int64"), placeholder((3, 3, 3, columns), "w", "int64")
    window = Window((1, 1), (1,) * 4, (1, 1))
    output = dense_conv(data, weight, window, product=lambda x, w: call(product, x, w))
    space = space_of(Operator("conv", (data, weight), output, frozenset({1})), N2)
    words = np.ascontiguousarray(np.moveaxis(taps.view(np.int64), -1, -2))
    programs, operands = Programs(space), [image.view(np.int64), words]
    drawn = [space.configuration(row) for row in space.sample(np.random.default_rng(0), 12)]
    jobs = [Job(programs.nest(item), operands) for item in (space.default(), *drawn)]
    padded = np.pad(image.astype(np.int32), ((0, 0), (1, 1), (1, 1), (0, 0)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, (3, 3), (1, 2))
    want = np.einsum("nhwcij,ijoc->nhwo", windows, taps.astype(np.int32))
    link = [part.replace("cortex-a53", "max") for part in load("emulated-a53").link.command]
    for found in run_emulated(compile_jobs(jobs, N2), jobs, tmp_path, paths.command(link)):
        assert np.array_equal(found, want)


def test_sums_of_two_products_fit_16_bits_up_to_the_bound_of_narrow_weights() -> None:
    bound, limits = WEIGHT_BOUNDS["narrow_dot4"], np.iinfo(np.int16)
    assert limits.min <= -2 * 255 * bound and 2 * 255 * bound <= limits.max < 2 * 255 * (bound + 1)


@pytest.mark.parametrize("product", ["dot4", "wide_dot2", "narrow_dot4"])
@pytest.mark.parametrize(("channels", "size"), [(64, 56), (256, 28), (512, 7)])
def test_what_words_are_widened_to_stays_in_registers(product: str, channels: int, size: int) -> None:
    hot = report(AVX2, product, channels, 1, size).hot
    assert hot is not None and hot.spills == 0


@pytest.mark.parametrize("product", ["dot4", "dot2x4"])
def test_products_of_bytes_are_work_and_have_the_channels_of_the_model(product: str) -> None:
    operator, elements = convolution(product, 32, 3), 28 * 28 * 32
    assert operator.flops == elements * (2 * 32 * 9 + 2)  # its sums; scaling and rounding
    assert short_name(operator) == "conv 3x3 28x28 32->32 int8"


@pytest.mark.parametrize(
    ("product", "least", "kernel", "size"),
    others_slow(
        [
            ("dot2x2", 3.5, 1, 28),
            ("dot2x2", 3.5, 3, 28),
            ("dot2x4", 4.5, 1, 28),
            ("dot2x4", 4.5, 3, 28),
            ("dot2x2", 3.5, 1, 7),  # three vectors of weights: the third of two steps share a register
            ("dot2x2", 3.5, 3, 7),
            ("dot2x4", 4.5, 1, 7),  # three: column by column, in all registers
        ],
        ("dot2x4", 4.5, 1, 28),
    ),
)
def test_so_many_bytes_a_cycle_does_a_cortex_a53_multiply(
    product: str, least: float, kernel: int, size: int
) -> None:
    hot = report(A53, product, 256, kernel, size).hot
    assert hot is not None and hot.spills == 0
    assert hot.flops / 2 / hot.predictions[0].cycles >= least, hot.predictions


@pytest.mark.parametrize(("steps", "bound"), [(2, 127), (4, 63)])
def test_so_many_steps_fit_16_bits(steps: int, bound: int) -> None:
    limits = np.iinfo(np.int16)
    assert limits.min <= -128 * bound * steps and 128 * bound * steps <= limits.max
    assert 128 * (bound + 1) * steps > limits.max


def test_sums_in_lanes_whose_operands_are_the_same(tmp_path: Path) -> None:
    """Rows of padding alone times the weights of the only channel: one number for every lane of a row."""
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (1, 2, 6, 8), np.uint8)
    taps = rng.integers(-128, 128, (8,), np.int8)
    data, weight = placeholder((1, 2, 6, 2), "x", "int32"), placeholder((1, 1, 2, 1), "w", "int32")
    output = dense_conv(
        *(data, weight, Window((1, 1), (1, 1, 1, 1), (1, 1))), product=lambda x, w: call("dot4", x, w)
    )
    space = space_of(Operator("conv", (data, weight), output, frozenset({1})), AVX2)
    operands = [image.view(np.int32), taps.view(np.int32).reshape(1, 1, 2, 1)]
    programs = Programs(space)
    jobs = [
        Job(programs.nest(space.configuration(row)), operands)
        for row in space.sample(np.random.default_rng(0), 30)
    ]
    sums = (image.astype(np.int32) * taps).sum(axis=-1, keepdims=True)
    want = np.pad(sums, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for found in run_here(compile_jobs(jobs, AVX2), jobs, tmp_path):
        assert np.array_equal(found, want)


@pytest.mark.parametrize("target", EACH_HOST)
@pytest.mark.parametrize("signs", [1, -1])
def test_the_largest_narrow_products_do_not_saturate(target: Target, signs: int, tmp_path: Path) -> None:
    data, weight = placeholder((5, 4), "x", "int32"), placeholder((4, 24), "w", "int32")
    output = dense(data, weight, "sums", product=lambda x, w: call("narrow_dot4", x, w))
    image, taps = np.full((5, 16), 255, np.uint8), np.full((24, 16), 64 * signs, np.int8)
    operands = [image.view(np.int32), np.ascontiguousarray(taps.view(np.int32).T)]
    space = space_of(Operator("sums", (data, weight), output, frozenset({1})), target)
    jobs = [Job(Programs(space).nest(space.default()), operands)]
    (found,) = run_here(compile_jobs(jobs, target), jobs, tmp_path)
    assert np.array_equal(found, image.astype(np.int32) @ taps.astype(np.int32).T)


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize("flipped", [False, True])
def test_columns_of_a_tile_that_fills_all_registers(flipped: bool, tmp_path: Path) -> None:
    """Seven rows and three columns of sums, in programs that read uint8 as int8 and of extreme numbers."""
    paths = emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    rng = np.random.default_rng(0)
    image = rng.choice(np.array([-128, -1, 0, 127], np.int8), (1, 2, 7, 64))
    taps = rng.choice(np.array([-63, -1, 0, 63], np.int8), (64, 48))
    words = taps.reshape(32, 2, 48).transpose(0, 2, 1).copy().view(np.int16).reshape(1, 1, 32, 48)
    sign = -0x7F80 if flipped else 0

    def product(x: Term, w: Term) -> Term:
        return call("dot2x4", Binary("^", x, Const(sign, "int16")) if flipped else x, w)

    data, weight = placeholder((1, 2, 7, 32), "x", "int16"), placeholder((1, 1, 32, 48), "w", "int16")
    output = dense_conv(data, weight, Window((1, 1), (0,) * 4, (1, 1)), product=product)
    space = space_of(Operator("conv", (data, weight), output, frozenset({1})), A53)
    nest = Programs(space).nest(space.default())
    hot = inspect("kernel", nest, A53).hot
    assert hot is not None and hot.spills == 0 and any("lsl #32" in line for line in hot.lines)
    jobs = [Job(nest, [image.view(np.int16) ^ np.int16(sign), words])]
    (found,) = run_emulated(
        compile_jobs(jobs, A53), jobs, tmp_path, paths.command(load("emulated-a53").link.command)
    )
    assert np.array_equal(found, image.astype(np.int32) @ taps.astype(np.int32))
