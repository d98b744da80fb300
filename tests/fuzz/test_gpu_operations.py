"""Every operation and conversion between dtypes that OpenCL C has, on PoCL."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from cross.compile import compile
from cross.expression import Operator, compute, placeholder
from cross.expression.families.data_movement import concat
from cross.expression.language.dtypes import DTYPES
from cross.expression.language.operations import EIGHTS, INTEGER, OPERATIONS, SHARED_STEPS
from cross.expression.language.tensor import Tensor
from cross.expression.language.terms import Term, call, cast
from cross.expression.reference import evaluate
from cross.loopnest import Programs
from cross.schedule import gpu_space
from device_runtime.protocol import GpuModule
from tests.fuzz.pocl import Pocl, PoclJob, pocl

__all__ = ["pocl"]  # a fixture

TARGET = load("pocl").target(None)
INTEGERS = ("int8", "int16", "int32", "int64", "uint8")
ELEMENTS = 32


def run(pocl: Pocl, output: Tensor, tensors: list[Tensor], inputs: list[NDArray[np.generic]]) -> None:
    """Compare one program on PoCL with the reference; its vectors are short, which compile in little time."""
    pocl = replace(pocl, lanes=2)
    operator = Operator("operations", tuple(tensors), output)
    space = gpu_space(operator, pocl.narrowed(TARGET))
    nest = Programs(space).nest(space.default())
    kernel = GpuModule.from_bytes(compile([("kernel_0", nest)], space.target).code).kernels["kernel_0"]
    got = pocl.run(PoclJob(kernel, nest, inputs, unwritten=0))
    np.testing.assert_allclose(got, evaluate(operator, inputs), rtol=2e-6, err_msg=str(kernel.code))


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [*INTEGERS, "float32", "float64", "bool"])
def test_operations(pocl: Pocl, dtype: str) -> None:
    """All of a dtype, their results as numbers: of a narrow integer one that has not wrapped is seen."""
    rng, kind = np.random.default_rng(5), DTYPES[dtype].kind
    x, y = placeholder((ELEMENTS,), "x", dtype), placeholder((ELEMENTS,), "y", dtype)

    def row(name: str, arity: int) -> Tensor:
        def body(i: Term) -> Term:
            return cast("float64", call(name, *(item[i] for item in (x, y)[:arity])))

        return compute((ELEMENTS,), body, "row")

    rows = [item for item in OPERATIONS.values() if kind in item.kinds and item.only in ("", dtype)]
    of_cpus = {"ceildiv", *SHARED_STEPS, *EIGHTS}
    rows = [item for item in rows if item.name not in of_cpus]
    shifts = [item for item in rows if item.name in ("<<", ">>")]
    values = [rng.uniform(0.25, 3.0, ELEMENTS), rng.uniform(0.25, 3.0, ELEMENTS)]
    if kind in INTEGER:
        limits = np.iinfo(dtype)
        values = [rng.integers(limits.min, limits.max, ELEMENTS, dtype) for _ in values]
        values[1][values[1] == 0] = 3
    inputs = [np.asarray(item > 1 if kind == "bool" else item).astype(dtype) for item in values]
    others = [item for item in rows if item not in shifts]
    run(pocl, concat([row(item.name, item.arity) for item in others], 0), [x, y], inputs)
    if shifts:
        inputs[1] %= np.asarray(8 * inputs[1].itemsize, dtype)
        run(pocl, concat([row(item.name, 2) for item in shifts], 0), [x, y], inputs)


@pytest.mark.slow
@pytest.mark.parametrize("source", ["float32", "float64"])
def test_floats_become_integers(pocl: Pocl, source: str) -> None:
    ends = [float(end) for dtype in INTEGERS for end in (np.iinfo(dtype).min, np.iinfo(dtype).max)]
    near = [end * factor + step for end in ends for factor in (1, 1.01, 0.99) for step in (-1, 0, 0.5, 1)]
    values = np.array([np.nan, np.inf, -np.inf, 0.0, -0.75, *near], source)
    x = placeholder(values.shape, "x", source)
    parts = [
        compute(values.shape, lambda i, dtype=dtype: cast("int64", cast(dtype, x[i])), "part", ("i",))
        for dtype in INTEGERS
    ]
    run(pocl, concat(parts, 0), [x], [values])
