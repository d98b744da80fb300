"""Every row of the table of operations, for every kind of dtype that it takes: machine code and C."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from cross.codegen.c.gpu_code import gpu_program
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import assembly
from cross.errors import ExpressionError
from cross.expression import Operator, Tensor, compute, placeholder
from cross.expression.families.elementwise import apply
from cross.expression.language.dtypes import DTYPES
from cross.expression.language.operations import EIGHTS, INTEGER, OPERATIONS, Operation, converted
from cross.expression.language.terms import call, cast
from cross.expression.reference import evaluate
from cross.loopnest import Programs, verify
from cross.schedule import cpu_space, gpu_space
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2

HOST = load("host").target(None)
ELEMENTS = 21  # no multiple of any vector: whole vectors and a rest
DTYPES_OF = {
    "float": ("float32", "float64"),
    "signed": ("int8", "int32", "int64"),
    "unsigned": ("uint8",),
    "bool": ("bool",),
}
ROWS = [row for row in OPERATIONS.values() if row.name != "ceildiv"]  # of extents alone: binding computes it
CASES = [
    (row, dtype) for row in ROWS for kind in row.kinds for dtype in DTYPES_OF[kind] if row.only in ("", dtype)
]


def operator(row: Operation, dtype: str) -> Operator:
    """The operation, element by element."""
    inputs = tuple(placeholder((ELEMENTS,), f"X{number}", dtype) for number in range(row.arity))
    return Operator(
        "row", inputs, compute((ELEMENTS,), lambda i: call(row.name, *(item[i] for item in inputs)))
    )


def values(tensor: Tensor, rng: np.random.Generator) -> NDArray[np.generic]:
    """Numbers of both signs where integers have them; no 0, by which a division has no value to compare."""
    kind = DTYPES[tensor.dtype].kind
    if kind == "bool":
        return rng.random(tensor.shape) < 0.5
    drawn = rng.uniform(0.25, 3.0, tensor.shape) if kind == "float" else rng.integers(1, 10, tensor.shape)
    return np.asarray(drawn * (rng.choice([-1, 1], tensor.shape) if kind == "signed" else 1)).astype(
        tensor.dtype
    )


@pytest.mark.slow
def test_machine_code_and_interpreter_agree_with_the_reference(tmp_path: Path) -> None:
    rng, jobs, expected = np.random.default_rng(3), [], []
    for row, dtype in CASES:
        made = operator(row, dtype)
        inputs = [values(item, rng) for item in made.inputs]
        if row.name in ("<<", ">>"):
            inputs[1] = np.abs(inputs[1]) % 8  # shifts by less than the bits there are
        space = cpu_space(made, HOST)
        nest = Programs(space).nest(space.default())
        verify(nest)
        jobs.append(Job(nest, inputs))
        expected.append(evaluate(made, inputs))
    outputs = run_here(compile_jobs(jobs, HOST), jobs, tmp_path)
    for (row, dtype), job, output, want in zip(CASES, jobs, outputs, expected, strict=True):
        for got in (interpret(job.nest, job.inputs), output):
            assert got.dtype == np.dtype(row.result or dtype)
            np.testing.assert_allclose(got, want, rtol=2e-6, err_msg=f"{row.name} of {dtype}")


SMALL_FLOATS = [
    np.nan,
    np.inf,
    -np.inf,
    0.0,
    -0.0,
    0.75,
    -0.75,
    -1.5,
    127.5,
    128.0,
    -128.5,
    -129.0,
    255.9,
    256.0,
]
LARGE_FLOATS = [3e4, 7e4, 2.0**31 - 200, 2.0**31, -(2.0**31), -3e9, 2.0**32, 9e18, 2.0**63, -(2.0**63), -1e19]
FLOATS = np.array([*SMALL_FLOATS, *LARGE_FLOATS, 2.0**64, 3e38], np.float32)
INTEGER_CASTS = [
    (source, dtype)
    for source in ("float16", "float32", "float64")
    for dtype in DTYPES
    if DTYPES[dtype].kind in INTEGER
]


def exact(value: float, dtype: str) -> int:
    """A float as an integer, by Python's integers."""
    limits = np.iinfo(dtype)
    if not np.isfinite(value):
        return 0 if np.isnan(value) else int(limits.max if value > 0 else limits.min)
    return min(max(int(value), int(limits.min)), int(limits.max))


def conversion(source: str, dtype: str) -> Job:
    """The loop nest, for this machine, that converts FLOATS, with its input."""
    with np.errstate(over="ignore"):
        values = FLOATS.astype(source)
    data = placeholder(FLOATS.shape, "x", source)
    space = cpu_space(Operator("cast", (data,), apply(partial(cast, dtype), data, "y")), HOST)
    return Job(Programs(space).nest(space.default()), [values])


def test_floats_become_the_nearest_integers_that_there_are(tmp_path: Path) -> None:
    jobs = [conversion(source, dtype) for source, dtype in INTEGER_CASTS]
    outputs = run_here(compile_jobs(jobs, HOST), jobs, tmp_path)
    for (source, dtype), job, output in zip(INTEGER_CASTS, jobs, outputs, strict=True):
        want = np.array([exact(float(value), dtype) for value in job.inputs[0]], dtype)
        for got in (converted(job.inputs[0], dtype), interpret(job.nest, job.inputs), output):
            np.testing.assert_array_equal(got, want, err_msg=f"{source} to {dtype}")


@pytest.mark.parametrize("board", ["pocl", "jetson-nano"])
def test_every_row_is_written_in_c(board: str) -> None:
    target = load(board).target("gpu" if board == "jetson-nano" else None)
    for row, dtype in CASES:
        if row.name in EIGHTS:  # for LLVM code alone
            continue
        space = gpu_space(operator(row, dtype), target)
        source = gpu_program("kernel", Programs(space).nest(space.default()), target).source
        assert "{" + "0}" not in source and "row" in source


@pytest.mark.parametrize(
    ("name", "dtype"), [("exp", "int32"), ("//", "float32"), ("and", "float32"), ("+", "bool")]
)
def test_a_dtype_that_a_row_does_not_take_is_refused(name: str, dtype: str) -> None:
    with pytest.raises(ExpressionError, match=f"works on .* values, found {dtype}"):
        operator(OPERATIONS[name], dtype)


@pytest.mark.parametrize("op", ["max", "min"])
def test_an_extreme_of_floats_orders_no_zeros_where_that_takes_instructions(op: str) -> None:
    space = cpu_space(operator(OPERATIONS[op], "float32"), AVX2)
    nest = Programs(space).nest(space.default())
    text = assembly(llvm_module("row", nest, AVX2), AVX2)
    compared = {name: len(re.findall(rf"v{name}ps\s.*ymm", text)) for name in (op, "cmpunord", "blendv")}
    assert set(compared.values()) == {ELEMENTS // 8}
