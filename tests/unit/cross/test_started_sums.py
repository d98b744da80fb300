"""Sums of integers that begin with their bias: as many additions less, and the results of the reference."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from boards.target import Target
from cross.codegen.llvm.started_sums import with_started_sums
from cross.expression import Axis, Operator, Term, cast, compute, placeholder, reduce_axis, sum
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, Programs, to_text
from cross.schedule.choose import space_of
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.targets import AVX2, EACH_HOST

ROWS, STEPS, COLUMNS = 5, 7, 53


def product(*, twice: bool = False) -> Operator:
    """a @ b + bias in int32, as float32; `twice`: the sum is read at a second place, too."""
    a, b = placeholder((ROWS, STEPS), "a", "int32"), placeholder((STEPS, COLUMNS), "b", "int32")
    bias, k = placeholder((COLUMNS,), "bias", "int32"), reduce_axis(STEPS, "k")
    summed = compute((ROWS, COLUMNS), lambda i, j: sum(a[i, k] * b[k, j], axis=k), "summed")

    def body(i: Axis, j: Axis) -> Term:
        total = cast("float32", summed[i, j] + bias[j]) * 0.5
        return total + cast("float32", summed[i, j]) if twice else total

    return Operator("product", (a, b, bias), compute((ROWS, COLUMNS), body, "y"), frozenset({1, 2}))


def nests(operator: Operator, target: Target) -> list[LoopNest]:
    """The default program and some drawn ones."""
    space = space_of(operator, target)
    rows = map(space.configuration, space.sample(np.random.default_rng(2), 6))
    return [Programs(space).nest(item) for item in (space.default(), *rows)]


@pytest.mark.parametrize("target", EACH_HOST)
def test_results_are_those_of_the_reference(target: Target, tmp_path: Path) -> None:
    """Near the ends of int32, where sums wrap."""
    rng = np.random.default_rng(4)
    operator = product()
    data = [rng.integers(-(2**31), 2**31, item.shape).astype(np.int32) for item in operator.inputs]
    jobs = [Job(nest, data) for nest in nests(operator, target)]
    for got in run_here(compile_jobs(jobs, target), jobs, tmp_path):
        np.testing.assert_array_equal(got, evaluate(operator, data))


def test_the_sum_starts_with_what_is_added() -> None:
    nest = nests(product(), AVX2)[0]
    before, after = to_text(nest), to_text(with_started_sums(nest))
    assert "init] = int32(0)" in before and "+ bias[" in before
    assert "init] = bias[" in after and "+ bias[" not in after


def test_a_sum_that_is_read_twice_stays_as_it_is() -> None:
    nest = nests(product(twice=True), AVX2)[0]
    assert with_started_sums(nest) is nest
