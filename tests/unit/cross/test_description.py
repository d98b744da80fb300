"""Operators as text: what comes back is the same operator, with the same schedule space."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cross.errors import ExpressionError
from cross.expression import Operator, compute, max, placeholder, reduce_axis, sum
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.expression.language.description import from_json, to_json
from cross.expression.language.functions import absolute, equal, exp, logical_not, power
from cross.expression.language.terms import cast, lookup, select
from cross.schedule.cpu_sketch import cpu_space
from tests.fuzz.operators import FAMILIES, random_operator
from tests.targets import AVX2_TWO_CORES as TARGET


def convolution() -> Operator:
    data, weight = placeholder((1, 14, 14, 32), "data"), placeholder((3, 3, 32, 64), "weight")
    output = conv2d(data, weight, Window(pads=(1, 1, 1, 1)), name="C")
    return Operator("conv", (data, weight), output, constants=frozenset({1}))


def everything() -> Operator:
    """One of every term, three stages, and a literal that JSON has no number for."""
    x = placeholder((4, 6), "x")
    unused = placeholder((2,), "unused", "int32")
    k, m = reduce_axis(6, "k"), reduce_axis(3, "m")
    row = compute((4,), lambda i: max(x[i, k], axis=k), name="row")
    table = [[1.0, 2.0, 0.5], [3.0, 4.0, 0.25]]
    mixed = compute(
        (4, 3),
        lambda i, j: select(
            logical_not(equal(i % 2, 1)),
            exp(x[i, j]) * lookup(table, i % 2, j) - power(absolute(row[i]), 2.0),
            -math.inf,
        ),
        name="mixed",
    )
    total = compute((4,), lambda i: sum(mixed[i, m] / cast("float32", i + 1), axis=m), name="total")
    return Operator("all", (x, unused), total)


FAMILY_OPERATORS = [random_operator(np.random.default_rng(3), family) for family in sorted(FAMILIES)]


@pytest.mark.parametrize(
    "operator", [convolution(), everything(), *FAMILY_OPERATORS], ids=lambda operator: operator.name
)
def test_an_operator_comes_back_the_same(operator: Operator) -> None:
    text = to_json(operator)
    again = from_json(text)
    assert again.canonical == operator.canonical
    assert (again.name, again.constants, again.flops) == (operator.name, operator.constants, operator.flops)
    assert [tensor.name for tensor in again.inputs] == [tensor.name for tensor in operator.inputs]
    assert to_json(again) == text
    assert cpu_space(again, TARGET).key == cpu_space(operator, TARGET).key


def test_what_is_no_operator_is_refused() -> None:
    content = json.loads(to_json(convolution()))
    assert from_json(json.dumps(content)).key == convolution().key
    with pytest.raises(ExpressionError, match="described in version 2: this tool reads version 1"):
        from_json(json.dumps(content | {"description_version": 2}))
    broken = [
        content | {"inputs": [99]},
        content | {"tensors": content["tensors"][:2]},
        content | {"tensors": []},
        content | {"tensors": [*content["tensors"][:-1], {**content["tensors"][-1], "dtype": "int8"}]},
    ]
    for case in broken:
        with pytest.raises(ExpressionError):
            from_json(json.dumps(case))


@pytest.mark.slow
@given(st.text(max_size=40) | st.recursive(st.integers() | st.text(max_size=4), st.lists).map(json.dumps))
def test_any_text_is_read_or_refused(text: str) -> None:
    with pytest.raises(ExpressionError):
        from_json(text)


@given(data=st.data())
def test_a_damaged_description_is_refused_or_is_an_operator(data: st.DataObject) -> None:
    text = to_json(everything())
    place = data.draw(st.integers(0, len(text) - 1))
    letter = data.draw(st.sampled_from('0123456789[]{}",:abcdefxyz'))
    try:
        from_json(text[:place] + letter + text[place + 1 :])
    except ExpressionError as error:
        assert str(error)
