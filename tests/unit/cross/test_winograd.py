"""Winograd convolution: the algorithm, its programs, and how far their results are from exact ones."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.errors import ExpressionError
from cross.expression import Operator, Tensor, maximum, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.elementwise import apply, bias_add, combine
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.expression.rewrites.winograd.convolution import transform_weights, winograd_conv2d
from cross.expression.rewrites.winograd.form import winograd_form
from cross.expression.rewrites.winograd.matrices import TILES, Planar, planar
from cross.loopnest import Programs, lower, verify
from cross.loopnest.bind import bind
from cross.schedule import ScheduleSpace, cpu_space
from cross.schedule.winograd.cpu import winograd_space, winograd_spaces
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2
from tests.unit.cross.test_untuned import HALVED
from tests.unoptimized import unoptimized

Array = NDArray[Any]

HOST = load("host").target(None)
KNOWN = [(2, 2, 1), (2, 3, 1), (2, 4, 1), (2, 5, 1), (4, 2, 1), (4, 3, 1)]  # outputs, taps and stride
KNOWN += [(4, 4, 1), (5, 3, 1), (3, 5, 1)]
KNOWN += [(tile, taps, 2) for tile in (2, 4) for taps in range(3, 9)]
LANES = HOST.vector_lanes()
LIMIT = 1e-4  # of the largest magnitude in the result, as for every kernel
SHAPES = st.tuples(
    st.integers(1, 2),  # batch
    st.integers(3, 13),  # height
    st.integers(3, 13),  # width
    st.integers(1, 5),  # input channels
    st.integers(1, 5),  # output channels
    st.tuples(*[st.integers(0, 2)] * 4),
)


def convolution(
    image: tuple[int, ...],
    co: int,
    pads: tuple[int, ...] = (1, 1, 1, 1),
    kernel: tuple[int, int] = (3, 3),
    strides: tuple[int, int] = (1, 1),
) -> Operator:
    """Convolution with bias and ReLU; image is [n, h, w, ci]."""
    data, weight = placeholder(image, "X"), placeholder((*kernel, image[3], co), "W")
    bias = placeholder((co,), "b")
    biased = bias_add(conv2d(data, weight, Window(strides, pads)), bias)
    output = apply(lambda value: maximum(value, 0.0), biased, "relu")
    return Operator("conv", (data, weight, bias), output, frozenset({1, 2}))


def uniform(operator: Operator, seed: int = 5) -> list[Array]:
    rng = np.random.default_rng(seed)
    return [rng.uniform(-1.0, 1.0, tensor.shape).astype(tensor.dtype) for tensor in operator.inputs]


def relative_error(got: Array, want: Array) -> float:
    return float(np.abs(got - want).max() / np.abs(want).max())


# ------------------------------------------------------------------------------------------- the algorithm


def by(tile: int, rows: int, columns: int, strides: tuple[int, int] = (1, 1), deep: bool = False) -> Planar:
    """The algorithm for a window of so many rows and columns."""
    found = planar(tile, (rows, columns), strides, deep=deep)
    assert found is not None
    return found


@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize(("tile", "taps", "stride"), KNOWN)
def test_one_dimension_is_exact_in_fractions(tile: int, taps: int, stride: int, deep: bool) -> None:
    """A^T [(G g) * (B^T d)] is the correlation of d and g, for values no rounding touches.

    With space to depth the products of neighbouring inputs are added up.
    """
    algorithm, rng = by(tile, taps, 1, (stride, 1), deep).rows, np.random.default_rng(tile)
    side, depth = range(algorithm.side), algorithm.depth
    data = [Fraction(int(value)) for value in rng.integers(-9, 10, depth * len(side))]
    kernel = [Fraction(int(value)) for value in rng.integers(-9, 10, taps)]
    exact = [[Fraction(value).limit_denominator(20_000) for value in row] for row in algorithm.weight]
    weights = [sum(row[i] * kernel[i] for i in range(taps)) for row in exact]
    transformed = [
        [sum(Fraction(algorithm.data[i][x]) * data[depth * i + p] for i in side) for p in range(depth)]
        for x in side
    ]
    products = [
        sum(value * weights[depth * x + p] for p, value in enumerate(values))
        for x, values in enumerate(transformed)
    ]
    got = [sum(Fraction(algorithm.output[x][u]) * products[x] for x in side) for u in range(tile)]
    assert got == [sum(data[stride * u + i] * kernel[i] for i in range(taps)) for u in range(tile)]


def test_strides_save_as_many_multiplications_as_their_phases() -> None:
    sides = {(tile, taps): by(tile, taps, 1, (2, 1)).rows.side for tile in (2, 4) for taps in (3, 5)}
    assert sides == {(2, 3): 3 + 2, (4, 3): 5 + 4, (2, 5): 4 + 3, (4, 5): 6 + 5}


@pytest.mark.parametrize(("taps", "sides"), [(4, (3, 5)), (6, (4, 6)), (7, (5, 7)), (8, (5, 7))])
def test_even_and_odd_inputs_share_an_algorithm(taps: int, sides: tuple[int, int]) -> None:
    """That of half of the taps, rounded up; so do those of 5 taps if they are asked for."""
    for tile, side in zip((2, 4), sides, strict=True):
        algorithm = by(tile, taps, taps, (2, 2))
        assert algorithm.depths == (2, 2) and algorithm.rows.side == side
        assert algorithm.weight_sides == (2 * side, 2 * side)
    assert by(4, 5, 5, (2, 2)).depths == (1, 1) and by(4, 5, 5, (2, 2), deep=True).depths == (2, 2)


@pytest.mark.parametrize("tile", TILES)
@settings(max_examples=60, deadline=None)
@given(
    SHAPES,
    st.integers(1, 8),
    st.integers(1, 8),
    st.tuples(st.integers(1, 2), st.integers(1, 2)),
    st.booleans(),
)
def test_expression_equals_direct_convolution(
    tile: int,
    shape: tuple[int, int, int, int, int, tuple[int, int, int, int]],
    rows: int,
    columns: int,
    strides: tuple[int, int],
    deep: bool,
) -> None:
    """In float64, for sizes that no tile divides, paddings that differ side by side, and every window."""
    n, height, width, ci, co, pads = shape
    algorithm = planar(tile, (rows, columns), strides, deep=deep)
    both = zip((rows, columns), strides, strict=True)
    known = [taps == 1 or (tile, taps, stride) in KNOWN for taps, stride in both]
    assert (algorithm is not None) == (all(known) and (rows, columns) != (1, 1))
    if algorithm is None:
        return
    data, weight = (
        placeholder((n, height + rows, width + columns, ci), "X", "float64"),
        placeholder((rows, columns, ci, co), "W", "float64"),
    )
    transformed = placeholder((*algorithm.weight_sides, ci, co), "U", "float64")
    window = Window(strides, pads)
    direct = Operator("conv", (data, weight), conv2d(data, weight, window))
    winograd = Operator(
        "winograd", (data, transformed), winograd_conv2d(data, transformed, algorithm, window)
    )
    image, kernel = uniform(direct)
    got = evaluate(winograd, [image, transform_weights(kernel, algorithm)])
    np.testing.assert_allclose(got, evaluate(direct, [image, kernel]), rtol=1e-12, atol=1e-12)


def test_weights_are_rounded_once() -> None:
    weight = np.random.default_rng(1).standard_normal((3, 3, 4, 5)).astype(np.float32)
    matrix = np.array(by(4, 3, 3).rows.weight)
    exact = np.einsum("xi,yj,ijco->xyco", matrix, matrix, weight.astype(np.float64))
    assert transform_weights(weight, by(4, 3, 3)).dtype == np.float32
    np.testing.assert_array_max_ulp(
        transform_weights(weight, by(4, 3, 3)), exact.astype(np.float32), maxulp=1
    )


@pytest.mark.parametrize(
    ("data", "weights", "window", "message"),
    [
        ((1, 8, 8, 3), (3, 3, 3, 5), Window(), "expected data of rank 4 and weights"),
        ((1, 8, 8, 3), (4, 6, 3, 5), Window(), "expected data of rank 4 and weights"),
        ((1, 8, 8, 3), (4, 4, 2, 5), Window(), "3 input channels, the weights are for 2"),
        ((1, 8, 8, 3), (4, 4, 3, 5), Window(strides=(2, 1)), r"strides \(1, 1\) of F\(2x2,3x3\)"),
        ((1, 8, 8, 3), (4, 4, 3, 5), Window(dilations=(1, 2)), "dilations of 1, found"),
    ],
)
def test_what_does_not_fit_is_refused(
    data: tuple[int, ...], weights: tuple[int, ...], window: Window, message: str
) -> None:
    with pytest.raises(ExpressionError, match=message):
        winograd_conv2d(placeholder(data, "X"), placeholder(weights, "U"), by(2, 3, 3), window)


def _conv(
    window: Window, kernel: tuple[int, int] = (3, 3), constants: frozenset[int] = frozenset({1})
) -> Operator:
    data, weight = placeholder((1, 16, 16, 16), "X"), placeholder((*kernel, 16, 16), "W")
    return Operator("conv", (data, weight), conv2d(data, weight, window), constants)


def _squared() -> Operator:
    """The weights are read a second time, where they would have to be the original ones."""
    data, weight = placeholder((1, 5, 5, 3), "X"), placeholder((3, 3, 3, 3), "W")
    convolved = conv2d(data, weight, Window(), name="conv")
    output = apply(lambda value: value, convolved, "out")
    again = conv2d(output, weight, Window(), name="again")
    return Operator("twice", (data, weight), again, frozenset({1}))


@pytest.mark.parametrize(
    "operator",
    [
        _conv(Window(strides=(3, 3))),
        _conv(Window(strides=(1, 3))),
        _conv(Window(strides=(2, 2)), kernel=(2, 2)),
        _conv(Window(strides=(2, 2)), kernel=(1, 1)),
        _conv(Window(dilations=(2, 2))),
        _conv(Window(), kernel=(7, 7)),
        _conv(Window(), kernel=(3, 6)),
        _conv(Window(strides=(2, 2)), kernel=(9, 9)),
        _conv(Window(), kernel=(1, 1)),
        _conv(Window(), constants=frozenset()),
        _squared(),
    ],
)
def test_other_operators_have_no_winograd_form(operator: Operator) -> None:
    assert all(winograd_form(operator, tile) is None for tile in TILES)
    assert winograd_spaces(operator, HOST) == {}


def test_a_form_keeps_what_surrounds_the_convolution() -> None:
    operator = convolution((1, 9, 7, 6), 5)
    inputs = uniform(operator)
    for tile in (2, 4, 5):
        form = winograd_form(operator, tile)
        assert form is not None
        assert [tensor.name for tensor in form.operator.inputs] == ["X", "W", "b"]
        assert form.operator.key != operator.key
        assert relative_error(evaluate(form.operator, form.inputs(inputs)), evaluate(operator, inputs)) < 1e-6


# ---------------------------------------------------------------------------------------------- programs


def every_structure(space: ScheduleSpace, rng: np.random.Generator) -> list[Any]:
    """One valid configuration of every structure."""
    batch = space.sample(rng, 400)
    _, rows = np.unique(batch[:, list(space.structural)], axis=0, return_index=True)
    found = [space.configuration(batch[row]) for row in rows]
    assert len(found) == len(list(space.structures()))
    return found


def assert_every_structure_computes(operator: Operator, space: ScheduleSpace, folder: Path) -> None:
    """The verifier passes, the interpreter equals float64, and the machine code equals the interpreter."""
    programs, inputs = Programs(space), uniform(operator)
    want = evaluate(operator, inputs)
    jobs = []
    for configuration in every_structure(space, np.random.default_rng(2)):
        verify(programs.parametric(programs.structure(configuration)).nest, parametric=True)
        nest = programs.nest(configuration)
        verify(nest)
        jobs.append(Job(nest, inputs))
    interpreted = [interpret(job.nest, inputs) for job in jobs]
    artifact = compile_jobs(jobs, HOST)
    for threads in (1, 2):
        for got, expected in zip(run_here(artifact, jobs, folder, threads), interpreted, strict=True):
            assert relative_error(expected, want) < LIMIT
            assert relative_error(got, expected) < LIMIT


@pytest.mark.slow
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(
    ("image", "co", "pads"),
    [((1, 7, 11, LANES), LANES + 3, (1, 1, 1, 1)), ((2, 8, 6, LANES + 5), 2 * LANES, (0, 0, 0, 0))],
)
def test_every_structure_computes_the_convolution(
    tile: int, image: tuple[int, ...], co: int, pads: tuple[int, ...], tmp_path: Path
) -> None:
    operator = convolution(image, co, pads)
    space = winograd_spaces(operator, HOST)[f"F({tile}x{tile},3x3)"]
    assert_every_structure_computes(operator, space, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("image", "kernel", "pads", "strides", "names"),
    [
        ((1, 8, 67, LANES), (3, 1), (1, 0, 1, 0), (1, 1), ["F(2x1,3x1)", "F(4x1,3x1)"]),
        ((1, 1, 270, LANES), (1, 3), (0, 2, 0, 1), (1, 1), ["F(1x2,1x3)", "F(1x4,1x3)", "F(1x5,1x3)"]),
        ((2, 9, 5, LANES), (5, 5), (2, 2, 2, 2), (1, 1), ["F(2x2,5x5)", "F(3x3,5x5)"]),
        ((1, 6, 9, LANES), (3, 5), (1, 2, 1, 0), (1, 1), ["F(2x2,3x5)"]),
        ((1, 10, 15, LANES), (3, 3), (1, 1, 1, 1), (1, 1), ["F(2x2,3x3)", "F(4x4,3x3)", "F(5x5,3x3)"]),
        ((1, 15, 18, LANES), (4, 4), (2, 1, 1, 1), (1, 1), ["F(2x2,4x4)", "F(4x4,4x4)"]),
        ((1, 8, 9, LANES), (2, 2), (0, 0, 1, 1), (1, 1), ["F(2x2,2x2)", "F(4x4,2x2)"]),
        ((1, 15, 31, LANES), (3, 3), (1, 1, 1, 1), (2, 2), ["F(2x2,3x3)/2x2", "F(4x4,3x3)/2x2"]),
        ((1, 8, 17, LANES), (3, 3), (1, 0, 1, 1), (1, 2), ["F(2x2,3x3)/1x2", "F(4x4,3x3)/1x2"]),
        ((1, 16, 15, LANES), (5, 5), (2, 1, 2, 2), (2, 2), ["F(2x2,5x5)/2x2", "F(4x4,5x5)/2x2"]),
        ((2, 30, 33, 3), (7, 7), (3, 2, 3, 3), (2, 2), ["F(2x2,7x7)/2x2", "F(4x4,7x7)/2x2"]),
        ((1, 21, 32, 3), (5, 5), (0, 2, 2, 2), (2, 2), ["F(2x2,5x5)/2x2", "F(4x4,5x5)/2x2"]),
        ((1, 16, 34, 3), (6, 6), (2, 2, 2, 2), (2, 2), ["F(2x2,6x6)/2x2", "F(4x4,6x6)/2x2"]),
        ((1, 2, 67, LANES + 1), (1, 8), (0, 3, 0, 4), (1, 2), ["F(1x2,1x8)/1x2", "F(1x4,1x8)/1x2"]),
        ((1, 40, 2, LANES), (7, 1), (3, 0, 3, 0), (2, 1), ["F(2x1,7x1)/2x1", "F(4x1,7x1)/2x1"]),
    ],
)
def test_every_structure_of_other_windows_computes_the_convolution(
    image: tuple[int, ...],
    kernel: tuple[int, int],
    pads: tuple[int, ...],
    strides: tuple[int, int],
    names: list[str],
    tmp_path: Path,
) -> None:
    operator = convolution(image, LANES + 3, pads, kernel, strides)
    spaces = winograd_spaces(operator, HOST)
    assert list(spaces) == names
    with unoptimized():
        for space in spaces.values():
            assert_every_structure_computes(operator, space, tmp_path)


def test_long_rows_are_computed_in_parts() -> None:
    """A block of whole rows of a signal would not fit any cache."""
    operator = convolution((1, 16, 3136, 144), 64, (1, 0, 1, 0), (3, 1))
    for space in winograd_spaces(operator, HOST).values():
        values = space.values(space.batch([space.default()]))
        assert values["staging"] == 0 and values["block.w"] in (16, 64)
    for space in winograd_spaces(operator, load("rpi3b").target(None)).values():
        values = space.values(space.batch([space.default()]))
        assert values["staging"] == 0 and values["block.w"] == 5  # a tile of registers


@pytest.mark.parametrize("tile", [2, 4])
def test_a_residual_is_not_read_past_its_end(tile: int, tmp_path: Path) -> None:
    """5 x 11 outputs are rounded up to whole tiles, the other operand of the addition is not."""
    data, weight = placeholder((1, 5, 11, LANES), "X"), placeholder((3, 3, LANES, LANES), "W")
    residual = placeholder((1, 5, 11, LANES), "R")
    convolved = conv2d(data, weight, Window(pads=(1, 1, 1, 1)))
    output = combine(lambda left, right: left + right, convolved, residual, "add")
    operator = Operator("conv", (data, weight, residual), output, frozenset({1}))
    space = winograd_spaces(operator, HOST)[f"F({tile}x{tile},3x3)"]
    inputs, nest = uniform(operator), Programs(space).nest(space.default())
    verify(nest)
    job = Job(nest, inputs)
    (got,) = run_here(compile_jobs([job], HOST), [job], tmp_path)
    assert relative_error(interpret(nest, inputs), evaluate(operator, inputs)) < LIMIT
    assert relative_error(got, evaluate(operator, inputs)) < LIMIT


def test_transforms_neither_multiply_by_one_nor_read_a_matrix() -> None:
    """F(2x2) transforms are additions; all that multiplies are the products' fused multiply-adds."""
    operator = convolution((1, 8, 8, LANES), LANES)
    space = winograd_spaces(operator, HOST)["F(2x2,3x3)"]
    text = llvm_module("conv", Programs(space).nest(space.default()), HOST)
    assert "fmul " not in text
    assert "tfb.matrix" not in text
    assert "fadd" in text and "fsub" in text


def test_results_of_a_line_share_sums_of_inputs() -> None:
    """Of F(4x4,3x3) a line of the input takes 2 multiplications, 10 multiply-adds and 4 additions: each pair
    of points p and -p begins with one multiplication and one multiply-add for both. A line of the output
    takes 2, 10 and 4. Columns of the input are written twice, within the image and for its border."""
    operator = convolution((1, 8, 8, LANES), LANES)
    space = winograd_spaces(operator, HOST)["F(4x4,3x3)"]
    configuration = space.default()
    text = llvm_module("conv", Programs(space).nest(configuration), HOST)
    lines = 3 + (1 + 4)  # columns twice, then rows; a column of the output, then its rows
    fields = space.fields(configuration)
    products = math.prod(fields[f"products.{axis}"] for axis in ("h", "w", "c", "kc")) // LANES
    assert text.count(" fmul ") == 2 * lines
    assert text.count(" fadd ") + text.count(" fsub ") == 4 * lines + 16  # and the bias
    assert text.count("@llvm.fmuladd") == 10 * lines + products + 1  # and its declaration


def _user_form() -> tuple[Operator, list[Array], Array]:
    """An operator that a user wrote in Winograd form, its inputs and the direct result."""
    data, weights = placeholder((1, 6, 5, LANES), "X"), placeholder((4, 4, LANES, LANES), "U")
    operator = Operator(
        "winograd",
        (data, weights),
        winograd_conv2d(data, weights, by(2, 3, 3), Window(pads=(1, 1, 1, 1))),
        frozenset({1}),
    )
    direct = _direct(data)
    image, kernel = uniform(direct)
    return operator, [image, transform_weights(kernel, by(2, 3, 3))], evaluate(direct, [image, kernel])


def _direct(data: Tensor) -> Operator:
    weight = placeholder((3, 3, data.shape[3], LANES), "W")
    return Operator("conv", (data, weight), conv2d(data, weight, Window(pads=(1, 1, 1, 1))))


def test_an_operator_in_winograd_form_takes_transformed_weights() -> None:
    operator, inputs, want = _user_form()
    space = winograd_space(operator, HOST)
    assert space is not None
    assert relative_error(interpret(Programs(space).nest(space.default()), inputs), want) < LIMIT


def test_without_a_schedule_matrices_are_read_from_memory(tmp_path: Path) -> None:
    operator, inputs, want = _user_form()
    nest = bind(lower(operator, ()), {})
    verify(nest)
    job = Job(nest, inputs)
    assert "@tfb.matrix" in llvm_module("plain", nest, HOST)
    (got,) = run_here(compile_jobs([job], HOST), [job], tmp_path)
    assert relative_error(got, want) < LIMIT


# ---------------------------------------------------------------------------------------------- accuracy


def _like_activations(operator: Operator, seed: int) -> list[Array]:
    """Inputs as behind a ReLU, weights as a network is initialized."""
    rng = np.random.default_rng(seed)
    data, weight, bias = operator.inputs
    fan_in = weight.elements / weight.shape[3]
    return [
        np.maximum(rng.standard_normal(data.shape), 0).astype(np.float32),
        (rng.standard_normal(weight.shape) * np.sqrt(2 / fan_in)).astype(np.float32),
        (0.1 * rng.standard_normal(bias.shape)).astype(np.float32),
    ]


@pytest.mark.parametrize(
    ("size", "kernel", "stride", "name", "stated"),
    [
        (14, (3, 3), 1, "F(2x2,3x3)", 3e-6),
        (14, (3, 3), 1, "F(4x4,3x3)", 1e-5),
        (14, (3, 3), 1, "F(5x5,3x3)", 3e-5),
        (14, (3, 1), 1, "F(2x1,3x1)", 3e-6),
        (14, (1, 3), 1, "F(1x4,1x3)", 5e-6),
        (14, (5, 5), 1, "F(2x2,5x5)", 1e-5),
        (14, (5, 5), 1, "F(3x3,5x5)", 3e-5),
        (16, (4, 4), 1, "F(4x4,4x4)", 3e-5),
        (14, (3, 3), 2, "F(2x2,3x3)/2x2", 3e-6),
        (16, (3, 3), 2, "F(4x4,3x3)/2x2", 1e-5),
        (14, (5, 5), 2, "F(4x4,5x5)/2x2", 1e-5),
        (16, (7, 7), 2, "F(4x4,7x7)/2x2", 3e-5),
    ],
)
def test_accuracy_of_a_wide_layer(
    size: int, kernel: tuple[int, int], stride: int, name: str, stated: float, tmp_path: Path
) -> None:
    """Against float64, with 256 channels: within what docs/accuracy.md states, and far within the limit."""
    operator = convolution(
        (1, size * stride, size * stride, 256), 64, kernel=kernel, strides=(stride, stride)
    )
    space = winograd_spaces(operator, HOST)[name]
    nest = Programs(space).nest(space.default())
    jobs = [Job(nest, uniform(operator)), Job(nest, _like_activations(operator, 7))]
    artifact = compile_jobs(jobs, HOST)
    for job, got in zip(jobs, run_here(artifact, jobs, tmp_path), strict=True):
        assert relative_error(got, evaluate(operator, list(job.inputs))) < stated < LIMIT


@pytest.mark.parametrize("size", [13, 14, 19, 26, 28, 38, 52, 56])
def test_untuned_products_keep_a_core_of_few_registers_busy(size: int) -> None:
    """Two multiply-adds begin in a cycle and take four, so that at least eight sums must be open at a time,
    also where no tile that fits 16 registers divides the rows (7, 13, 19 and 26 tiles)."""
    for space in winograd_spaces(convolution((1, size, size, 64), 64), AVX2).values():
        fields = space.fields(space.default())
        sums = fields["products.h"] * fields["products.w"] * fields["products.c"] // AVX2.vector_lanes()
        assert 8 <= sums <= AVX2.vector_registers - 3


@pytest.mark.parametrize(("target", "label"), [(AVX2, "F(4x4,3x3)"), (HALVED, "F(5x5,3x3)")])
def test_transforms_that_add_up_more_cost_more(target: Target, label: str) -> None:
    """Measured on a Zen 4, 20x20x64 to 32 channels: by AVX2 59 us by F(4x4,3x3) and 75 by F(5x5,3x3), by
    AVX-512 45 and 45; 14x14x256: by AVX2 909 and 713, by AVX-512 757 and 649."""
    small, deep = (cpu_space(convolution(image, co), target) for image, co in (
        ((1, 20, 20, 64), 32), ((1, 14, 14, 256), 256)))  # fmt: skip
    labels = [space.part_of(space.batch([space.default()])[0]).label for space in (small, deep)]
    assert labels == [label, "F(5x5,3x3)"]
