"""The interpreter against numpy, on hand-written nests."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Select
from cross.loopnest.nodes import Allocate, Block, Expr, For, Knob, LoopNest, Scope, Var
from tests.closeness import assert_sums_close
from tests.interpreter.evaluate import InterpreterError
from tests.interpreter.interpreter import interpret, run, undefined
from tests.interpreter.lanes import choose_lanes
from tests.nests import (
    FLOAT_ZERO,
    argument,
    elementwise,
    load,
    local,
    loop,
    matmul,
    nest,
    op,
    padded_convolution,
    plus,
    store,
    times,
    unrolled,
    vectorized,
)

Array = NDArray[Any]


def floats(*shape: int) -> Array:
    return np.random.default_rng(math.prod(shape)).standard_normal(shape).astype(np.float32)


def run_expression(value: Expr, dtype: str, **scalars: Array) -> Array:
    """Y[i] = value for i in 8, with every given array indexed by i through `load(argument(...), "i")`."""
    arguments = tuple(
        argument(name, array.shape, "input", array.dtype.name) for name, array in scalars.items()
    )
    y = argument("Y", (8,), "output", dtype)
    body = loop("i", 8, store(y, ("i",), value))
    return interpret(nest((*arguments, y), body), list(scalars.values()))


@pytest.mark.parametrize(("m", "rows"), [(8, 4), (7, 4), (5, 5), (3, 1)])
def test_tiled_matmul_with_packed_constant(m: int, rows: int) -> None:
    a, b = floats(m, 6), floats(6, 12)
    got = interpret(matmul(m, 12, 6, rows, 4), [a, b])
    assert_sums_close(got, np.matmul, a, b)


@pytest.mark.parametrize("kernel", [1, 3, 5])
def test_padding_is_guarded(kernel: int) -> None:
    def convolved(x: Array, w: Array) -> Array:
        padded = np.pad(x, kernel // 2)
        terms = [padded[r : r + 5, s : s + 7] * w[r, s] for r in range(kernel) for s in range(kernel)]
        return np.sum(terms, axis=0)

    x, w = floats(5, 7), floats(kernel, kernel)
    assert_sums_close(interpret(padded_convolution(5, 7, kernel), [x, w]), convolved, x, w)


@pytest.mark.parametrize(
    ("function", "want"),
    [
        ("exp", np.exp),
        ("log", np.log),
        ("sqrt", np.sqrt),
        ("tanh", np.tanh),
        ("sigmoid", lambda x: 1 / (1 + np.exp(-x))),
        ("erf", lambda x: np.array([math.erf(value) for value in x], np.float32)),
        ("floor", np.floor),
        ("ceil", np.ceil),
        ("abs", np.abs),
        ("neg", np.negative),
    ],
)
def test_functions(function: str, want: Any) -> None:
    x = floats(16)
    with np.errstate(invalid="ignore"):
        expected = want(x.astype(np.float64))
    got = interpret(elementwise(function, 16, 4), [x])
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected, rtol=2e-6)  # numpy's float32 functions are as good, on any CPU


def test_power_and_not() -> None:
    x, y = np.abs(floats(8)), floats(8)
    ax, ay = argument("X", (8,), "input"), argument("Z", (8,), "input")
    got = run_expression(Call("pow", (load(ax, "i"), load(ay, "i"))), "float32", X=x, Z=y)
    np.testing.assert_allclose(got, x.astype(np.float64) ** y, rtol=2e-6)
    negated = run_expression(Call("not", (op("<", load(ax, "i"), load(ay, "i")),)), "bool", X=x, Z=y)
    np.testing.assert_array_equal(negated, ~(x < y))


@pytest.mark.parametrize("operation", ["+", "-", "*", "//", "%", "min", "max", "ceildiv"])
@pytest.mark.parametrize("lanes", [True, False])
def test_integer_arithmetic_follows_python(operation: str, lanes: bool) -> None:
    apply = {
        "+": lambda a, b: a + b,
        "-": lambda a, b: a - b,
        "*": lambda a, b: a * b,
        "//": lambda a, b: a // b,
        "%": lambda a, b: a % b,
        "min": min,
        "max": max,
        "ceildiv": lambda a, b: -(-a // b),
    }[operation]
    y = argument("Y", (16,), "output", "int64")
    value = op(operation, op("-", "i", 8), 3)
    # a store that reads its neighbour keeps the loop out of the lanes
    previous = load(y, op("max", op("-", "i", 1), 0))
    kept = value if lanes else Select(op("<", "i", 0), previous, value)
    got = interpret(nest((y,), loop("i", 16, store(y, ("i",), kept))), [])
    assert got.tolist() == [apply(i - 8, 3) for i in range(16)]


def test_casts_truncate_and_keep_their_dtype() -> None:
    x = np.array([-1.5, -0.5, 0.5, 1.5, 2.5, 3.9, -3.9, 0.0], np.float32)
    ax = argument("X", (8,), "input")
    got = run_expression(Cast("int32", load(ax, "i")), "int32", X=x)
    assert got.dtype == np.int32
    assert got.tolist() == [-1, 0, 0, 1, 2, 3, -3, 0]


def test_arithmetic_stays_in_float32() -> None:
    x = np.full(8, 16777216.0, np.float32)
    ax = argument("X", (8,), "input")
    value = op("-", plus(load(ax, "i"), Const(1.0, "float32")), load(ax, "i"))
    assert run_expression(value, "float32", X=x).tolist() == [0.0] * 8


def test_loads_of_the_branch_not_taken_are_never_made() -> None:
    x = floats(4)
    ax = argument("X", (4,), "input")
    value = Select(
        op("<", "i", 4), load(ax, "i"), Select(op("<", "i", 6), FLOAT_ZERO, load(ax, op("-", "i", 6)))
    )
    got = run_expression(value, "float32", X=x)
    np.testing.assert_array_equal(got, [*x, 0, 0, *x[:2]])


@pytest.mark.parametrize("kept_serial", [True, False])
def test_out_of_bounds_names_buffer_index_and_shape(kept_serial: bool) -> None:
    ax, y = argument("X", (8,), "input"), argument("Y", (8,), "output")
    value: Expr = load(ax, plus("i", 3))
    if kept_serial:
        value = plus(value, times(load(y, 0), FLOAT_ZERO))
    program = nest((ax, y), store(y, (0,), FLOAT_ZERO), loop("i", 8, store(y, ("i",), value)))
    with pytest.raises(InterpreterError, match=r"X\[i \+ 3\].*dimension 0, expected 0 <= index < 8 \(shape"):
        interpret(program, [floats(8)])


def test_negative_index_is_refused() -> None:
    ax, y = argument("X", (8,), "input"), argument("Y", (8,), "output")
    program = nest((ax, y), loop("i", 8, store(y, ("i",), load(ax, op("-", "i", 1)))))
    with pytest.raises(InterpreterError, match=r"index -1 in dimension 0"):
        interpret(program, [floats(8)])


def test_unwritten_output_and_fresh_buffers_are_nan() -> None:
    acc, y = local("acc", (4,)), argument("Y", (4,), "output")
    copy = loop("j", 3, store(y, ("j",), load(acc, "j")))
    write = loop("i", 2, store(acc, ("i",), Const(1.0, "float32")))
    twice = loop("r", 2, Allocate(acc, Block((copy, write))))
    got = interpret(nest((y,), twice), [])
    assert np.isnan(got).all(), "an allocation must not keep what an earlier one held"


@pytest.mark.parametrize(("combiner", "reduce"), [("+", np.sum), ("min", np.min), ("max", np.max)])
@pytest.mark.parametrize("swapped", [True, False])
def test_reductions_in_lanes(combiner: str, reduce: Any, swapped: bool) -> None:
    x = floats(6, 35)
    ax, y = argument("X", (6, 35), "input"), argument("Y", (6,), "output")
    sides = (load(y, "i"), load(ax, "i", plus(times("k.0", 5), "k.1")))
    value = Binary(combiner, *(sides[::-1] if swapped else sides))
    body = loop("k.0", 7, unrolled("k.1", 5, store(y, ("i",), value)))
    first = store(y, ("i0",), load(ax, "i0", 0) if combiner != "+" else FLOAT_ZERO)
    program = nest((ax, y), loop("i0", 6, first), loop("i", 6, body))
    assert choose_lanes(loop("i", 6, body)) is not None
    got = interpret(program, [x])
    if combiner == "+":
        assert_sums_close(got, lambda terms: np.sum(terms, axis=1), x)
    else:
        np.testing.assert_array_equal(got, reduce(x, axis=1))


def test_reduction_of_a_term_that_is_equal_in_all_iterations() -> None:
    y = argument("Y", (1,), "output")
    program = nest(
        (y,),
        store(y, (0,), FLOAT_ZERO),
        loop("k", 5, store(y, (0,), plus(load(y, 0), Const(2.0, "float32")))),
    )
    assert interpret(program, []).tolist() == [10.0]


def test_recurrences_run_in_order() -> None:
    y = argument("Y", (10,), "output")
    step = store(y, (plus("i", 1),), times(load(y, "i"), Const(2.0, "float32")))
    program = nest((y,), store(y, (0,), Const(1.0, "float32")), loop("i", 9, step))
    assert choose_lanes(loop("i", 9, step)) is None
    assert interpret(program, []).tolist() == [2.0**i for i in range(10)]


def test_last_writer_wins_where_iterations_overlap() -> None:
    y = argument("Y", (3,), "output")
    start = op("min", times("o", 2), 1)
    body = store(y, (plus(start, "i"),), Cast("float32", Var("o")))
    assert interpret(nest((y,), loop("o", 2, loop("i", 2, body))), []).tolist() == [0.0, 1.0, 1.0]


def test_gather_reads_indices_from_memory() -> None:
    table, rows = floats(5, 3), np.array([4, 0, 4, 2], np.int64)
    at, ar = argument("T", (5, 3), "input"), argument("R", (4,), "input", "int64")
    y = argument("Y", (4, 3), "output")
    program = nest(
        (at, ar, y), loop("i", 4, vectorized("j", 3, store(y, ("i", "j"), load(at, load(ar, "i"), "j"))))
    )
    np.testing.assert_array_equal(interpret(program, [table, rows]), table[rows])


def test_fused_loop_indices() -> None:
    x = floats(4, 6)
    ax, y = argument("X", (4, 6), "input"), argument("Y", (6, 4), "output")
    value = load(ax, op("%", "f", 4), op("//", "f", 4))
    program = nest((ax, y), loop("f", 24, store(y, (op("//", "f", 4), op("%", "f", 4)), value)))
    np.testing.assert_array_equal(interpret(program, [x]), x.T)


def test_run_works_in_place_and_returns_the_workspace() -> None:
    ax, y = argument("X", (4,), "input"), argument("Y", (4,), "output")
    t = local("T", (4,), Scope.WORKSPACE)
    program = nest(
        (ax, y),
        loop("i", 4, store(t, ("i",), times(load(ax, "i"), load(ax, "i")))),
        loop("j", 4, store(y, ("j",), load(t, op("-", 3, "j")))),
        workspace=(t,),
    )
    x, out = floats(4), np.zeros(4, np.float32)
    buffers = run(program, {"X": x, "Y": out})
    assert buffers["Y"] is out
    np.testing.assert_array_equal(out, (x * x)[::-1])
    np.testing.assert_array_equal(buffers["T"], x * x)


@pytest.mark.parametrize(
    ("dtype", "value"), [("int8", -128), ("uint8", 255), ("int32", -(2**31)), ("bool", True)]
)
def test_undefined_integers_are_extreme(dtype: str, value: int) -> None:
    assert undefined((2,), dtype).tolist() == [value, value]


def test_what_does_not_fit_is_refused() -> None:
    program = elementwise("exp", 8, 4)
    with pytest.raises(InterpreterError, match="expected 1 inputs and one output, found 2 inputs"):
        interpret(program, [floats(8), floats(8)])
    with pytest.raises(InterpreterError, match=r"X expects a contiguous float32\[8\], found float32\[4\]"):
        interpret(program, [floats(4)])
    with pytest.raises(InterpreterError, match=r"found float64\[8\]"):
        interpret(program, [floats(8).astype(np.float64)])
    with pytest.raises(InterpreterError, match="no array for the input X"):
        run(program, {})


@pytest.mark.parametrize("where", ["extent", "index", "shape"])
def test_a_parametric_nest_is_refused(where: str) -> None:
    knob = Knob("tile")
    y = argument("Y", (4,), "output")
    if where == "shape":
        y = type(y)("Y", (knob,), "float32", Scope.ARGUMENT, "output")
    body: For = loop(
        "i", knob if where == "extent" else Int(1), store(y, (knob if where == "index" else 0,), FLOAT_ZERO)
    )
    with pytest.raises(InterpreterError, match="bind the nest before running it"):
        interpret(nest((y,), body), [])


def test_undefined_names_are_refused() -> None:
    y = argument("Y", (4,), "output")
    other = local("other", (4,))
    for value in (load(other, 0), plus("nowhere", 0)):
        program: LoopNest = nest((y,), store(y, (0,), value))
        with pytest.raises(InterpreterError, match="not defined"):
            interpret(program, [])
