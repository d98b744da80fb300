"""Dimensions that an operator goes over alike, joined: which ones, and what is computed then."""

from __future__ import annotations

import numpy as np
import pytest

from cross.expression import Operator, Tensor, compute, maximum, placeholder, reduce_axis, select, sum
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.expression.language.operator import Subview, reachable
from cross.expression.reference import evaluate
from cross.expression.rewrites.joined_dimensions import with_joined_dimensions
from cross.expression.rewrites.parts import with_parts
from tests.fuzz.operators import FAMILIES, random_inputs, random_operator
from tests.fuzz.test_parts import around

SHAPE = (1, 5, 7, 6)
DATA = placeholder(SHAPE, "data")


def of(output: Tensor) -> Operator:
    """The operator of a tensor; its inputs in the order in which it reads them."""
    return Operator("op", tuple(item for item in reachable(output) if item.body is None), output)


def convolved(kernel: int = 1, stride: int = 1) -> Tensor:
    """DATA by a window without padding, to four channels."""
    weight = placeholder((kernel, kernel, SHAPE[-1], 4), "weight")
    return conv2d(DATA, weight, Window((stride, stride)))


def shapes(operator: Operator) -> list[tuple[int, ...]]:
    """Of the inputs and of the output with dimensions joined; the same elements are computed."""
    joined = with_joined_dimensions(operator)
    inputs = random_inputs(operator, np.random.default_rng(3))
    given = [data.reshape(item.shape) for data, item in zip(inputs, joined.inputs, strict=True)]
    want, got = evaluate(operator, inputs), evaluate(joined, given)
    assert got.shape == joined.output.shape and joined.name == operator.name
    np.testing.assert_allclose(got.reshape(want.shape), want, rtol=1e-5, atol=1e-5)
    return [item.shape for item in (*joined.inputs, joined.output)]


def test_a_pointwise_convolution_sees_all_pixels_alike() -> None:
    product, bias = convolved(), placeholder((4,), "bias")
    other = placeholder((1, 5, 7, 4), "other")
    added = compute((1, 5, 7, 4), lambda n, y, x, c: product[n, y, x, c] + bias[c], name="bias_add")
    output = compute((1, 5, 7, 4), lambda n, y, x, c: maximum(added[n, y, x, c] + other[0, y, x, c], 0.0))
    assert shapes(of(output)) == [(1, 35, 6), (1, 1, 6, 4), (4,), (1, 35, 4), (1, 35, 4)]


def test_images_of_a_batch_are_joined_as_well() -> None:
    data, weight = placeholder((2, 5, 7, 6), "data"), placeholder((1, 1, 6, 4), "weight")
    assert shapes(of(conv2d(data, weight, Window()))) == [(70, 6), (1, 1, 6, 4), (70, 4)]


def test_windows_and_strides_keep_rows() -> None:
    for kernel, stride in ((3, 1), (1, 2)):
        operator = of(convolved(kernel, stride))
        assert with_joined_dimensions(operator) is operator


def test_a_window_of_joined_operators_keeps_the_rows_of_all() -> None:
    product, k = convolved(), reduce_axis(3, "k")
    output = compute((1, 3, 7, 4), lambda n, y, x, c: sum(product[n, y + k, x, c], axis=k))
    operator = of(output)
    assert with_joined_dimensions(operator) is operator


def test_what_knows_its_place_keeps_it() -> None:
    """Guards, and vectors along one of the dimensions, ask for rows or columns."""
    product, column = convolved(), placeholder((7,), "column")
    guarded = compute((1, 5, 7, 4), lambda n, y, x, c: select(y < 2, product[n, y, x, c], 0.0))
    added = compute((1, 5, 7, 4), lambda n, y, x, c: product[n, y, x, c] + column[x])
    turned = compute((1, 7, 5, 4), lambda n, x, y, c: product[n, y, x, c])
    once = compute((1, 5, 7, 4), lambda n, y, x, c: product[n, y, x, c] + product[n, y, 0, c])
    for output in (guarded, added, turned, once):
        operator = of(output)
        assert with_joined_dimensions(operator) is operator, operator.canonical


def test_matrices_of_a_batch_are_joined_where_all_take_the_same_second_one() -> None:
    k = reduce_axis(5, "k")
    left, own, shared = (placeholder(shape, "m") for shape in ((3, 4, 5), (3, 5, 8), (5, 8)))
    apart = of(compute((3, 4, 8), lambda b, i, j: sum(left[b, i, k] * own[b, k, j], axis=k)))
    assert with_joined_dimensions(apart) is apart
    same = of(compute((3, 4, 8), lambda b, i, j: sum(left[b, i, k] * shared[k, j], axis=k)))
    assert shapes(same) == [(12, 5), (5, 8), (12, 8)]


def test_parts_are_joined_where_their_rows_are_whole() -> None:
    """Channels may be a part of more; of fewer columns than there are, rows do not lie side by side."""
    operator = of(convolved())
    wide = with_parts(
        operator, {0: Subview((1, 9, 7, 16), (0, 2, 0, 8))}, Subview((1, 8, 7, 9), (0, 3, 0, 5))
    )
    joined = with_joined_dimensions(wide)
    assert [item.shape for item in joined.inputs] == [(1, 63, 16), (1, 1, 6, 4)]
    assert joined.destination == Subview((1, 56, 9), (0, 21, 5))
    inputs = random_inputs(wide, np.random.default_rng(5))
    given = [data.reshape(item.shape) for data, item in zip(inputs, joined.inputs, strict=True)]
    want = evaluate(wide, inputs)
    np.testing.assert_allclose(evaluate(joined, given).reshape(want.shape), want, rtol=1e-5, atol=1e-5)
    for narrow in (
        with_parts(operator, {0: Subview((1, 5, 9, 6), (0, 0, 1, 0))}, None),
        with_parts(operator, {}, Subview((1, 5, 9, 4), (0, 0, 1, 0))),
    ):
        assert with_joined_dimensions(narrow) is narrow


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_random_operators_compute_the_same_elements(family: str) -> None:
    for seed in range(6):
        rng = np.random.default_rng([61, seed])
        operator = random_operator(rng, family)
        if seed % 2:
            starts = {0: around(operator.inputs[0].shape, rng)} if 0 not in operator.constants else {}
            operator = with_parts(operator, starts, around(operator.output.shape, rng))
        joined, inputs = with_joined_dimensions(operator), random_inputs(operator, rng)
        given = [data.reshape(item.shape) for data, item in zip(inputs, joined.inputs, strict=True)]
        want, got = evaluate(operator, inputs), evaluate(joined, given)
        allowed = 1e-5 * np.abs(want).max(initial=0.0)
        np.testing.assert_allclose(
            got.reshape(want.shape), want, rtol=0, atol=allowed, equal_nan=True, err_msg=operator.canonical
        )
        whole = np.zeros(operator.written, bool)
        whole[operator.part] = True
        placed = np.zeros(joined.written, bool)
        placed[joined.part] = True
        np.testing.assert_array_equal(placed.reshape(whole.shape), whole)
