"""The numpy reference against plain Python loops and numpy's own functions."""

from __future__ import annotations

import itertools
import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression import (
    Operator,
    Tensor,
    cast,
    compute,
    erf,
    maximum,
    placeholder,
    reduce_axis,
    select,
    sum,
)
from cross.expression.families.conv import conv2d, depthwise_conv, grouped_conv
from cross.expression.families.data_movement import concat, pad, strided_slice, transpose
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.elementwise import bias_add
from cross.expression.families.norm import softmax
from cross.expression.families.pool import pool2d, reduce
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from tests.other_operators import conv2d_nchw

Array = NDArray[Any]


def exact(array: Array) -> Array:
    """For a reference in float64: what numpy makes of float32 depends on how a CPU sums."""
    return array.astype(np.float64)


def floats(*shape: int) -> Array:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def result(output: Tensor, inputs: dict[Tensor, Array]) -> Array:
    return evaluate(Operator("test", tuple(inputs), output), list(inputs.values()))


def test_dense_with_bias_and_activation() -> None:
    a, b, c = placeholder((5, 7), "a"), placeholder((7, 3), "b"), placeholder((3,), "c")
    x, w, v = floats(5, 7), floats(7, 3), floats(3)
    biased = bias_add(dense(a, b), c)
    output = compute((5, 3), lambda i, j: maximum(biased[i, j], 0.0))
    got = result(output, {a: x, b: w, c: v})
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, np.maximum(exact(x) @ w + v, 0), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "window", [Window(), Window((2, 1), (1, 0, 2, 1)), Window((1, 2), (2, 2, 2, 2), (2, 1))]
)
def test_convolutions(window: Window) -> None:
    kernel = (3, 2)
    data, weight = floats(2, 7, 8, 4), floats(3, 2, 4, 6)
    before, after = window.before, window.after
    padded = np.pad(data, [(0, 0), (before[0], after[0]), (before[1], after[1]), (0, 0)])
    (sh, sw), (dh, dw) = window.strides, window.dilations
    oh, ow = window.output((7, 8), kernel)
    want = np.zeros((2, oh, ow, 6))
    for y, x, r, s in itertools.product(range(oh), range(ow), range(3), range(2)):
        want[:, y, x] += padded[:, y * sh + r * dh, x * sw + s * dw].astype(np.float64) @ weight[r, s]
    x, w = placeholder(data.shape, "x"), placeholder(weight.shape, "w")
    np.testing.assert_allclose(result(conv2d(x, w, window), {x: data, w: weight}), want, rtol=1e-5, atol=1e-6)
    channels_first = data.transpose(0, 3, 1, 2), weight.transpose(3, 2, 0, 1)
    x, w = placeholder(channels_first[0].shape, "x"), placeholder(channels_first[1].shape, "w")
    got = result(conv2d_nchw(x, w, window), {x: channels_first[0], w: channels_first[1]})
    np.testing.assert_allclose(got.transpose(0, 2, 3, 1), want, rtol=1e-5, atol=1e-6)


def test_grouped_and_depthwise_convolutions_are_dense_ones_per_group() -> None:
    data, weight = floats(1, 5, 5, 3, 2), floats(3, 3, 3, 2, 4)
    x, w = placeholder(data.shape, "x"), placeholder(weight.shape, "w")
    got = result(grouped_conv(x, w, Window()), {x: data, w: weight})
    for group in range(3):
        part, kernel = np.ascontiguousarray(data[..., group, :]), weight[group]
        px, pw = placeholder(part.shape, "x"), placeholder(kernel.shape, "w")
        want = result(conv2d(px, pw, Window()), {px: part, pw: kernel})
        np.testing.assert_allclose(got[..., group, :], want, rtol=1e-6)
    image, taps = floats(1, 5, 5, 3), floats(3, 3, 3)
    x, w = placeholder(image.shape, "x"), placeholder(taps.shape, "w")
    got = result(depthwise_conv(x, w, Window()), {x: image, w: taps})
    windows = np.lib.stride_tricks.sliding_window_view(image, (3, 3), (1, 2))
    np.testing.assert_allclose(got, np.einsum("byxcij,ijc->byxc", exact(windows), taps), rtol=1e-5, atol=1e-6)


def test_batches_broadcast() -> None:
    data, other = floats(3, 4, 5), floats(1, 5, 2)
    a, b = placeholder(data.shape, "a"), placeholder(other.shape, "b")
    np.testing.assert_allclose(
        result(batch_matmul(a, b), {a: data, b: other}), exact(data) @ other, rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(("combiner", "want"), [("max", np.max), ("min", np.min), ("sum", np.sum)])
def test_reductions(combiner: str, want: Any) -> None:
    data = floats(4, 6, 5)
    x = placeholder(data.shape, "x")
    whole = result(reduce(x, (0, 2), combiner, keep=False), {x: data})
    np.testing.assert_allclose(whole, want(exact(data), axis=(0, 2)), rtol=1e-5)
    operator = Operator("pieces", (x,), reduce(x, (0, 2), combiner, keep=False))
    np.testing.assert_allclose(evaluate(operator, [data], block_elements=8), whole, rtol=1e-6)
    image = floats(1, 6, 6, 2)
    y = placeholder(image.shape, "y")
    windows = np.lib.stride_tricks.sliding_window_view(image, (2, 3), (1, 2))[:, ::2, ::1]
    got = result(pool2d(y, (2, 3), Window((2, 1)), combiner), {y: image})
    np.testing.assert_allclose(got, want(exact(windows), axis=(-2, -1)), rtol=1e-5)


def test_softmax_sums_to_one() -> None:
    data = floats(3, 9)
    x = placeholder(data.shape, "x")
    exponents = np.exp(data.astype(float))
    np.testing.assert_allclose(
        result(softmax(x, 1), {x: data}), exponents / exponents.sum(1, keepdims=True), rtol=1e-6
    )


def test_data_movement() -> None:
    data, other = floats(3, 4), floats(3, 2)
    x, y = placeholder(data.shape, "x"), placeholder(other.shape, "y")
    np.testing.assert_array_equal(result(transpose(x, (1, 0)), {x: data}), data.T)
    np.testing.assert_array_equal(result(concat([x, y], 1), {x: data, y: other}), np.hstack([data, other]))
    np.testing.assert_array_equal(
        result(pad(x, (1, 0), (0, 2), 3.0), {x: data}), np.pad(data, ((1, 0), (0, 2)), constant_values=3)
    )
    np.testing.assert_array_equal(
        result(strided_slice(x, (2, 0), (-1, 2), (3, 2)), {x: data}), data[::-1, ::2]
    )


def test_sums_accumulate_in_float64() -> None:
    data = np.full(2**16 + 1, 1e-3, np.float32)
    data[0] = 1e5
    x, k = placeholder(data.shape, "x"), reduce_axis(len(data), "k")
    got = result(compute((1,), lambda i: sum(x[k], k)), {x: data})
    assert got[0] == np.float32(data.astype(float).sum())


def test_integers_keep_their_dtype() -> None:
    data = np.array([100, 100, -100], np.int8)
    x = placeholder((3,), "x", "int8")
    wrapped = result(compute((3,), lambda i: x[i] + x[i]), {x: data})
    assert wrapped.tolist() == [-56, -56, 56]
    widened = result(compute((3,), lambda i: cast("int32", x[i]) * cast("int32", x[i])), {x: data})
    assert widened.dtype == np.int32
    assert widened.tolist() == [10000] * 3


def test_functions_of_float32_are_right_to_the_last_bit() -> None:
    data = floats(50)
    x = placeholder((50,), "x")
    got = result(compute((50,), lambda i: erf(x[i])), {x: data})
    from_double = [np.float32(value) for value in np.vectorize(math.erf)(data.astype(float))]
    assert got.tolist() == from_double


def test_a_read_out_of_range_is_refused_unless_it_is_never_made() -> None:
    x = placeholder((4,), "x")
    data = floats(4)
    with pytest.raises(ExpressionError, match=r"shifted reads x at 1 to 4 in dimension 0, expected 0 to 3"):
        result(compute((4,), lambda i: x[i + 1], name="shifted"), {x: data})
    guarded = compute((4,), lambda i: select(i < 3, x[i + 1], 0.0))
    np.testing.assert_array_equal(result(guarded, {x: data}), [*data[1:], 0])


def test_inputs_that_do_not_fit_are_refused() -> None:
    x = placeholder((4,), "x")
    operator = Operator("shift", (x,), compute((4,), lambda i: x[i]))
    with pytest.raises(ExpressionError, match="expected 1 inputs, found 0"):
        evaluate(operator, [])
    with pytest.raises(ExpressionError, match=r"input x is float32\[4\], found float64\[4\]"):
        evaluate(operator, [np.zeros(4)])
    with pytest.raises(ExpressionError, match=r"found float32\[5\]"):
        evaluate(operator, [floats(5)])


def test_the_inputs_are_left_alone_and_the_output_is_new() -> None:
    x = placeholder((4,), "x", "float64")
    data = np.arange(4.0)
    got = evaluate(Operator("same", (x,), compute((4,), lambda i: x[i])), [data])
    got[:] = 7
    assert data.tolist() == [0, 1, 2, 3]
