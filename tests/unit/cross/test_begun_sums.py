"""Sums of integers begin with their biases: where that says the same, and nowhere else."""

from __future__ import annotations

import numpy as np
import pytest

from cross.codegen.llvm.begun_sums import with_begun_sums
from cross.expression import Operator, cast, placeholder
from cross.expression.families.dense import dense
from cross.expression.families.elementwise import apply, bias_add
from cross.expression.families.pool import reduce
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.schedule.choose import space_of
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2


def operator(dtype: str = "int32") -> Operator:
    """A matrix product with a bias, as bytes: 37 columns, which no vector divides."""
    x, w, bias = (
        placeholder(shape, name, dtype) for shape, name in (((6, 12), "x"), ((12, 37), "w"), ((37,), "b"))
    )
    output = apply(lambda total: cast("int8", total), bias_add(dense(x, w, "product"), bias, 1), "bytes")
    return Operator("product", (x, w, bias), output, frozenset({1, 2}))


def nests(made: Operator, count: int) -> list[LoopNest]:
    """Of the untuned program and of drawn ones."""
    space = space_of(made, AVX2)
    rows = space.sample(np.random.default_rng(3), count - 1)
    programs = Programs(space)
    return [programs.nest(item) for item in (space.default(), *map(space.configuration, rows))]


def test_sums_begin_with_the_bias() -> None:
    (nest,) = nests(operator(), 1)
    assert "+ b[" in to_text(nest) and "= int32(0)" in to_text(nest)
    begun = to_text(with_begun_sums(nest))
    assert "+ b[" not in begun and "= b[" in begun and "= int32(0)" not in begun


def test_a_maximum_does_not_begin_with_what_is_added_to_it() -> None:
    x, bias = placeholder((6, 5, 16), "x", "int32"), placeholder((16,), "b", "int32")
    output = bias_add(reduce(x, (1,), "max", name="most"), bias, 1)
    for nest in nests(Operator("most", (x, bias), output, frozenset({1})), 4):
        assert with_begun_sums(nest) == nest


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_the_results_are_the_same(dtype: str) -> None:
    made, rng = operator(dtype), np.random.default_rng(4)
    inputs = [rng.integers(-4, 4, item.shape).astype(dtype) for item in made.inputs]
    changed = 0
    for nest in nests(made, 12):
        begun = with_begun_sums(nest)
        changed += begun != nest
        verify(begun)
        np.testing.assert_array_equal(interpret(begun, inputs), evaluate(made, inputs))
    assert changed > 3 if dtype == "int32" else changed == 0
