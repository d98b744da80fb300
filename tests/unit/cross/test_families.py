"""The operator families against plain numpy, their keys, their work, and what they refuse."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression import Operator, Tensor, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv, grouped_conv
from cross.expression.families.data_movement import (
    concat,
    edge_pad,
    expand,
    pad,
    reflect_pad,
    strided_slice,
    transpose,
)
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.elementwise import (
    BINARY,
    UNARY,
    apply,
    bias_add,
    broadcast_shape,
    clip,
    combine,
    elu,
    hard_sigmoid,
    where,
)
from cross.expression.families.norm import layer_norm, local_response_norm, normalize, softmax
from cross.expression.families.pool import pool2d, reduce
from cross.expression.families.window import Window
from cross.expression.language.operator import reachable
from cross.expression.reference import evaluate
from tests.other_operators import conv2d_nchw, frobenius_norm

Array = NDArray[Any]
RNG = np.random.default_rng(11)


def randoms(*tensors: Tensor, low: float = -1.0) -> list[Array]:
    return [RNG.uniform(low, 1.0, tensor.shape).astype(tensor.dtype) for tensor in tensors]


def exact(array: Array) -> Array:
    """For a reference in float64: what numpy makes of float32 depends on how a CPU sums."""
    return array.astype(np.float64)


def run(output: Tensor, inputs: dict[Tensor, Array]) -> Array:
    return evaluate(Operator("test", tuple(inputs), output), list(inputs.values()))


def convolved(data: Array, weight: Array, window: Window, combine_axes: str) -> Array:
    """Windows of the padded NHWC image [n, oh, ow, c..., kh, kw] contracted with the weights."""
    top, left, bottom, right = window.pads
    padded = np.pad(exact(data), [(0, 0), (top, bottom), (left, right)] + [(0, 0)] * (data.ndim - 3))
    (dh, dw), (sh, sw) = window.dilations, window.strides
    kh, kw = (weight.shape[:2]) if combine_axes.split(",")[1].startswith("hw") else weight.shape[1:3]
    reach = (kh - 1) * dh + 1, (kw - 1) * dw + 1
    views = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=(1, 2))
    views = views[:, ::sh, ::sw][..., ::dh, ::dw]
    return np.einsum(combine_axes, views, weight)


WINDOWS = [
    Window(),
    Window(strides=(2, 3)),
    Window(pads=(1, 0, 2, 1)),
    Window(strides=(2, 1), pads=(1, 1, 1, 1), dilations=(2, 1)),
]


@pytest.mark.parametrize("window", WINDOWS, ids=str)
class TestConvolutions:
    def test_nhwc(self, window: Window) -> None:
        data, weight = placeholder((2, 7, 8, 3), "X"), placeholder((3, 2, 3, 5), "W")
        arrays = randoms(data, weight)
        got = run(conv2d(data, weight, window), dict(zip((data, weight), arrays, strict=True)))
        want = convolved(arrays[0], arrays[1], window, "nyxchw,hwco->nyxo")
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    def test_nchw_is_nhwc_transposed(self, window: Window) -> None:
        data, weight = placeholder((2, 3, 7, 8), "X"), placeholder((5, 3, 3, 2), "W")
        x, w = randoms(data, weight)
        got = run(conv2d_nchw(data, weight, window), {data: x, weight: w})
        want = convolved(x.transpose(0, 2, 3, 1), w.transpose(2, 3, 1, 0), window, "nyxchw,hwco->nyxo")
        np.testing.assert_allclose(got, want.transpose(0, 3, 1, 2), rtol=1e-5, atol=1e-5)

    def test_grouped(self, window: Window) -> None:
        data, weight = placeholder((1, 7, 8, 2, 3), "X"), placeholder((2, 3, 2, 3, 4), "W")
        x, w = randoms(data, weight)
        got = run(grouped_conv(data, weight, window), {data: x, weight: w})
        want = convolved(x, w, window, "nyxgchw,ghwco->nyxgo")
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    def test_depthwise(self, window: Window) -> None:
        data, weight = placeholder((1, 7, 8, 5), "X"), placeholder((3, 2, 5), "W")
        x, w = randoms(data, weight)
        got = run(depthwise_conv(data, weight, window), {data: x, weight: w})
        np.testing.assert_allclose(got, convolved(x, w, window, "nyxchw,hwc->nyxc"), rtol=1e-5, atol=1e-5)


def test_convolution_without_padding_has_no_pad_stage() -> None:
    data, weight = placeholder((1, 5, 5, 2), "X"), placeholder((3, 3, 2, 4), "W")
    names = [
        [item.name for item in reachable(conv2d(data, weight, window)) if item.body is not None]
        for window in (Window(), Window(pads=(1, 1, 1, 1)))
    ]
    assert names == [["conv"], ["pad", "conv"]]


def test_products() -> None:
    a, b = placeholder((4, 5), "A"), placeholder((5, 6), "B")
    x, y = randoms(a, b)
    np.testing.assert_allclose(run(dense(a, b), {a: x, b: y}), exact(x) @ y, rtol=1e-5, atol=1e-6)
    c, d = placeholder((2, 1, 4, 5), "C"), placeholder((3, 5, 6), "D")
    x, y = randoms(c, d)
    np.testing.assert_allclose(run(batch_matmul(c, d), {c: x, d: y}), exact(x) @ y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
def test_pools_and_reductions(combiner: str) -> None:
    data = placeholder((2, 5, 6, 3), "X")
    (x,) = randoms(data)
    numpy_reduce: Callable[..., Array] = getattr(np, combiner)
    fill = {"sum": 0.0, "max": -np.inf, "min": np.inf}[combiner]
    padded = np.pad(exact(x), [(0, 0), (1, 0), (0, 1), (0, 0)], constant_values=fill)
    views = np.lib.stride_tricks.sliding_window_view(padded, (3, 2), axis=(1, 2))[:, ::2]
    got = run(pool2d(data, (3, 2), Window(strides=(2, 1), pads=(1, 0, 0, 1)), combiner), {data: x})
    np.testing.assert_allclose(got, numpy_reduce(views, axis=(-2, -1)), rtol=1e-6)
    for keep in (True, False):
        got = run(reduce(data, (1, 3), combiner, keep), {data: x})
        np.testing.assert_allclose(
            got, numpy_reduce(exact(x), axis=(1, 3), keepdims=keep), rtol=1e-5, atol=1e-6
        )
    everything = run(reduce(data, (0, 1, 2, 3), combiner, keep=False), {data: x})
    assert everything.shape == (1,)


def test_normalizations() -> None:
    data, scale, shift = placeholder((3, 7), "X"), placeholder((7,), "s"), placeholder((7,), "b")
    x, s, b = randoms(data, scale, shift)
    for axis in (0, 1):
        e = np.exp(exact(x) - x.max(axis=axis, keepdims=True))
        np.testing.assert_allclose(
            run(softmax(data, axis), {data: x}), e / e.sum(axis=axis, keepdims=True), rtol=1e-6
        )
    got = run(layer_norm(data, scale, shift, 1e-3), {data: x, scale: s, shift: b})
    x = exact(x)
    want = (x - x.mean(1, keepdims=True)) / np.sqrt(x.var(1, keepdims=True) + 1e-3) * s + b
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    image = placeholder((2, 4, 5, 3), "I")
    (v,) = randoms(image)
    got = run(normalize(image, (1, 2), 1e-3), {image: v})
    v = exact(v)
    want = (v - v.mean((1, 2), keepdims=True)) / np.sqrt(v.var((1, 2), keepdims=True) + 1e-3)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)
    matrices = placeholder((4, 3, 5), "M")
    (m,) = randoms(matrices)
    np.testing.assert_allclose(
        run(frobenius_norm(matrices), {matrices: m}), np.linalg.norm(exact(m), axis=(1, 2)), rtol=1e-6
    )


def test_local_response_norm() -> None:
    data = placeholder((1, 2, 2, 6), "X")
    (x,) = randoms(data)
    for size in (1, 3, 4):
        sums = np.stack(
            [
                np.square(exact(x)[..., max(c - (size - 1) // 2, 0) : c + size // 2 + 1]).sum(-1)
                for c in range(x.shape[-1])
            ],
            axis=-1,
        )
        for beta in (0.5, 0.6, 0.75):
            want = x / (2.0 + 0.3 / size * sums) ** beta
            got = run(local_response_norm(data, size, (0.3, beta, 2.0)), {data: x})
            np.testing.assert_allclose(got, want, rtol=1e-6)


def test_movements() -> None:
    data, other = placeholder((4, 5, 3), "X"), placeholder((4, 2, 3), "Y")
    x, y = randoms(data, other)
    one = {data: x}
    before, after = (1, 0, 2), (0, 3, 1)
    widths = list(zip(before, after, strict=True))
    np.testing.assert_array_equal(
        run(pad(data, before, after, 0.5), one), np.pad(x, widths, constant_values=np.float32(0.5))
    )
    np.testing.assert_array_equal(
        run(reflect_pad(data, before, after), one), np.pad(x, widths, mode="reflect")
    )
    np.testing.assert_array_equal(run(edge_pad(data, before, after), one), np.pad(x, widths, mode="edge"))
    np.testing.assert_array_equal(run(expand(other, (4, 2, 3)), {other: y}), np.broadcast_to(y, (4, 2, 3)))
    single = placeholder((4, 1, 3), "Z")
    (z,) = randoms(single)
    np.testing.assert_array_equal(run(expand(single, (4, 5, 3)), {single: z}), np.broadcast_to(z, (4, 5, 3)))
    np.testing.assert_array_equal(run(transpose(data, (2, 0, 1)), one), x.transpose(2, 0, 1))
    np.testing.assert_array_equal(
        run(strided_slice(data, (1, 4, 0), (2, -2, 1), (2, 3, 2)), one), x[1::2, 4::-2, 0:2]
    )
    np.testing.assert_array_equal(
        run(concat([data, other, data], 1), {data: x, other: y}), np.concatenate([x, y, x], axis=1)
    )


ORACLES: dict[str, Callable[[Array], Array]] = {
    "Relu": lambda x: np.maximum(x, 0),
    "LeakyRelu": lambda x: np.where(x < 0, 0.01 * x, x),
    "Elu": lambda x: np.where(x < 0, np.exp(x) - 1, x),
    "Clip": lambda x: x,
    "Sigmoid": lambda x: 1 / (1 + np.exp(-x)),
    "Tanh": np.tanh,
    "HardSigmoid": lambda x: np.clip(0.2 * x + 0.5, 0, 1),
    "HardSwish": lambda x: x * np.clip(x / 6 + 0.5, 0, 1),
    "Softplus": lambda x: np.log1p(np.exp(x)),
    "Gelu": lambda x: x / 2 * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
    "GeluTanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "Mish": lambda x: x * np.tanh(np.log1p(np.exp(x))),
    "Selu": lambda x: 1.0507009873554805 * np.where(x < 0, 1.6732632423543772 * (np.exp(x) - 1), x),
    "Celu": lambda x: np.where(x < 0, np.exp(x) - 1, x),
    "Softsign": lambda x: x / (1 + np.abs(x)),
    "ThresholdedRelu": lambda x: np.where(x > 1, x, 0),
    "Exp": np.exp,
    "Log": np.log,
    "Sqrt": np.sqrt,
    "Abs": np.abs,
    "Neg": np.negative,
    "Reciprocal": lambda x: 1 / x,
    "Floor": np.floor,
    "Ceil": np.ceil,
    "Identity": lambda x: x,
}


@pytest.mark.parametrize("name", sorted(ORACLES))
def test_unary(name: str) -> None:
    data = placeholder((3, 4), "X")
    (x,) = randoms(data, low=0.1 if name in ("Log", "Sqrt", "Reciprocal") else -4.0)
    got = run(apply(UNARY[name], data, name), {data: x})
    np.testing.assert_allclose(got, ORACLES[name](x), rtol=1e-5, atol=1e-6)


def test_unary_with_settings() -> None:
    data = placeholder((3, 4), "X")
    (x,) = randoms(data)
    cases = [
        (lambda t: clip(t, -0.2, None), np.maximum(x, -0.2)),
        (lambda t: clip(t, None, 0.3), np.minimum(x, 0.3)),
        (lambda t: UNARY["LeakyRelu"](t, 0.3), np.where(x < 0, 0.3 * x, x)),
        (lambda t: elu(t, 0.5), np.where(x < 0, 0.5 * (np.exp(x) - 1), x)),
        (lambda t: hard_sigmoid(t, 0.4, 0.1), np.clip(0.4 * x + 0.1, 0, 1)),
    ]
    for function, want in cases:
        np.testing.assert_allclose(run(apply(function, data, "f"), {data: x}), want, rtol=1e-5, atol=1e-6)


def test_binary_broadcasts_as_numpy() -> None:
    left, right = placeholder((2, 1, 4), "A"), placeholder((3, 1), "B")
    a, b = randoms(left, right, low=0.1)
    oracles = {
        "Add": np.add,
        "Sub": np.subtract,
        "Mul": np.multiply,
        "Div": np.divide,
        "Max": np.maximum,
        "Min": np.minimum,
        "Pow": np.power,
        "PRelu": lambda x, s: np.where(x < 0, s * x, x),
    }
    for name, oracle in oracles.items():
        got = run(combine(BINARY[name], left, right, name), {left: a, right: b})
        np.testing.assert_allclose(got, oracle(a, b), rtol=1e-5)
    np.testing.assert_allclose(run(bias_add(left, right), {left: a, right: b}), a + b, rtol=1e-6)


def test_where_keeps_truth_values_inside() -> None:
    left, right = placeholder((3, 4), "A"), placeholder((4,), "B")
    a, b = randoms(left, right)
    condition = combine(BINARY["Less"], left, right, "less")
    got = run(where(condition, left, 7.0), {left: a, right: b})
    np.testing.assert_array_equal(got, np.where(a < b, a, np.float32(7.0)))
    got = run(where(condition, right, left), {left: a, right: b})
    np.testing.assert_array_equal(got, np.where(a < b, b, a))


def build(name: str, layout: str = "NHWC", bias: bool = True) -> Operator:
    data = placeholder((1, 5, 5, 3) if layout == "NHWC" else (1, 3, 5, 5), f"{name}_data")
    weight = placeholder((3, 3, 3, 4) if layout == "NHWC" else (4, 3, 3, 3), f"{name}_weight")
    offset = placeholder((4,), f"{name}_bias")
    form = conv2d if layout == "NHWC" else conv2d_nchw
    output = form(data, weight, Window(pads=(1, 1, 1, 1)), name=name)
    inputs: tuple[Tensor, ...] = (data, weight)
    if bias:
        output, inputs = bias_add(output, offset, f"{name}_sum"), (*inputs, offset)
    return Operator(name, inputs, output, frozenset({1, 2} if bias else {1}))


def test_keys_depend_on_structure_and_not_on_names() -> None:
    assert build("one").key == build("other").key
    keys = {build("one").key, build("one", bias=False).key, build("one", "NCHW", bias=False).key}
    assert len(keys) == 3


def test_work_counts_multiplications_and_additions() -> None:
    assert build("one", bias=False).flops == 2 * 5 * 5 * 4 * 27
    assert build("one").flops == 2 * 5 * 5 * 4 * 27 + 100


def test_refusals_say_what_was_found() -> None:
    image, matrix = placeholder((1, 5, 5, 3), "X"), placeholder((4, 5), "M")
    cases: list[tuple[Callable[[], object], str]] = [
        (
            lambda: conv2d(image, placeholder((3, 3, 2, 4), "W"), Window()),
            "3 input channels .* weights are for 2",
        ),
        (lambda: conv2d(image, matrix, Window()), "weights of rank 4, found shapes"),
        (lambda: conv2d(image, placeholder((7, 7, 3, 4), "W"), Window()), "does not fit into the image"),
        (lambda: Window(strides=(0, 1)), "strides >= 1"),
        (lambda: Window(pads=(0, -1, 0, 0)), "pads >= 0"),
        (lambda: dense(matrix, matrix), r"found \(4, 5\) and \(4, 5\)"),
        (lambda: batch_matmul(matrix, matrix), r"found \(4, 5\) and \(4, 5\)"),
        (lambda: pool2d(matrix, (2, 2), Window(), "max"), r"expected data \[n, h, w, c\]"),
        (lambda: pool2d(image, (2, 2), Window(), "mean"), "combiner of sum, prod, max, min, found 'mean'"),
        (lambda: reduce(matrix, (2,), "sum"), r"within 0..1, found \(2,\)"),
        (lambda: transpose(matrix, (0, 0)), r"permutation of 2 dimensions, found \(0, 0\)"),
        (lambda: strided_slice(matrix, (0, 3), (1, 1), (4, 3)), "a slice from 3 to 5"),
        (lambda: expand(matrix, (4, 10)), r"has 1 only, found \(4, 10\)"),
        (lambda: concat([matrix, placeholder((3, 3), "N")], 0), "equal but for dimension 0"),
        (lambda: reflect_pad(matrix, (4, 0), (0, 0)), "at most 3"),
        (
            lambda: broadcast_shape((2, 3), (4,)),
            "do not broadcast: dimension 1 of the result would be 3 and 4",
        ),
    ]
    for call, message in cases:
        with pytest.raises(ExpressionError, match=message):
            call()
