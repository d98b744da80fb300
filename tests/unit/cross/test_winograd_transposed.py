"""Winograd for transposed convolutions: the algorithm, what is recognized, programs and their accuracy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boards.board import load
from cross.errors import ExpressionError
from cross.expression import Operator, maximum, placeholder
from cross.expression.families.elementwise import apply, bias_add, combine
from cross.expression.families.transposed import (
    Phases,
    Transposed,
    grouped_transposed_conv,
    phases,
    transposed_conv,
)
from cross.expression.reference import evaluate
from cross.expression.rewrites.winograd.convolution import (
    PhaseReads,
    shared_positions,
    transform_weights,
    winograd_transposed_conv2d,
)
from cross.expression.rewrites.winograd.form import winograd_form
from cross.expression.rewrites.winograd.matrices import TILES, planar
from cross.loopnest import Programs
from cross.schedule import cpu_space
from cross.schedule.winograd.cpu import winograd_spaces
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.unit.cross.test_winograd import assert_every_structure_computes, by, relative_error, uniform

Array = NDArray[Any]

HOST = load("host").target(None)
LANES = HOST.vector_lanes()
LIMIT = 1e-4  # of the largest magnitude in the result, as for every kernel
DOUBLING = Transposed(4, 2, (1, 1))  # as in DCGAN


def of_image(image: tuple[int, int], *geometries: Transposed) -> list[Phases]:
    """The phases of both dimensions, which may share one geometry."""
    height, width = geometries * (2 // len(geometries))
    return [phases(image[0], height), phases(image[1], width)]


def with_epilogue(
    found: list[Phases], ci: int, co: int, batch: int = 1, constants: frozenset[int] = frozenset({1, 2})
) -> Operator:
    """Transposed convolution with bias, a residual and ReLU."""
    data = placeholder((batch, *(item.extent for item in found), ci), "X")
    places = (*(item.stride for item in found), *(item.taps for item in found))
    weight, bias = placeholder((*places, ci, co), "W"), placeholder((co,), "b")
    biased = bias_add(transposed_conv(data, weight, found), bias)
    residual = placeholder(biased.shape, "R")
    added = combine(lambda left, right: left + right, biased, residual, "add")
    output = apply(lambda value: maximum(value, 0.0), added, "relu")
    return Operator("transposed", (data, weight, bias, residual), output, constants)


def plain(found: list[Phases], ci: int = LANES, co: int = LANES) -> Operator:
    operator = with_epilogue(found, ci, co)
    convolved = next(stage for stage in operator.stages if stage.reduce_axes)
    return Operator("transposed", operator.inputs[:2], convolved, frozenset({1}))


# ------------------------------------------------------------------------------------------- the algorithm


@st.composite
def dimensions(draw: st.DrawFn, known: tuple[int, ...]) -> Phases:
    """A dimension of any geometry with some of these taps: kernels that the stride does not divide, crops."""
    stride, taps = draw(st.integers(1, 3)), draw(st.sampled_from(known))
    kernel = draw(st.integers((taps - 1) * stride + 1, taps * stride))
    pads = draw(st.integers(0, kernel - 1)), draw(st.integers(0, kernel - 1))
    geometry = Transposed(kernel, stride, pads, output_padding=draw(st.integers(0, stride - 1)))
    least = -(-sum(pads) // stride)
    return phases(draw(st.integers(1, 9)) + least, geometry)


@pytest.mark.parametrize(
    ("tile", "known"), [(2, (1, 2, 3, 4, 5)), (3, (1, 5)), (4, (1, 2, 3, 4)), (5, (1, 3))]
)
@settings(max_examples=40, deadline=None)
@given(st.data(), st.integers(1, 2))
def test_expression_equals_the_direct_one(
    tile: int, known: tuple[int, ...], data: st.DataObject, batch: int
) -> None:
    """In float64; the dimensions may have different taps."""
    found = data.draw(dimensions(known)), data.draw(dimensions(known))
    taps = found[0].taps, found[1].taps
    assume(taps != (1, 1))
    algorithm = planar(tile, taps)
    assert algorithm is not None
    operator = _in_float64(list(found), batch)
    image, kernel = uniform(operator)
    transformed = transform_weights(kernel, algorithm, first=2)
    reads = [PhaseReads(item.count, item.stride, item.first, item.step) for item in found]
    weights = placeholder(transformed.shape, "U", "float64")
    result = winograd_transposed_conv2d(operator.inputs[0], weights, reads, algorithm)
    got = evaluate(Operator("winograd", (operator.inputs[0], weights), result), [image, transformed])
    np.testing.assert_allclose(got, evaluate(operator, [image, kernel]), rtol=1e-11, atol=1e-11)


def _in_float64(found: list[Phases], batch: int) -> Operator:
    data = placeholder((batch, *(item.extent for item in found), 2), "X", "float64")
    places = (*(item.stride for item in found), *(item.taps for item in found))
    weight = placeholder((*places, 2, 3), "W", "float64")
    return Operator("transposed", (data, weight), transposed_conv(data, weight, found), frozenset({1}))


@pytest.mark.parametrize(
    ("tile", "taps", "step", "positions", "shift"),
    [
        (2, 2, 1, 5, 2),  # the last of one phase is the first of the next
        (4, 2, 1, 9, 4),
        (2, 3, 0, 4, 0),  # both phases read the same inputs
        (4, 2, 0, 5, 0),
    ],
)
def test_phases_share_positions(tile: int, taps: int, step: int, positions: int, shift: int) -> None:
    algorithm = by(tile, taps, taps).rows
    matrix, found = shared_positions(algorithm, PhaseReads(8, 2, -1, step))
    assert found == shift
    assert (len(matrix), len(matrix[0])) == (algorithm.side + step, positions)


def test_what_does_not_fit_is_refused() -> None:
    reads = [PhaseReads(4, 2, -1, 1)] * 2
    data, weights = placeholder((1, 4, 4, 3), "X"), placeholder((2, 2, 4, 4, 3, 5), "U")
    with pytest.raises(ExpressionError, match=r"F\(2x2,2x2\), found shapes"):
        winograd_transposed_conv2d(data, weights, reads, by(2, 2, 2))


# --------------------------------------------------------------------------------------- what is recognized


@pytest.mark.parametrize(
    ("geometry", "names"),
    [
        (DOUBLING, ["direct", "F(2x2,2x2)", "F(4x4,2x2)"]),
        (Transposed(3, 2, (1, 1), output_padding=1), ["direct", "F(2x2,2x2)", "F(4x4,2x2)"]),
        (Transposed(5, 2, (2, 2), output_padding=1), ["direct", "F(2x2,3x3)", "F(4x4,3x3)"]),
        (Transposed(8, 2, (3, 3)), ["direct", "F(2x2,4x4)", "F(4x4,4x4)"]),
        (Transposed(3, 1, (1, 1)), ["direct", "F(2x2,3x3)", "F(4x4,3x3)"]),
        (Transposed(6, 3, (1, 1)), ["direct", "F(2x2,2x2)", "F(4x4,2x2)"]),
    ],
)
def test_algorithms_of_a_geometry(geometry: Transposed, names: list[str]) -> None:
    operator = with_epilogue(of_image((8, 12), geometry), LANES, LANES)
    assert list(cpu_space(operator, HOST).knobs[0].labels) == names
    assert "algorithm" not in {knob.name for knob in cpu_space(operator, HOST, winograd=False).knobs}


def test_algorithms_of_different_taps() -> None:
    operator = with_epilogue(of_image((8, 12), DOUBLING, Transposed(6, 2, (2, 2))), LANES, LANES)
    assert list(cpu_space(operator, HOST).knobs[0].labels) == ["direct", "F(2x2,2x3)", "F(4x4,2x3)"]


def _grouped() -> Operator:
    found = of_image((8, 8), DOUBLING)
    data, weight = placeholder((1, 8, 8, 2, LANES), "X"), placeholder((2, *(2,) * 4, LANES, LANES), "W")
    return Operator("grouped", (data, weight), grouped_transposed_conv(data, weight, found), frozenset({1}))


@pytest.mark.parametrize(
    "operator",
    [
        plain(of_image((8, 8), Transposed(12, 2, (5, 5)))),  # 6 taps
        plain(of_image((8, 8), Transposed(4, 4))),  # 1 tap
        with_epilogue(of_image((8, 8), DOUBLING), LANES, LANES, constants=frozenset()),
        _grouped(),
    ],
)
def test_others_are_computed_directly(operator: Operator) -> None:
    assert all(winograd_form(operator, tile) is None for tile in TILES)
    assert winograd_spaces(operator, HOST) == {}


def test_no_algorithm_where_it_saves_nothing() -> None:
    """Few channels leave vectors empty; with few tiles the larger weights take longer to read."""
    assert winograd_spaces(plain(of_image((8, 8), DOUBLING), co=LANES - 1), HOST) == {}
    assert winograd_spaces(plain(of_image((4, 4), DOUBLING)), HOST) == {}
    assert list(winograd_spaces(plain(of_image((8, 8), DOUBLING)), HOST)) == ["F(2x2,2x2)"]


# ------------------------------------------------------------------------------------------------ programs


@pytest.mark.slow
@pytest.mark.parametrize("tile", [2, 4])
@pytest.mark.parametrize(
    ("image", "geometry", "channels", "batch"),
    [
        ((7, 11), DOUBLING, (LANES, LANES + 3), 1),
        ((5, 8), Transposed(5, 2, (1, 2), output_padding=1), (LANES + 5, LANES), 2),
        ((8, 11), Transposed(5, 3, (1, 1)), (LANES, LANES), 1),
        ((9, 12), (Transposed(2, 2), Transposed(4, 2, (1, 1))), (LANES, LANES), 1),
        ((9, 12), (Transposed(6, 2, (2, 2)), DOUBLING), (LANES, LANES), 1),
    ],
)
def test_every_structure_computes_the_convolution(
    tile: int,
    image: tuple[int, int],
    geometry: Transposed | tuple[Transposed, Transposed],
    channels: tuple[int, int],
    batch: int,
    tmp_path: Path,
) -> None:
    found = of_image(image, *([geometry] if isinstance(geometry, Transposed) else geometry))
    operator = with_epilogue(found, *channels, batch)
    space = winograd_spaces(operator, HOST)[by(tile, found[0].taps, found[1].taps).name]
    assert_every_structure_computes(operator, space, tmp_path)


# ------------------------------------------------------------------------------------------------ accuracy


@pytest.mark.parametrize(("tile", "stated"), [(2, 3e-6), (4, 3e-5)])
def test_accuracy_of_a_wide_layer(tile: int, stated: float, tmp_path: Path) -> None:
    """Against float64, with 256 channels: within what docs/accuracy.md states, and far within the limit."""
    operator = plain(of_image((8, 12), DOUBLING), 256, 64)
    space = winograd_spaces(operator, HOST)[by(tile, 2, 2).name]
    job = Job(Programs(space).nest(space.default()), uniform(operator))
    (got,) = run_here(compile_jobs([job], HOST), [job], tmp_path)
    assert relative_error(got, evaluate(operator, list(job.inputs))) < stated < LIMIT
