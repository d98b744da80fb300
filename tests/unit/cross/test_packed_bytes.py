"""Rounded bytes that wait to be stored together, in every count, and what may not overtake them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import assembly
from cross.expression.language.terms import Binary, Call, Cast, Const
from cross.loopnest.nodes import Allocate, Block, Expr, LoopNest, Scope, Statement
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.nests import argument, load, local, loop, nest, plus, store, unrolled, vectorized
from tests.targets import AVX2, EACH_HOST

ROWS = 3
COLUMNS = (4, 8, 12, 16, 24, 40, 64, 72, 112)
Array = NDArray[Any]


def byte_of(number: Expr, dtype: str, zero: int) -> Expr:
    return Cast(dtype, Binary("+", Call("round", (number,)), Const(float(zero), "float32")))


def rounded(x: Array, dtype: str, zero: int) -> Array:
    """round(x) + zero within the range of the byte; NaN becomes 0."""
    limits = np.iinfo(dtype)
    return np.nan_to_num(np.clip(np.rint(x) + zero, limits.min, limits.max), nan=0.0).astype(dtype)


def numbers(rows: int, columns: int) -> Array:
    """Halves and numbers near them, beyond both ends of a byte, and what is no int32."""
    rng = np.random.default_rng(rows * columns)
    found = (rng.integers(-700, 700, (rows, columns)) / 2).astype(np.float32)
    others = np.array([np.nan, np.inf, -np.inf, 3e38, -3e38, 2.0**31, -(2.0**31), 1e5, -1e5], np.float32)
    places = rng.random(found.shape) < 0.2
    found[places] = rng.choice(others, int(places.sum()))
    return found


def written(rows: int, columns: int, dtype: str, zero: int) -> LoopNest:
    """The byte of every number, rows and columns unrolled, in a loop that runs twice."""
    x, y = argument("x", (2, rows, columns), "input"), argument("y", (2, rows, columns), "output", dtype)
    body = store(y, ("t", "i", "j"), byte_of(load(x, "t", "i", "j"), dtype, zero))
    return nest((x, y), loop("t", 2, unrolled("i", rows, vectorized("j", columns, body))))


@pytest.mark.parametrize("target", EACH_HOST)
def test_any_number_of_vectors_is_stored(target: Target, tmp_path: Path) -> None:
    cases = [
        (rows, columns, *kind)
        for rows in range(1, ROWS + 1)
        for columns in COLUMNS
        for kind in (("uint8", 0), ("uint8", 117), ("int8", -3), ("int8", 0))
    ]
    data = [np.stack([numbers(rows, columns)] * 2) for rows, columns, *_ in cases]
    jobs = [Job(written(*case), [x]) for case, x in zip(cases, data, strict=True)]
    for case, x, got in zip(cases, data, run_here(compile_jobs(jobs, target), jobs, tmp_path), strict=True):
        np.testing.assert_array_equal(got, rounded(x, *case[2:]), err_msg=str(case))


@pytest.mark.parametrize("target", EACH_HOST)
def test_bytes_are_stored_before_they_are_read(target: Target, tmp_path: Path) -> None:
    """By the next statement of the same unrolled row; two vectors of 16 bytes, four of 8, eight of 4."""
    data, columns = numbers(ROWS, 32), 32
    x, y = argument("x", data.shape, "input"), argument("y", data.shape, "output")
    kept = local("t", data.shape, Scope.LOCAL, "uint8")
    written = vectorized("j", columns, store(kept, ("i", "j"), byte_of(load(x, "i", "j"), "uint8", 0)))
    read = vectorized("k", columns, store(y, ("i", "k"), Cast("float32", load(kept, "i", "k"))))
    job = Job(nest((x, y), Allocate(kept, unrolled("i", ROWS, Block((written, read))))), [data])
    (got,) = run_here(compile_jobs([job], target), [job], tmp_path)
    np.testing.assert_array_equal(got, rounded(data, "uint8", 0).astype(np.float32))


@pytest.mark.parametrize("target", EACH_HOST)
def test_what_is_written_later_stays(target: Target, tmp_path: Path) -> None:
    """Each row is written by a rounded byte, then by another array's, one element further on."""
    columns = 32
    x, z = argument("x", (ROWS, columns), "input"), argument("z", (ROWS, columns), "input", "int8")
    y = argument("y", (ROWS, columns + 1), "output", "int8")
    first = vectorized("j", columns, store(y, ("i", "j"), byte_of(load(x, "i", "j"), "int8", 5)))
    second = vectorized("k", columns, store(y, ("i", plus("k", 1)), load(z, "i", "k")))
    made = nest((x, z, y), unrolled("i", ROWS, Block((first, second))))
    data, other = numbers(ROWS, columns), np.arange(ROWS * columns, dtype=np.int8).reshape(ROWS, columns)
    job = Job(made, [data, other])
    (got,) = run_here(compile_jobs([job], target), [job], tmp_path)
    np.testing.assert_array_equal(got, np.hstack([rounded(data[:, :1], "int8", 5), other]))


@pytest.mark.parametrize("target", EACH_HOST)
def test_statements_keep_their_order(target: Target, tmp_path: Path) -> None:
    """Three that write rounded bytes to places that overlap, in vectors of different lengths."""
    x, y = argument("x", (3, 16), "input"), argument("y", (16,), "output", "int8")

    def write(number: int, first: int, extent: int) -> Statement:
        name = f"j{number}"
        value = byte_of(load(x, number, plus(first, name)), "int8", number)
        return vectorized(name, extent, store(y, (plus(first, name),), value))

    inside = Block((write(0, 0, 8), write(1, 0, 16), write(2, 4, 8)))
    data = np.arange(48, dtype=np.float32).reshape(3, 16)
    job = Job(nest((x, y), unrolled("i", 1, inside)), [data])
    (got,) = run_here(compile_jobs([job], target), [job], tmp_path)
    want = data[1] + 1
    want[4:12] = data[2, 4:12] + 2
    np.testing.assert_array_equal(got, want)


def test_four_vectors_share_their_instructions() -> None:
    """Two rows of 16 bytes by AVX2: four vectors of 32-bit integers, no limits of the byte's range."""
    text = assembly(llvm_module("k", written(2, 16, "uint8", 3), AVX2), AVX2)
    count = {name: text.count(name) for name in ("vcvtps2dq", "vpackssdw", "vpackuswb", "vpermd", "vmaxps")}
    assert count == {"vcvtps2dq": 4, "vpackssdw": 2, "vpackuswb": 1, "vpermd": 1, "vmaxps": 0}
