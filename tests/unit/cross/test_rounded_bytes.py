"""Floats that are rounded and kept as bytes, as code for CPUs: every half, both ends, infinities and NaN."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import assembly
from cross.codegen.llvm.rounded_bytes import reciprocal
from cross.codegen.llvm.sums_of_bytes import factors
from cross.expression import Axis, Operator, Term, cast, compute, placeholder, reduce_axis, sum
from cross.expression.language.terms import call
from cross.loopnest import LoopNest, Programs
from cross.schedule.choose import space_of
from tests.fuzz.kernels import Job, compile_jobs, run_emulated, run_here
from tests.targets import AVX2, EACH_HOST
from toolkit.measure import emulation

Floats = NDArray[np.float32]
CASES = [("uint8", 0, 0.09728847444057465), ("uint8", 139, 0.3), ("int8", -17, 1.7e-3), ("int8", 4, 1.0)]


def nest(operator: Operator, target: Target) -> LoopNest:
    space = space_of(operator, target)
    return Programs(space).nest(space.default())


def halves(divisor: float) -> Floats:
    """Floats around every number whose quotient lies midway between integers, and beyond all of them."""
    middle = ((np.arange(-420, 420) + 0.5) * np.float32(divisor)).astype(np.float32)
    places = middle.view(np.int32)[:, None] + np.arange(-3, 4, dtype=np.int32)
    others = np.array([np.inf, -np.inf, np.nan, 3e38, -3e38, 1e-44, -0.0, 0.0], np.float32)
    return np.concatenate([places.view(np.float32).ravel(), others, middle[:128]]).reshape(-1, 32)


def as_byte(x: Floats, dtype: str, zero: int) -> Floats:
    """round(x) + zero within the range of the byte; NaN becomes 0."""
    limits = np.iinfo(dtype)
    found = np.clip(np.rint(x) + zero, limits.min, limits.max)
    return np.where(np.isnan(x), 0, found).astype(np.float32)


def operators(data: Floats, dtype: str, zero: int, divisor: float | None) -> list[Operator]:
    """The byte of x, or of x / divisor; and of the same byte, 11 more as a float."""
    x = placeholder(data.shape, "x")

    def byte(i: Axis, j: Axis) -> Term:
        number = x[i, j] if divisor is None else x[i, j] / divisor
        return cast(dtype, call("round", number) + float(zero))

    def again(i: Axis, j: Axis) -> Term:
        return cast("float32", cast("int32", byte(i, j)) + 11) * 0.5

    return [Operator("byte", (x,), compute(data.shape, body, "y")) for body in (byte, again)]


@pytest.mark.parametrize("target", EACH_HOST)
@pytest.mark.filterwarnings("ignore:overflow")
def test_every_half_becomes_the_byte_of_the_definition(target: Target, tmp_path: Path) -> None:
    jobs, want = [], []
    for dtype, zero, scale in CASES:
        data = halves(scale)
        for divisor, number in ((None, data), (float(np.float32(scale)), data / np.float32(scale))):
            jobs += [Job(nest(item, target), [data]) for item in operators(data, dtype, zero, divisor)]
            want += [as_byte(number, dtype, zero), (as_byte(number, dtype, zero) + 11) * 0.5]
    for got, expected in zip(run_here(compile_jobs(jobs, target), jobs, tmp_path), want, strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), expected)


@pytest.mark.emulated
@pytest.mark.filterwarnings("ignore:overflow")
def test_every_half_becomes_the_byte_of_the_definition_as_aarch64(tmp_path: Path) -> None:
    board, paths = load("emulated-a53"), emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    target = board.target(None)
    jobs, want = [], []
    for dtype, zero, scale in CASES:
        data, divisor = halves(scale), float(np.float32(scale))
        expected = as_byte(data / np.float32(scale), dtype, zero)
        jobs += [Job(nest(item, target), [data]) for item in operators(data, dtype, zero, divisor)]
        want += [expected, (expected + 11) * 0.5]
    command = paths.command(board.link.command)
    for got, expected in zip(
        run_emulated(compile_jobs(jobs, target), jobs, tmp_path, command), want, strict=True
    ):
        np.testing.assert_array_equal(got.astype(np.float32), expected)


def test_no_division_is_left_on_aarch64() -> None:
    target, x = load("rpi3b").target(None), placeholder((64,), "x")
    quotient = compute((64,), lambda i: cast("uint8", call("round", x[i] / 0.3) + 3.0), "y")
    total = added(ADDED[0][0], (4, 64), *ADDED[0][1:])
    for operator in (Operator("byte", (x,), quotient), total):
        text = assembly(llvm_module("k", nest(operator, target), target), target)
        assert "fdiv" not in text and "fml" in text


@pytest.mark.parametrize(("least", "most"), [(0, 255), (-250, 5), (-128, 127)])
def test_reciprocals_round_as_quotients_do(least: int, most: int) -> None:
    """By fractions: numpy has no fused multiply-add."""
    rng = np.random.default_rng(5)
    divisors = np.exp(rng.uniform(-9, 9, 40)).astype(np.float32)
    found = 0
    for divisor in map(float, divisors):
        factors = reciprocal(divisor, least, most)
        if factors is None:
            continue
        found += 1
        for half in rng.integers(least, most, 6) + 0.5:
            near = np.float32(half * divisor).view(np.int32) + np.arange(-2, 3, dtype=np.int32)
            for x in near.view(np.float32):
                rest = x * np.float32(factors[1])
                exact = Fraction(float(x)) * Fraction(factors[0]) + Fraction(float(rest))
                fused = nearest(exact)
                assert np.rint(fused) == np.rint(x / np.float32(divisor)), (x, divisor)
    assert found > 35


ADDED = [  # dtype, then scale and zero point of two operands and of their sum
    ("uint8", (0.21059178, 140), (0.058456384, 117), (0.097288474, 0)),
    ("uint8", (0.076255292, 148), (0.097288474, 0), (0.10257517, 117)),
    ("int8", (0.03, -5), (0.02, 7), (0.04, -3)),
    ("int8", (0.5, 0), (0.5, 0), (1.0, 3)),  # halves everywhere
]


@pytest.mark.parametrize("target", EACH_HOST)
def test_sums_of_all_pairs_of_bytes(target: Target, tmp_path: Path) -> None:
    """The second operand is rounded to its byte in the same expression."""
    jobs, want = [], []
    for dtype, (s, first), (t, second), (divisor, zero) in ADDED:
        limits = np.iinfo(dtype)
        values = np.arange(limits.min, limits.max + 1)
        a = np.repeat(values, 256).reshape(-1, 64).astype(dtype)
        b = (np.tile(values, 256).reshape(-1, 64) - second).astype(np.float32)
        jobs.append(
            Job(nest(added(dtype, a.shape, (s, first), (t, second), (divisor, zero)), target), [a, b])
        )
        left = (a.astype(np.float32) - np.float32(first)) * np.float32(s)
        total = np.rint((left + b * np.float32(t)) / np.float32(divisor)) + zero
        want.append(np.clip(total, limits.min, limits.max))
    for got, expected in zip(run_here(compile_jobs(jobs, target), jobs, tmp_path), want, strict=True):
        np.testing.assert_array_equal(got.astype(np.float32), expected)


def added(
    dtype: str,
    shape: tuple[int, ...],
    left: tuple[float, int],
    right: tuple[float, int],
    result: tuple[float, int],
) -> Operator:
    """The byte of (a - zero) * scale + (byte of b - zero) * scale; of each: scale and zero point."""
    x, y = placeholder(shape, "a", dtype), placeholder(shape, "b")
    s, t, divisor = (float(np.float32(scale)) for scale, _ in (left, right, result))

    def body(i: Axis, j: Axis) -> Term:
        rounded = cast(dtype, call("round", y[i, j]) + float(right[1]))
        first = cast("float32", cast("int32", x[i, j]) + -left[1]) * s
        total = first + cast("float32", cast("int32", rounded) + -right[1]) * t
        return cast(dtype, call("round", total / divisor) + float(result[1]))

    return Operator("add", (x, y), compute(shape, body, "sum"))


@pytest.mark.parametrize(
    "scales", [(1e-30, 0.1, 0.1), (0.1, 0.1, 0.0), (1e15, 0.1, 1e-15), (np.nan, 0.1, 0.1)]
)
def test_scales_out_of_range_are_divided(scales: tuple[float, float, float]) -> None:
    assert factors((0, 0, scales[0]), (0, 0, scales[1]), scales[2], 0, 255) is None


def test_sums_of_bytes_are_two_multiply_adds() -> None:
    dtype, *scales = ADDED[0]
    made = nest(added(dtype, (4, 64), *scales), AVX2)
    text = assembly(llvm_module("k", made, AVX2), AVX2)
    assert "vdivps" not in text and "vmulps" not in text and "vfmadd" in text


def nearest(exact: Fraction) -> np.float32:
    """The float32 next to a number; of two the one with an even last digit."""
    guess = np.float32(float(exact))
    near = (np.nextafter(guess, np.float32(-np.inf)), guess, np.nextafter(guess, np.float32(np.inf)))
    return min(near, key=lambda item: (abs(Fraction(float(item)) - exact), int(item.view(np.int32)) & 1))


def test_no_division_is_left_where_multiply_adds_are_fused() -> None:
    x = placeholder((64,), "x")
    made = compute((64,), lambda i: cast("uint8", call("round", x[i] / 0.3) + 3.0), "y")
    text = assembly(llvm_module("k", nest(Operator("byte", (x,), made), AVX2), AVX2), AVX2)
    assert "vdivps" not in text and "vfmadd" in text and "vround" not in text


def test_single_products_of_bytes_by_vnni() -> None:
    target = msgspec.structs.replace(AVX2, features=("+avxvnni",))
    x, w = placeholder((64, 32), "x", "uint8"), placeholder((9, 32), "w", "int8")
    k = reduce_axis(9, "k")
    made = compute(
        (56, 32), lambda i, j: sum(cast("int32", x[i + k, j]) * cast("int32", w[k, j]), axis=k), "conv"
    )
    made = nest(Operator("depthwise", (x, w), made, frozenset({1})), target)
    text = assembly(llvm_module("k", made, target), target)
    assert "vpdpbusd" in text and "vpmulld" not in text and "vpmaddwd" not in text
