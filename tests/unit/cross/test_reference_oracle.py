"""The numpy reference against the language's meaning, point by point in plain Python, and against itself.

`meaning` below evaluates one element of one tensor at a time. It is the shortest thing that can be right.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression import (
    Operator,
    Tensor,
    cast,
    compute,
    logical_and,
    logical_or,
    placeholder,
    reduce_axis,
    select,
    sum,
)
from cross.expression import max as maximum_over
from cross.expression.families.conv import conv2d, depthwise_conv, grouped_conv
from cross.expression.families.data_movement import concat, edge_pad, reflect_pad, strided_slice, transpose
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.elementwise import BINARY, UNARY, apply, bias_add, combine, where
from cross.expression.families.norm import layer_norm, local_response_norm, softmax
from cross.expression.families.pool import pool2d, reduce
from cross.expression.families.window import Window
from cross.expression.language.dtypes import FLOATS
from cross.expression.language.operations import BITS as SAME_BITS
from cross.expression.language.operations import BYTE_PRODUCTS, OPERATIONS, TRIGONOMETRY
from cross.expression.language.tensor import Axis, Read, Reduce, reads_in
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Select, Term, call
from cross.expression.reference import evaluate
from cross.expression.reference.contraction import contract
from cross.expression.reference.strided import blocks
from tests.other_operators import conv2d_nchw, frobenius_norm

Array = NDArray[Any]

CALLS: dict[str, Callable[..., Any]] = {
    "exp": math.exp, "log": math.log, "sqrt": math.sqrt, "tanh": math.tanh, "erf": math.erf,
    **{name: getattr(math, name) for name in TRIGONOMETRY}, "round": round, "fmod": math.fmod,
    "sigmoid": lambda x: 1 / (1 + math.exp(-x)), "floor": math.floor, "ceil": math.ceil, "abs": abs,
    "neg": lambda x: -x, "pow": pow, "not": lambda x: not x,
}  # fmt: skip
OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b, "/": lambda a, b: a / b,
    "//": lambda a, b: a // b, "%": lambda a, b: a % b, "min": min, "max": max, "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b, "==": lambda a, b: a == b, "and": lambda a, b: a and b,
    "or": lambda a, b: a or b, "&": lambda a, b: a & b, "|": lambda a, b: a | b, "^": lambda a, b: a ^ b,
}  # fmt: skip
ROUNDED = frozenset({"<", "<=", "==", "floor", "ceil", "round", "fmod"})
"""What jumps from one float to the next: its operands are rounded to their dtype first."""
Values = Mapping[Tensor, Mapping[tuple[int, ...], Any]]


def meaning(term: Term, at: Mapping[Axis, int], values: Values) -> Any:
    """One term at one point of its axes; integers wrap."""
    match term:
        case Int(value) | Const(value, _):
            return value
        case Axis():
            return at[term]
        case Read(tensor, indices):
            return values[tensor][tuple(meaning(index, at, values) for index in indices)]
        case Select(condition, then, otherwise):
            return meaning(then if meaning(condition, at, values) else otherwise, at, values)
        case Cast(dtype, value):
            result = meaning(value, at, values)
            # A cast asks for a precision; beside ROUNDED nothing else rounds before the end.
            if dtype in FLOATS:
                return float(np.dtype(dtype).type(result))
            return wrapped(int(result), dtype)
        case Binary(name, _, _) | Call(name, _):
            operands = [meaning(item, at, values) for item in term.parts]
            if name in ROUNDED:
                operands = [
                    float(np.dtype(item.dtype).type(value)) if item.dtype in FLOATS else value
                    for item, value in zip(term.parts, operands, strict=True)
                ]
            return wrapped((OPERATORS | CALLS)[name](*operands), term.dtype)
        case Reduce(combiner, body, axes):
            points = itertools.product(*(range(axis.extent) for axis in axes))
            parts = [meaning(body, {**at, **dict(zip(axes, point, strict=True))}, values) for point in points]
            total = {"sum": math.fsum if term.dtype in FLOATS else _total, "max": max, "min": min}
            return wrapped(total[combiner](parts), term.dtype)
    raise AssertionError(term)


def _total(parts: list[int]) -> int:
    total = 0
    for part in parts:
        total += part
    return total


def wrapped(value: Any, dtype: str) -> Any:
    """An integer brought into its dtype's range; other values as they are."""
    if dtype == "bool":
        return bool(value)
    if dtype in FLOATS:
        return float(value)
    bits = np.iinfo(dtype).bits
    value %= 1 << bits
    return value - (1 << bits) if np.iinfo(dtype).min < 0 and value >= 1 << (bits - 1) else value


def by_points(operator: Operator, inputs: list[Array]) -> Array:
    values: dict[Tensor, dict[tuple[int, ...], Any]] = {}
    for tensor, array in zip(operator.inputs, inputs, strict=True):
        values[tensor] = {index: array[index].item() for index in np.ndindex(*tensor.shape)}
    for stage in operator.stages:
        assert stage.body is not None
        values[stage] = {
            index: meaning(stage.body, dict(zip(stage.axes, index, strict=True)), values)
            for index in np.ndindex(*stage.shape)
        }
    result = np.empty(operator.output.shape, operator.output.dtype)
    for index, value in values[operator.output].items():
        result[index] = value
    return result


def check(output: Tensor, *inputs: Tensor, seed: int = 0, domain: tuple[float, float] = (-2.0, 2.0)) -> None:
    """The reference, both ways and in blocks of several sizes, equals the meaning."""
    rng = np.random.default_rng(seed)
    arrays = [_random(tensor, rng, domain) for tensor in inputs]
    operator = Operator("checked", inputs, output)
    want = by_points(operator, arrays)
    for fast, block_elements in itertools.product((True, False), (None, 1, 7, 100)):
        got = evaluate(operator, arrays, fast=fast, block_elements=block_elements)
        assert (got.dtype, got.shape, got.flags.c_contiguous) == (want.dtype, want.shape, True)
        if want.dtype.kind == "f":
            np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-7)
        else:
            np.testing.assert_array_equal(got, want)


def _random(tensor: Tensor, rng: np.random.Generator, domain: tuple[float, float]) -> Array:
    dtype = np.dtype(tensor.dtype)
    if dtype.kind == "f":
        return rng.uniform(*domain, tensor.shape).astype(dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, tensor.shape).astype(bool)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, tensor.shape, dtype, endpoint=True)


WINDOWS = [
    Window(),
    Window((2, 1), (1, 0, 2, 1)),
    Window((1, 2), (2, 2, 2, 2), (2, 1)),
    Window((3, 3), (0, 1, 0, 0), (1, 2)),
]


@pytest.mark.slow
@pytest.mark.parametrize("window", WINDOWS)
def test_convolutions_of_every_kind(window: Window) -> None:
    x, w = placeholder((2, 5, 6, 3), "x"), placeholder((2, 3, 3, 2), "w")
    check(conv2d(x, w, window), x, w)
    x, w = placeholder((1, 3, 5, 6), "x"), placeholder((2, 3, 2, 3), "w")
    check(conv2d_nchw(x, w, window), x, w)
    x, w = placeholder((1, 5, 6, 2, 2), "x"), placeholder((2, 2, 3, 2, 3), "w")
    check(grouped_conv(x, w, window), x, w)
    x, w = placeholder((1, 5, 6, 3), "x"), placeholder((2, 3, 3), "w")
    check(depthwise_conv(x, w, window), x, w)


def test_convolutions_with_bias_and_activation() -> None:
    x, w, b = placeholder((1, 4, 4, 3), "x"), placeholder((3, 3, 3, 4), "w"), placeholder((4,), "b")
    check(apply(UNARY["HardSwish"], bias_add(conv2d(x, w, WINDOWS[1]), b), "out"), x, w, b)


def test_matrix_products() -> None:
    a, b = placeholder((3, 5), "a"), placeholder((5, 4), "b")
    check(dense(a, b), a, b)
    a, b = placeholder((2, 1, 3, 4), "a"), placeholder((3, 4, 2), "b")
    check(batch_matmul(a, b), a, b)
    a, b = placeholder((1, 1), "a"), placeholder((1, 1), "b")
    check(dense(a, b), a, b)


@pytest.mark.parametrize("combiner", ["sum", "max", "min"])
@pytest.mark.parametrize("window", WINDOWS)
def test_pooling(window: Window, combiner: str) -> None:
    x = placeholder((1, 5, 6, 2), "x")
    check(pool2d(x, (2, 3), window, combiner), x)
    check(reduce(x, (1, 3), combiner), x)
    check(reduce(x, (0, 1, 2, 3), combiner, keep=False), x)


def test_norms() -> None:
    x, c = placeholder((3, 4), "x"), placeholder((2, 3, 6), "c")
    scale, shift = placeholder((4,), "scale"), placeholder((4,), "shift")
    check(softmax(x, 1), x)
    check(softmax(x, 0), x)
    check(layer_norm(x, scale, shift), x, scale, shift)
    check(frobenius_norm(c), c)
    check(local_response_norm(c, 3, (0.1, 0.75, 1.0)), c)


def test_data_movement() -> None:
    x, y = placeholder((3, 4, 2), "x"), placeholder((3, 1, 2), "y")
    check(transpose(x, (2, 0, 1)), x)
    check(concat([x, y, x], 1), x, y)
    check(strided_slice(x, (2, 0, 1), (-1, 3, 1), (3, 2, 1)), x)
    check(reflect_pad(x, (2, 0, 1), (1, 3, 0)), x)
    check(edge_pad(x, (2, 0, 1), (1, 3, 0)), x)


DOMAINS = {
    **dict.fromkeys(("Log", "Sqrt", "Reciprocal"), (0.1, 2.0)),
    **dict.fromkeys(("Acos", "Asin", "Atanh"), (-0.9, 0.9)),
    "Acosh": (1.1, 2.0),
}
# Other tests have those of less than all floats: the node cases of tests/conformance.
TRUTH_VALUES = {"And", "Or"}
BITS = {"BitwiseAnd", "BitwiseOr", "BitwiseXor"}
SHIFTS = {"ShiftLeft", "ShiftRight"}
INTEGERS = {"IntegerPow"}


@pytest.mark.parametrize(
    "name", sorted(set(UNARY) - {"Not"} - {f"As{dtype.capitalize()}" for dtype in SAME_BITS})
)
def test_functions_of_one_float(name: str) -> None:
    x = placeholder((3, 5), "x")
    check(apply(UNARY[name], x, "out"), x, domain=DOMAINS.get(name, (-2.0, 2.0)))


@pytest.mark.parametrize("name", sorted(BITS | TRUTH_VALUES))
def test_functions_of_bits_and_truth_values(name: str) -> None:
    dtype = "int32" if name in BITS else "bool"
    x, y = placeholder((3, 1, 4), "x", dtype), placeholder((5, 4), "y", dtype)
    check(combine(BINARY[name], x, y, "out"), x, y)


@pytest.mark.parametrize("name", sorted(set(BINARY) - BITS - SHIFTS - TRUTH_VALUES - INTEGERS))
def test_functions_of_two_floats(name: str) -> None:
    x, y = placeholder((3, 1, 4), "x"), placeholder((5, 4), "y")
    check(
        combine(BINARY[name], x, y, "out"),
        x,
        y,
        domain=(0.1 if name in ("Div", "Pow", "IntegerPow") else -2.0, 2.0),
    )


@pytest.mark.parametrize("dtype", ["int8", "uint8", "int32", "int64"])
def test_integers_wrap(dtype: str) -> None:
    x, y = placeholder((4, 3), "x", dtype), placeholder((3, 4), "y", dtype)
    for op in (lambda a, b: a + b, lambda a, b: a * b, lambda a, b: a - b):
        check(combine(op, x, transpose(y, (1, 0)), "out"), x, y)
    check(dense(x, y), x, y)
    check(reduce(x, (0,), "sum"), x)


@pytest.mark.parametrize(("narrow", "wide"), [("int8", "int32"), ("uint8", "int32"), ("int8", "float32")])
def test_products_of_narrow_integers_are_exact(narrow: str, wide: str) -> None:
    x, y, k = placeholder((4, 9), "x", narrow), placeholder((9, 5), "y", narrow), reduce_axis(9, "k")
    output = compute((4, 5), lambda i, j: sum(cast(wide, x[i, k]) * cast(wide, y[k, j]), k))
    check(output, x, y)
    arrays = {x: np.ones(x.shape, narrow), y: np.ones(y.shape, narrow)}
    assert contract(output, arrays, 1000) is not None


@pytest.mark.parametrize("function", sorted(BYTE_PRODUCTS))
def test_sums_of_products_of_the_numbers_in_words(function: str) -> None:
    """Of a matrix product, and of a convolution with strides: as matrix products, and word by word."""
    word = OPERATIONS[function].only
    rng = np.random.default_rng(3)
    x, y = placeholder((2, 9, 6), "x", word), placeholder((3, 6, 5), "y", word)
    k, w = reduce_axis(6, "k"), reduce_axis(3, "w")
    outputs = (
        compute((2, 9, 5), lambda n, i, j: sum(call(function, x[n, i, k], y[1, k, j]), k)),
        compute((2, 4, 5), lambda n, i, j: sum(call(function, x[n, 2 * i + w, k], y[w, k, j]), (w, k))),
        compute((2, 9), lambda n, i: sum(call(function, x[n, i, k], x[n, i, k]), k)),
    )
    limits = np.iinfo(word)
    for output in outputs:
        for low, high in ((limits.min, limits.max), (limits.min, limits.min), (-1, -1)):
            arrays = {item: rng.integers(low, high, item.shape, word, endpoint=True) for item in (x, y)}
            operands = [item for item in (x, y) if item in {read.tensor for read in reads_in(output.body)}]
            operator = Operator("words", tuple(operands), output)
            inputs = [arrays[item] for item in operands]
            assert contract(output, arrays, 1000) is not None
            expected = evaluate(operator, inputs, fast=False)
            for block_elements in (None, 7):
                found = evaluate(operator, inputs, block_elements=block_elements)
                assert found.dtype == np.int32
                np.testing.assert_array_equal(found, expected)


def test_floor_division_and_remainder_as_index() -> None:
    x = placeholder((3, 4), "x")
    check(compute((12,), lambda i: x[i // 4, i % 4]), x)
    check(compute((4, 4), lambda i, j: x[(i + j) % 3, (j * 3 + 1) % 4]), x)


def test_an_index_read_from_a_tensor() -> None:
    x, index = placeholder((256, 2), "x"), placeholder((5,), "index", "uint8")
    check(compute((5, 2), lambda i, j: x[cast("int64", index[i]), j]), x, index)


def test_nested_guards() -> None:
    x = placeholder((4, 4), "x")

    def body(i: Term, j: Term) -> Term:
        inner = select(logical_or(j < 1, j >= 5), 1.0, x[i - 1, j - 1])
        return select(logical_and(i >= 1, i < 5), inner, select(i < 1, 2.0, x[i - 5, 0]))

    check(compute((7, 6), body), x)


def test_where_and_not() -> None:
    c, x = placeholder((3, 1), "c", "bool"), placeholder((2,), "x")
    check(where(c, x, -1.0), c, x)
    check(apply(UNARY["Not"], c, "out"), c)


def test_contractions_of_every_shape() -> None:
    a, b = placeholder((4, 5), "a"), placeholder((5, 4), "b")
    k, m = reduce_axis(3, "k"), reduce_axis(2, "m")
    check(compute((3, 2), lambda i, j: sum(a[i, k] * a[i, k], (k, m))), a)  # j and m touch nothing
    check(compute((3, 2), lambda i, j: sum(a[i, j] * b[j, i], k)), a, b)  # nothing is contracted
    check(compute((4,), lambda i: sum(a[i, i] * b[k, i], k)), a, b)  # a diagonal
    check(compute((3,), lambda i: sum(a[3 - i, 4 - k] * b[i + k, m * 2], (k, m))), a, b)  # backwards
    check(compute((2, 2), lambda i, j: sum(a[i + m, k] * b[1, 1], (k, m))), a, b)  # a scalar
    check(compute((3, 4), lambda i, j: maximum_over(a[i, k] * b[k, j], k)), a, b)  # not a sum


def test_too_large_integers_go_the_slow_exact_way() -> None:
    x, k = placeholder((2, 3), "x", "int64"), reduce_axis(3, "k")
    output = compute((2, 2), lambda i, j: sum(x[i, k] * x[j, k], k))
    data = np.full((2, 3), 2**30 + 1, np.int64)
    assert contract(output, {x: data}, 100) is None
    assert evaluate(Operator("big", (x,), output), [data])[0, 0] == 3 * (2**30 + 1) ** 2


# ------------------------------------------------------------------------------------------------- properties

sizes = st.integers(1, 6)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_both_ways_agree_on_any_convolution(data: st.DataObject) -> None:
    n, h, w, ci, co, kh, kw = (data.draw(sizes) for _ in range(7))
    window = Window(
        (data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))),
        tuple(data.draw(st.integers(0, 2)) for _ in range(4)),  # type: ignore[arg-type]
        (data.draw(st.integers(1, 2)), data.draw(st.integers(1, 2))),
    )
    try:
        window.output((h, w), (kh, kw))
    except ExpressionError:
        return
    x, weight = placeholder((n, h, w, ci), "x"), placeholder((kh, kw, ci, co), "w")
    operator = Operator("any", (x, weight), conv2d(x, weight, window))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    inputs = [rng.standard_normal(tensor.shape).astype(np.float32) for tensor in operator.inputs]
    block_elements = data.draw(st.integers(1, 500))
    slow = evaluate(operator, inputs, fast=False)
    for fast in (True, False):
        got = evaluate(operator, inputs, fast=fast, block_elements=block_elements)
        np.testing.assert_allclose(got, slow, rtol=1e-6, atol=1e-6)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=0, max_size=4), st.integers(0, 200))
def test_blocks_cover_a_box_once_and_keep_to_their_size(extents: list[int], elements: int) -> None:
    hits = np.zeros(extents, int)
    for box in blocks(extents, elements):
        hits[box] += 1
        assert hits[box].size <= max(1, elements)
    assert (hits == 1).all()


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(st.randoms(use_true_random=False))
def test_random_elementwise_terms_mean_what_they_say(source: random.Random) -> None:
    x, y = placeholder((3, 4), "x"), placeholder((4, 3), "y", "int32")

    def integer(depth: int, i: Term, j: Term) -> Term:
        if depth == 0:
            return source.choice([lambda: y[j, i], lambda: cast("int32", i), lambda: cast("int32", j)])()
        left, right = integer(depth - 1, i, j), integer(depth - 1, i, j)
        return source.choice([left + right, left - right, left * 3, select(left < right, left, right)])

    def real(depth: int, i: Term, j: Term) -> Term:
        if depth == 0:
            return source.choice([x[i, j], x[2 - i, 3 - j], cast("float32", integer(1, i, j)) * 1e-9])
        left, right = real(depth - 1, i, j), real(depth - 1, i, j)
        choices = [left + right, left * right, left - right, select(left <= right, left, right * 0.5), -left]
        return source.choice(choices)

    check(compute((3, 4), lambda i, j: real(3, i, j)), x, y)
    check(compute((3, 4), lambda i, j: integer(3, i, j)), x, y)


# --------------------------------------------------------------------------------- what is refused


def test_a_guard_must_hold_back_every_read_out_of_range() -> None:
    x = placeholder((4,), "x")
    operator = Operator("late", (x,), compute((6,), lambda i: select(i < 5, x[i], 0.0), name="late"))
    with pytest.raises(
        ExpressionError, match="tensor late reads x at 0 to 5 in dimension 0, expected 0 to 3"
    ):
        evaluate(operator, [np.zeros(4, np.float32)])


def test_inputs_of_any_layout_are_read() -> None:
    a, b = placeholder((3, 5), "a"), placeholder((5, 4), "b")
    operator = Operator("dense", (a, b), dense(a, b))
    rng = np.random.default_rng(0)
    x = np.asfortranarray(rng.standard_normal((3, 5)).astype(np.float32))
    y = np.broadcast_to(np.float32(2.0), (5, 4))
    np.testing.assert_allclose(evaluate(operator, [x, y]), x.astype(np.float64) @ y, rtol=1e-6)
