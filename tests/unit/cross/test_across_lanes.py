"""Reductions along memory: the last vector of partial results is combined in registers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.llvm.across_lanes import FEWEST
from cross.codegen.llvm.module import llvm_module
from cross.expression import Operator, placeholder
from cross.expression.families.data_movement import concat
from cross.expression.families.norm import softmax
from cross.expression.families.pool import reduce
from cross.loopnest import Programs
from cross.loopnest.nodes import LoopNest
from cross.schedule import cpu_space
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.targets import AVX2, EACH_HOST, HOST

FUNCTIONS = {"sum": np.sum, "prod": np.prod, "max": np.max, "min": np.min}


def reduction(combiner: str, shape: tuple[int, ...], dtype: str = "float32") -> Operator:
    source = placeholder(shape, "x", dtype)
    return Operator("r", (source,), reduce(source, (len(shape) - 1,), combiner, keep=False))


def untuned(operator: Operator, target: Target = HOST) -> LoopNest:
    space = cpu_space(operator, target)
    return Programs(space).nest(space.default())


@pytest.mark.parametrize("target", EACH_HOST)
@pytest.mark.parametrize("combiner", FUNCTIONS)
@pytest.mark.parametrize("shape", [(37, 192), (2, 5, 197), (250,)])
def test_rows_are_reduced(combiner: str, shape: tuple[int, ...], target: Target, tmp_path: Path) -> None:
    operator = reduction(combiner, shape)
    data = np.random.default_rng(3).uniform(0.9, 1.1, shape).astype(np.float32)
    job = Job(untuned(operator, target), [data])
    (got,) = run_here(compile_jobs([job], target), [job], tmp_path)
    want = FUNCTIONS[combiner](data.astype(np.float64), axis=-1)
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=3e-6)


@pytest.mark.parametrize("combiner", FUNCTIONS)
@pytest.mark.parametrize("target", [AVX2, load("rpi3b").target(None)], ids=["avx2", "a53"])
def test_lanes_that_end_before_a_vector_are_asked_in_32_bits(combiner: str, target: Target) -> None:
    """As wide as the floats, so that no mask is packed together."""
    text = llvm_module("k", untuned(reduction(combiner, (6, 197)), target), target)
    asked = re.findall(r"icmp (\w+) <(\d+) x (\w+)>", text)
    assert {(lanes, kind) for _, lanes, kind in asked} == {(str(target.vector_lanes()), "i32")}


@pytest.mark.parametrize(("columns", "lanes"), [(64, False), (60, True)])
def test_a_seam_between_vectors_is_asked_once_for_all_lanes(columns: int, lanes: bool) -> None:
    parts = [placeholder((10, columns), name) for name in "ab"]
    nest = untuned(Operator("c", tuple(parts), concat(parts, 1)), AVX2)
    assert ("icmp sle <8 x i32>" in llvm_module("k", nest, AVX2)) is lanes


@pytest.mark.parametrize("combiner", ["max", "min"])
@pytest.mark.parametrize("place", [0, 3, 15, 16, 100, 191])
def test_a_nan_anywhere_is_the_result(combiner: str, place: int, tmp_path: Path) -> None:
    data = np.random.default_rng(4).normal(0, 1, (40, 192)).astype(np.float32)
    data[7, place] = np.nan
    job = Job(untuned(reduction(combiner, data.shape)), [data])
    (got,) = run_here(compile_jobs([job], HOST), [job], tmp_path)
    np.testing.assert_array_equal(got, FUNCTIONS[combiner](data, axis=-1))


@pytest.mark.parametrize("lanes_of_rows", [1, 4])
def test_vectors_are_halved_where_rows_come_one_by_one(lanes_of_rows: int, tmp_path: Path) -> None:
    """Of several rows in a vector, which a search may choose, the elements are gathered as before."""
    operator = reduction("sum", (40, 192))
    space = cpu_space(operator, HOST)
    described = space.describe(space.default())
    (knob,) = [name for name in described if name.endswith(".i0") and ".rf" not in name]
    described[knob] = [1, 1, lanes_of_rows]
    nest = Programs(space).nest(space.parse(described))
    assert ("extractelement" in llvm_module("k", nest, HOST)) == (lanes_of_rows == 1)
    data = np.random.default_rng(5).uniform(-1, 1, (40, 192)).astype(np.float32)
    job = Job(nest, [data])
    (got,) = run_here(compile_jobs([job], HOST), [job], tmp_path)
    np.testing.assert_allclose(got, data.sum(axis=-1, dtype=np.float64), atol=2e-5)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float64"])
@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
def test_numbers_of_other_dtypes_are_halved_as_well(combiner: str, dtype: str, tmp_path: Path) -> None:
    data = np.random.default_rng(7).integers(-1000, 1000, (40, 192)).astype(dtype)
    nest = untuned(reduction(combiner, data.shape, dtype))
    if HOST.vector_lanes(data.itemsize) >= FEWEST:
        assert "extractelement" in llvm_module("k", nest, HOST)
    job = Job(nest, [data])
    (got,) = run_here(compile_jobs([job], HOST), [job], tmp_path)
    np.testing.assert_array_equal(got, FUNCTIONS[combiner](data, axis=-1))


def test_cores_in_order_keep_their_loops() -> None:
    board = load("rpi3b").target(None)
    assert "extractelement" not in llvm_module("k", untuned(reduction("sum", (40, 192)), board), board)


def test_a_softmax_is_exact(tmp_path: Path) -> None:
    data = np.random.default_rng(6).normal(0, 4, (9, 131)).astype(np.float32)
    source = placeholder(data.shape, "x")
    job = Job(untuned(Operator("s", (source,), softmax(source, 1))), [data])
    (got,) = run_here(compile_jobs([job], HOST), [job], tmp_path)
    powers = np.exp(data.astype(np.float64) - data.max(axis=1, keepdims=True))
    np.testing.assert_allclose(got, powers / powers.sum(axis=1, keepdims=True), rtol=2e-6, atol=1e-9)
