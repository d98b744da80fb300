"""Elementwise functions of generated code against numpy in float64, over ranges, edges and special values."""

from __future__ import annotations

import ctypes
import math
import platform
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.compile import compile
from cross.expression import Operator, Tensor, Term, compute, erf, exp, log, placeholder, sigmoid, tanh
from cross.expression.families.pool import reduce
from cross.expression.language.terms import select
from cross.loopnest import LoopNest, Programs
from cross.schedule import cpu_space
from tests.fuzz.kernels import Job, compile_jobs, run_emulated, run_here
from tests.targets import EACH_HOST, HOST
from toolkit.measure import emulation

COUNT = 40_000
WORST = {"erf": 5e-7}  # without fused multiply-adds
WORST_SQUARES = {**WORST, "silu": 5e-7, "sigmoid": 5e-7}  # of powers that fewer or other steps approximate
BY_QUOTIENTS = [
    pytest.param(
        msgspec.structs.replace(HOST, flops_per_cycle=2.0 * rate * HOST.vector_lanes()), id=f"{rate} a cycle"
    )
    for rate in (1, 2)
]
"""This machine, multiplying so many vectors a cycle: with AVX-512 the first divides, the second estimates."""
FUNCTIONS: dict[str, tuple[Callable[[Term], Term], Callable[[float], float]]] = {
    "exp": (exp, lambda x: math.exp(x) if x < 89 else math.inf),
    "sigmoid": (sigmoid, lambda x: 1.0 / (1.0 + math.exp(-x)) if x > -500 else 0.0),
    "log": (log, lambda x: math.log(x) if x > 0 else math.nan if x < 0 else -math.inf),
    "tanh": (tanh, math.tanh),
    "erf": (erf, math.erf),
}
ENDS = (-np.inf, -1e30, -104.0, -90.0, -87.34, 0.0, -0.0, 89.5, 1e30, np.inf, np.nan)
"""Of the range of a SiLU."""
SILU = {"silu": (lambda x: x * sigmoid(x), lambda x: x / (1.0 + math.exp(-x)))}


def _aligned(array: NDArray[np.float32]) -> NDArray[np.float32]:
    raw = np.empty(array.nbytes + 64, np.uint8)
    start = -raw.ctypes.data % 64
    copy = raw[start : start + array.nbytes].view(array.dtype)
    copy[:] = array
    return copy


def _elementwise(function: Callable[[Term], Term], data: NDArray[np.float32], target: Target) -> LoopNest:
    source: Tensor = placeholder(data.shape, "x")
    operator = Operator("f", (source,), compute(data.shape, lambda i: function(source[i]), name="y"))
    space = cpu_space(operator, target)
    return Programs(space).nest(space.default())


def _call(
    function: Callable[[Term], Term], data: NDArray[np.float32], folder: Path, target: Target = HOST
) -> tuple[Callable[[], int], NDArray[np.float32]]:
    """A call of a kernel that applies a function to each element, and its result."""
    artifact = compile([("f", _elementwise(function, data, target))], target)
    path = folder / f"{data[0]}.so"
    path.write_bytes(artifact.code)
    kernel = ctypes.CDLL(str(path)).f
    kernel.argtypes = [ctypes.c_void_p] * 3
    inputs, output = _aligned(data), _aligned(np.full_like(data, np.nan))

    def call() -> int:
        return int(kernel((ctypes.c_void_p * 2)(inputs.ctypes.data, output.ctypes.data), None, None))

    return call, output


def _run(
    function: Callable[[Term], Term], data: NDArray[np.float32], folder: Path, target: Target = HOST
) -> NDArray[np.float32]:
    call, output = _call(function, data, folder, target)
    assert call() == 0
    return output


@pytest.mark.skipif(platform.machine() != "x86_64", reason="flags of an x86 core")
def test_exp_of_what_is_masked_away_does_not_underflow(tmp_path: Path) -> None:
    libm, underflow = ctypes.CDLL("libm.so.6"), 0x10
    data = np.array([-1e4, -104.0, -100.0, -90.0, -np.inf, -3e38] * 8, np.float32)
    call, output = _call(exp, data, tmp_path)
    libm.feclearexcept(underflow)
    call()
    assert libm.fetestexcept(underflow) == 0
    assert np.all(output == 0.0)


@pytest.mark.parametrize("target", [*EACH_HOST, *BY_QUOTIENTS])
@pytest.mark.parametrize("name", FUNCTIONS | SILU)
def test_functions_are_as_accurate_as_stated(name: str, target: Target, tmp_path: Path) -> None:
    data = _drawn(name, COUNT)
    limits = WORST if target.cpu != "x86-64-v2" else WORST_SQUARES
    _check(name, data, _run((FUNCTIONS | SILU)[name][0], data, tmp_path, target), limits)


@pytest.mark.emulated
def test_functions_of_boards_with_arm_cores_are_as_accurate(tmp_path: Path) -> None:
    """They take powers by Estrin's rule; and a SiLU of what is far from 0 is 0, itself, or not a number."""
    paths, board = emulation.find(), load("emulated-a53")
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    target, ends = board.target(None), np.array([*ENDS * 4], np.float32)
    drawn = {name: _drawn(name, 6000) for name in FUNCTIONS | SILU}
    jobs = [
        Job(_elementwise((FUNCTIONS | SILU)[name][0], data, target), [data]) for name, data in drawn.items()
    ]
    jobs.append(Job(_elementwise(SILU["silu"][0], ends, target), [ends]))
    *outputs, far = run_emulated(
        compile_jobs(jobs, target), jobs, tmp_path, paths.command(board.link.command)
    )
    for (name, data), got in zip(drawn.items(), outputs, strict=True):
        _check(name, data, got, WORST_SQUARES)
    _check_ends(ends, far)


def _drawn(name: str, count: int) -> NDArray[np.float32]:
    """Arguments of all sizes at which a function is a number."""
    rng = np.random.default_rng(4)
    data = np.concatenate(
        [
            rng.uniform(-87, 88.7, count),
            rng.uniform(-4, 4, count),
            rng.uniform(-0.6, 0.6, count),
            rng.choice([-1, 1], count) * 10.0 ** rng.uniform(-30, 0, count),
            rng.uniform(0.5, 2.0, count) if name == "log" else [],
            10.0 ** rng.uniform(-44, 38, count) if name == "log" else [],
        ]
    ).astype(np.float32)
    return data[data > 0] if name == "log" else data


def _check(
    name: str, data: NDArray[np.float32], values: NDArray[np.float32], limits: dict[str, float]
) -> None:
    exact, got = (FUNCTIONS | SILU)[name][1], values.astype(np.float64)
    want = np.array([exact(float(x)) for x in data])
    error = np.abs(got - want) / np.maximum(np.abs(want), np.finfo(np.float32).tiny)
    worst = int(np.argmax(error))
    assert error.max() < limits.get(name, 4e-7), (data[worst], got[worst], want[worst], error[worst])


@pytest.mark.parametrize("target", [*EACH_HOST, *BY_QUOTIENTS])
@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_far_from_zero_they_are_exactly_one(name: str, target: Target, tmp_path: Path) -> None:
    """GELU of a large negative number is that number times the distance from -1."""
    sizes = [8.0, 13.0, 87.5, 1e10, 1e30, 3e38, np.inf]
    data = np.array([*sizes, *np.negative(sizes), np.nan, 0.0] * 3, np.float32)
    got = _run(FUNCTIONS[name][0], data, tmp_path, target)
    np.testing.assert_array_equal(got, np.sign(data))


def _neighbours(value: np.float32) -> NDArray[np.float32]:
    """The 200 floats on either side of a value."""
    bits = value.view(np.int32) + np.arange(-200, 201, dtype=np.int32)
    return bits.view(np.float32)


@pytest.mark.parametrize("target", BY_QUOTIENTS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_at_the_ends_of_their_range(name: str, target: Target, tmp_path: Path) -> None:
    function, exact = FUNCTIONS[name]
    ends = [-np.inf, -1e30, -104.0, -90.0, 0.0, -0.0, 88.0, 89.5, 1e30, np.inf]
    largest, smallest = np.float32(88.72283), np.float32(-87.33654)  # between them exp is finite and normal
    around = [*_neighbours(largest), *_neighbours(smallest)]
    data = np.array([*ends, *around, np.nan], np.float32)
    got = _run(function, data, tmp_path, target)
    want = np.array([*(exact(float(x)) for x in data[:-1]), np.nan])
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(got, want.astype(np.float32), rtol=4e-7, atol=1e-37)


@pytest.mark.parametrize("target", [*EACH_HOST, *BY_QUOTIENTS])
def test_a_product_with_a_sigmoid_that_is_nothing_is_one_with_zero(target: Target, tmp_path: Path) -> None:
    """Not a number where the factor is infinite, although the product is a quotient."""
    data = np.array([*ENDS * 4], np.float32)
    _check_ends(data, _run(SILU["silu"][0], data, tmp_path, target))


def _check_ends(data: NDArray[np.float32], got: NDArray[np.float32]) -> None:
    """x / (1 + e^-x) of what `ENDS` repeats; what the power is below normal numbers may be taken for 0."""
    with np.errstate(over="ignore", invalid="ignore"):
        want = data / (1.0 + np.exp(-data.astype(np.float64)))
    np.testing.assert_allclose(got, want, rtol=5e-7, atol=2e-36)
    number = ~np.isnan(want)
    np.testing.assert_array_equal(np.signbit(got)[number], np.signbit(want)[number])


def test_a_sigmoid_that_is_taken_twice_is_computed_once(tmp_path: Path) -> None:
    data = np.random.default_rng(8).uniform(-9.0, 9.0, 40).astype(np.float32)
    got = _run(lambda x: x * sigmoid(x) + sigmoid(x), data, tmp_path)
    np.testing.assert_allclose(got, (data + 1) / (1 + np.exp(-data.astype(np.float64))), rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("target", EACH_HOST)
def test_the_smallest_normal_powers_are_hardly_too_large(target: Target, tmp_path: Path) -> None:
    data = np.linspace(-87.336, -87.25, 4096).astype(np.float32)
    ratio = _run(exp, data, tmp_path, target) / np.exp(data.astype(np.float64))
    assert ratio.min() > 1 - 4e-7
    assert ratio.max() < 1.05


def test_what_registers_hold_or_zero_is_chosen_by_the_element(tmp_path: Path) -> None:
    """A sum is not read from memory, where a guard would leave zeros."""
    data = np.random.default_rng(7).uniform(-1.0, 1.0, (6, 5)).astype(np.float32)
    source = placeholder(data.shape, "x")
    sums = reduce(source, (1,), "sum", keep=False)
    output = compute(sums.shape, lambda i: select(sums[i] > 0.25, sums[i], 0.0), "y")
    space = cpu_space(Operator("f", (source,), output), HOST)
    jobs = [Job(Programs(space).nest(space.default()), [data])]
    (got,) = run_here(compile_jobs(jobs, HOST), jobs, tmp_path)
    want = data.sum(axis=1, dtype=np.float64)
    assert (want < 0.25).any()
    np.testing.assert_allclose(got, np.where(want > 0.25, want, 0.0), atol=1e-6)
