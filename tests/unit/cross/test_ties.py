"""Integers rounded from floats that depend on who computes them: what is right beside the reference."""

from __future__ import annotations

import numpy as np
import pytest

from cross.expression import Operator, Tensor, cast, compute, placeholder, reduce_axis
from cross.expression import sum as sum_of
from cross.expression.language.terms import call
from cross.expression.reference import evaluate
from cross.expression.reference.ties import ERROR, inexact_stages, nudged_stages

SIDE = 64


def rounded(tensor: Tensor) -> Tensor:
    return compute(tensor.shape, lambda *i: cast("int32", call("round", tensor[i])), name="rounded")


def row_sums(x: Tensor) -> Tensor:
    k = reduce_axis(SIDE, "k")
    return compute((x.shape[0],), lambda i: sum_of(x[i, k], k), name="sums")


def sums_operator(dtype: str = "float32") -> Operator:
    x = placeholder((8, SIDE), "x", dtype)
    sums = row_sums(x)
    halved = compute(sums.shape, lambda i: cast("float32", sums[i]) * 0.5, name="halved")
    return Operator("sums", (x,), rounded(halved))


def test_sums_of_floats_may_be_rounded_either_way_midway_between_two_integers() -> None:
    x = np.zeros((8, SIDE), np.float32)
    x[:, 0] = [5.0, 5.0, 5.0, 5.0, 4.0, -3.0, 100.0, 6.9]
    last = 100.0 * 2.0**-23  # about the last bit of the largest sum
    x[1, 1], x[2, 1], x[3, 1] = last, -last, 100 * ERROR * last
    found = [evaluate(sums_operator(), [x], direction=direction).tolist() for direction in (-1.0, 0.0, 1.0)]
    least, nearest, most = found
    assert nearest == [2, 3, 2, 3, 2, -2, 50, 3]
    assert least == [2, 2, 2, 3, 2, -2, 50, 3]
    assert most == [3, 3, 3, 3, 2, -1, 50, 3]


def test_what_everybody_computes_alike_has_one_answer() -> None:
    """Sums of integers, and a single product of floats."""
    integers = sums_operator("int32")
    assert not nudged_stages(integers)
    x = np.full((8, SIDE), 0, np.int32)
    x[:, 0] = np.arange(8)
    expected = evaluate(integers, [x])
    assert np.array_equal(expected, np.rint(np.arange(8) * 0.5))
    for direction in (-1.0, 1.0):
        assert np.array_equal(evaluate(integers, [x], direction=direction), expected)
    y = placeholder((8,), "y")
    product = Operator("product", (y,), rounded(compute((8,), lambda i: y[i] * 0.5, name="half")))
    assert not nudged_stages(product)
    values = np.arange(8, dtype=np.float32)
    assert np.array_equal(evaluate(product, [values], direction=1.0), np.rint(values / 2))
    # unless its operand depends on who computed it
    moved = evaluate(product, [values], direction=1.0, inexact={y})
    assert np.array_equal(moved, np.floor(values / 2 + 0.5))


@pytest.mark.parametrize(
    ("function", "inexact"), [("exp", True), ("tanh", True), ("sqrt", False), ("abs", False)]
)
def test_long_functions_are_inexact(function: str, inexact: bool) -> None:
    x = placeholder((8,), "x")
    operator = Operator("f", (x,), rounded(compute((8,), lambda i: call(function, x[i]), name="f")))
    assert bool(nudged_stages(operator)) == inexact
    assert bool(inexact_stages(operator)) == inexact


def test_floats_that_are_not_rounded_have_one_answer() -> None:
    x = placeholder((8, SIDE), "x")
    operator = Operator("sums", (x,), row_sums(x))
    assert not nudged_stages(operator)
    values = np.random.default_rng(0).uniform(-1, 1, (8, SIDE)).astype(np.float32)
    assert np.array_equal(evaluate(operator, [values], direction=1.0), evaluate(operator, [values]))
