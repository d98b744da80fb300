"""Products that are added to and then rounded to integers: on no target is a multiply-add fused there."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross import nvrtc
from cross.codegen.c.gpu_code import gpu_program
from cross.expression import Axis, Operator, Term, cast, compute, placeholder, tanh
from cross.expression.families.dense import dense
from cross.expression.families.pool import reduce
from cross.expression.language.terms import call
from cross.loopnest import LoopNest, Programs
from cross.nvrtc import compile_cubin
from cross.schedule.choose import space_of
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.fuzz.pocl import Pocl, PoclJob, pocl
from tests.fuzz.test_gpu import gpu_kernel
from tests.targets import EACH_HOST

__all__ = ["pocl"]  # a fixture

ROWS, COLUMNS = 4, 64
JETSON = load("jetson-nano").target("gpu")
# A product is 100.5 as a float32, but not exactly: less 100, it is a tie only if it has been rounded.
X = np.arange(3, 3 + ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
SCALES = np.float32(100.5) / X
ZEROS = np.zeros((ROWS, COLUMNS), np.float32)
WANT = np.rint(X * SCALES - np.float32(100.0)).astype(np.int8)


def operator(*, stored: bool) -> Operator:
    """round(x * scale - 100); `stored`: the difference has a maximum, too, which makes it a stage."""
    x, scale, zero = (placeholder(X.shape, name) for name in ("x", "scale", "zero"))

    def shifted(i: Axis, j: Axis) -> Term:
        return (tanh(zero[i, j]) - 100.0) + x[i, j] * scale[i, j]

    if not stored:
        made = compute(X.shape, lambda i, j: cast("int8", call("round", shifted(i, j))), "y")
        return Operator("rounded", (x, scale, zero), made)
    stage = compute(X.shape, shifted, "shifted")
    most = reduce(stage, (1,), "max", name="most")
    made = compute(X.shape, lambda i, j: cast("int8", call("round", stage[i, j] + 0.0 * most[i, 0])), "y")
    return Operator("rounded", (x, scale, zero), made)


def nest(made: Operator, target: Target) -> LoopNest:
    space = space_of(made, target)
    return Programs(space).nest(space.default())


def ptx(made: Operator, monkeypatch: pytest.MonkeyPatch) -> str:
    """What NVRTC makes of a kernel before it chooses instructions of one GPU."""
    text: Any = nvrtc._text
    monkeypatch.setattr(
        nvrtc, "_text", lambda *given: text(*given[:2], *(name.replace("CUBIN", "PTX") for name in given[2:]))
    )
    return compile_cubin(gpu_program("k", nest(made, JETSON), JETSON).source, "sm_53").decode()


@pytest.mark.parametrize("stored", [False, True], ids=["inlined", "stored"])
@pytest.mark.parametrize("target", EACH_HOST)
def test_ties_on_this_machine(target: Target, stored: bool, tmp_path: Path) -> None:
    jobs = [Job(nest(operator(stored=stored), target), [X, SCALES, ZEROS])]
    (got,) = run_here(compile_jobs(jobs, target), jobs, tmp_path)
    np.testing.assert_array_equal(got, WANT)


@pytest.mark.slow
@pytest.mark.parametrize("stored", [False, True], ids=["inlined", "stored"])
def test_ties_on_pocl(pocl: Pocl, stored: bool) -> None:
    target = pocl.narrowed(load("pocl").target(None))
    made = nest(operator(stored=stored), target)
    got = pocl.run(PoclJob(gpu_kernel(made, target), made, [X, SCALES, ZEROS], unwritten=0))
    np.testing.assert_array_equal(got, WANT)


@pytest.mark.slow
def test_quotients_are_exact_where_divisions_are_not(pocl: Pocl) -> None:
    """Divisions of OpenCL may be 2.5 units in the last place off; here each is made to be by one or two."""
    x, scale = placeholder(X.shape, "x"), placeholder(X.shape, "scale")
    output = compute(X.shape, lambda i, j: cast("int8", call("round", x[i, j] / scale[i, j])), "y")
    target = pocl.narrowed(load("pocl").target(None))
    made = nest(Operator("quotient", (x, scale), output), target)
    kernel = gpu_kernel(made, target)
    assert isinstance(kernel.code, str) and "a / b" in kernel.code
    for factor in ("0.9999998f", "1.0000002f"):
        inexact = replace(kernel, code=kernel.code.replace("a / b", f"(a / b * {factor})"))
        dividends = (np.arange(X.size).reshape(X.shape) % 100 + 0.5).astype(np.float32) * X
        got = pocl.run(PoclJob(inexact, made, [dividends, X], unwritten=0))
        np.testing.assert_array_equal(got, np.rint(dividends / X))


@pytest.mark.parametrize("stored", [False, True], ids=["inlined", "stored"])
def test_nvrtc_fuses_no_rounded_product(stored: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    text = ptx(operator(stored=stored), monkeypatch)
    assert "mul.rn.f32" in text and "cvt.rni" in text


def test_sums_of_products_stay_fused(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("nvidia.cuda_nvrtc")
    a, b = placeholder((16, 32), "a"), placeholder((32, 16), "b")
    summed = dense(a, b, "summed")
    made = compute((16, 16), lambda i, j: cast("int8", call("round", summed[i, j] * 0.5 + 1.0)), "y")
    text = ptx(Operator("rounded sums", (a, b), made), monkeypatch)
    assert "fma.rn.f32" in text and "mul.rn.f32" in text
