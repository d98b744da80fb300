"""NaN, infinity and integers come out of generated GPU code as they come out of numpy.

The grammar's min and max keep a NaN, as numpy's do and as code for CPUs does; C's fmin and fmax drop it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.compile import compile
from cross.expression import Operator, absolute, maximum, minimum, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.elementwise import apply, clip, combine
from cross.expression.families.pool import pool2d, reduce
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, Programs
from cross.schedule.choose import space_of
from device_runtime.protocol import GpuKernel, GpuModule
from tests.cuda_on_cpu import Call, run_on_cpu
from tests.fuzz.operators import random_inputs
from tests.fuzz.pocl import Pocl, PoclJob, pocl
from tests.interpreter.interpreter import interpret

__all__ = ["pocl"]  # a fixture

Array = NDArray[Any]
SPECIAL = (np.nan, np.inf, -np.inf)
JETSON, POCL = load("jetson-nano").target("gpu"), load("pocl").target("opencl")


def one(name: str, output: Any, *inputs: Any) -> Operator:
    return Operator(name, inputs, output)


def operators() -> list[Operator]:
    """Activations, poolings and reductions of both kinds, and a sum of products before a relu."""
    x, y = placeholder((3, 40), "X"), placeholder((3, 40), "Y")
    image, weight = placeholder((1, 9, 9, 12), "image"), placeholder((3, 3, 12, 8), "weight")
    window = Window((2, 2), (1, 1, 1, 1))
    return [
        one("relu", apply(lambda a: maximum(a, 0.0), x, "relu"), x),
        one("relu_on_the_left", apply(lambda a: maximum(0.0, a), x, "relu"), x),
        one("relu6", apply(lambda a: clip(a, 0.0, 6.0), x, "relu6"), x),
        one("larger", combine(maximum, x, y, "larger"), x, y),
        one("smaller", combine(minimum, x, y, "smaller"), x, y),
        one("max_pool", pool2d(image, (3, 3), window, "max"), image),
        one("min_pool", pool2d(image, (3, 3), window, "min"), image),
        one("largest", reduce(image, (1, 2), "max"), image),
        one("smallest", reduce(x, (1,), "min"), x),
        one("conv", apply(lambda a: maximum(a, 0.0), conv2d(image, weight, window), "relu"), image, weight),
    ]


def drawn(operator: Operator, target: Target, seed: int) -> tuple[LoopNest, list[Array], Array]:
    """A program, inputs of which some are NaN or infinite, and what numpy makes of them."""
    rng = np.random.default_rng([17, seed])
    space = space_of(operator, target, winograd=False)
    nest = Programs(space).nest(space.configuration(space.sample(rng, 1)[0]))
    inputs = random_inputs(operator, rng)
    for array in inputs:
        array.flat[rng.choice(array.size, len(SPECIAL), replace=False)] = SPECIAL
    with np.errstate(invalid="ignore"):
        return nest, inputs, evaluate(operator, inputs)


def kernel_of(nest: LoopNest, target: Target) -> GpuKernel:
    return GpuModule.from_bytes(compile([("kernel_0", nest)], target).code).kernels["kernel_0"]


def agree(what: str, got: Array, want: Array) -> None:
    assert np.isnan(want).any() and np.isfinite(want).any(), what
    np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4, equal_nan=True, err_msg=what)


@pytest.mark.slow
def test_on_pocl(pocl: Pocl) -> None:
    target = pocl.narrowed(POCL)
    cases = [(operator, *drawn(operator, target, 0)) for operator in operators()]
    jobs = [PoclJob(kernel_of(nest, target), nest, inputs) for _, nest, inputs, _ in cases]
    outputs = replace(pocl, optimized=True).run_all(jobs)  # an optimizer may take numbers for no NaN
    for (operator, nest, inputs, want), job, got in zip(cases, jobs, outputs, strict=True):
        with np.errstate(invalid="ignore"):
            agree(f"{operator.name}, interpreted", interpret(nest, inputs), want)
        agree(f"{operator.name}\n{job.kernel.code!r}", got, want)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["int32", "int8", "int64"])
def test_integers_on_pocl(pocl: Pocl, dtype: str) -> None:
    """OpenCL's own abs is unsigned, and its max takes no two types."""
    x = placeholder((4, 64), "X", dtype)
    operator = one("far", apply(lambda a: maximum(absolute(a) - 10, -3), x, "far"), x)
    target = pocl.narrowed(POCL)
    nest = Programs(space_of(operator, target)).nest(space_of(operator, target).default())
    values = np.arange(-120, 136, dtype=np.int64).clip(-120, 120).astype(dtype).reshape(4, 64)
    got = pocl.run(PoclJob(kernel_of(nest, target), nest, [values], unwritten=99))
    np.testing.assert_array_equal(got, evaluate(operator, [values]))


@pytest.mark.slow
def test_cuda_on_the_cpu(tmp_path: Path) -> None:
    cases = [(operator, *drawn(operator, JETSON, 1)) for operator in operators()]
    calls = [
        Call(gpu_program(operator.name, nest, JETSON), nest, inputs) for operator, nest, inputs, _ in cases
    ]
    found = run_on_cpu(calls, tmp_path)
    for (operator, *_, want), call, got in zip(cases, calls, found, strict=True):
        agree(f"{operator.name}\n{call.program.source}", got, want)
