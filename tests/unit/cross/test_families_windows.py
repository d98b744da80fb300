"""Convolutions of other ranks and kinds against plain numpy: 1-D, 3-D, capsules, transposed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression import Operator, Tensor, placeholder
from cross.expression.families.conv import capsule_conv2d, dense_conv, depthwise_conv, grouped_conv
from cross.expression.families.pool import pool
from cross.expression.families.transposed import (
    Phases,
    Transposed,
    depthwise_transposed_conv,
    grouped_transposed_conv,
    narrow_transposed_conv,
    narrow_weights,
    phase_weights,
    phases,
    split_phases,
    transposed_conv,
)
from cross.expression.families.window import Window
from cross.expression.language.tensor import compute
from cross.expression.reference import evaluate
from tests.other_operators import plain_window

Array = NDArray[Any]
RNG = np.random.default_rng(12)

WINDOWS = {
    1: [plain_window(1), Window((2,), (1, 2), (1,)), Window((1,), (2, 0), (2,))],
    3: [plain_window(3), Window((2, 1, 2), (1, 0, 1, 0, 2, 1), (1, 2, 1))],
}


def randoms(*tensors: Tensor) -> list[Array]:
    return [RNG.uniform(-1.0, 1.0, tensor.shape).astype(tensor.dtype) for tensor in tensors]


def run(output: Tensor, inputs: dict[Tensor, Array]) -> Array:
    return evaluate(Operator("test", tuple(inputs), output), list(inputs.values()))


def views(data: Array, kernel: Sequence[int], window: Window, fill: float = 0.0) -> Array:
    """Windows of the padded image: [n, output..., more..., kernel...]."""
    rank = window.rank
    rest = [(0, 0)] * (data.ndim - 1 - rank)
    padded = np.pad(  # float64: what numpy makes of float32 depends on how a CPU sums
        data.astype(np.float64),
        [(0, 0), *zip(window.before, window.after, strict=True), *rest],
        constant_values=fill,
    )
    reach = [(k - 1) * d + 1 for k, d in zip(kernel, window.dilations, strict=True)]
    found = np.lib.stride_tricks.sliding_window_view(padded, reach, axis=tuple(range(1, rank + 1)))
    strides = tuple(slice(None, None, step) for step in window.strides)
    dilations = tuple(slice(None, None, step) for step in window.dilations)
    return found[(slice(None), *strides, ..., *dilations)]


@pytest.mark.parametrize("window", [item for found in WINDOWS.values() for item in found], ids=str)
class TestAnyRank:
    def test_dense(self, window: Window) -> None:
        image, kernel = ((9,), (3,)) if window.rank == 1 else ((5, 4, 6), (2, 1, 3))
        data, weight = placeholder((2, *image, 3), "X"), placeholder((*kernel, 3, 4), "W")
        x, w = randoms(data, weight)
        got = run(dense_conv(data, weight, window), {data: x, weight: w})
        text = "nxck,kco->nxo" if window.rank == 1 else "nzyxcdhw,dhwco->nzyxo"
        np.testing.assert_allclose(got, np.einsum(text, views(x, kernel, window), w), rtol=1e-5, atol=1e-5)

    def test_grouped_and_depthwise(self, window: Window) -> None:
        image, kernel = ((9,), (3,)) if window.rank == 1 else ((5, 4, 6), (2, 1, 3))
        space, taps = ("x", "k") if window.rank == 1 else ("zyx", "dhw")
        data, weight = placeholder((1, *image, 2, 3), "X"), placeholder((2, *kernel, 3, 4), "W")
        x, w = randoms(data, weight)
        got = run(grouped_conv(data, weight, window), {data: x, weight: w})
        want = np.einsum(f"n{space}gc{taps},g{taps}co->n{space}go", views(x, kernel, window), w)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
        data, weight = placeholder((1, *image, 5), "X"), placeholder((*kernel, 5), "W")
        x, w = randoms(data, weight)
        got = run(depthwise_conv(data, weight, window), {data: x, weight: w})
        want = np.einsum(f"n{space}c{taps},{taps}c->n{space}c", views(x, kernel, window), w)
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)

    def test_pool(self, window: Window) -> None:
        image, kernel = ((9,), (3,)) if window.rank == 1 else ((5, 4, 6), (2, 1, 3))
        data = placeholder((2, *image, 3), "X")
        (x,) = randoms(data)
        got = run(pool(data, kernel, window, "max"), {data: x})
        want = views(x, kernel, window, -np.inf).max(axis=tuple(range(-window.rank, 0)))
        np.testing.assert_allclose(got, want, rtol=1e-6)


def test_capsules() -> None:
    data, weight = placeholder((1, 5, 6, 3, 4, 2), "X"), placeholder((3, 2, 3, 5, 2, 4), "W")
    window = Window((2, 1), (1, 0, 1, 1))
    x, w = randoms(data, weight)
    got = run(capsule_conv2d(data, weight, window), {data: x, weight: w})
    want = np.einsum("nyxcprhw,hwcorq->nyxopq", views(x, (3, 2), window), w)
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


# ------------------------------------------------------------------------------------------------ transposed


def scattered(data: Array, kernel: Array, geometry: Sequence[Transposed], combine: str) -> Array:
    """Every input element adds its multiple of the kernel; the rim is cut off.

    data [n, image..., more...], kernel [kernel..., more...], `combine` the einsum of the two at one place of
    the kernel.
    """
    rank = len(geometry)
    image = data.shape[1 : 1 + rank]
    whole = [
        (e - 1) * g.stride + (g.kernel - 1) * g.dilation + 1 + g.output_padding
        for e, g in zip(image, geometry, strict=True)
    ]
    result: Array | None = None
    for place in np.ndindex(*(g.kernel for g in geometry)):
        part = np.einsum(combine, data.astype(np.float64), kernel[place])
        if result is None:
            result = np.zeros((data.shape[0], *whole, *part.shape[1 + rank :]))
        cut = tuple(
            slice(k * g.dilation, k * g.dilation + (e - 1) * g.stride + 1, g.stride)
            for k, g, e in zip(place, geometry, image, strict=True)
        )
        result[(slice(None), *cut)] += part
    assert result is not None
    rim = tuple(slice(g.pads[0], w - g.pads[1]) for g, w in zip(geometry, whole, strict=True))
    return result[(slice(None), *rim)]


def cropped(output: Array, dimensions: Sequence[Phases]) -> Array:
    """The operator's output as the image it stands for."""
    rank = len(dimensions)
    flat = output.reshape(
        output.shape[0], *(item.whole for item in dimensions), *output.shape[1 + 2 * rank :]
    )
    return flat[(slice(None), *(slice(item.skip, item.skip + item.output) for item in dimensions))]


GEOMETRIES = [
    (Transposed(4, 2, (1, 1)), Transposed(4, 2, (1, 1))),  # DCGAN
    (Transposed(4), Transposed(4)),
    (Transposed(3, 2, (1, 1), output_padding=1), Transposed(3, 2, (1, 1))),
    (Transposed(2, 2), Transposed(1, 2)),
    (Transposed(5, 3, (1, 2)), Transposed(4, 3, (2, 0), output_padding=2)),
    (Transposed(3, 1, (1, 1), 2), Transposed(3, 2, (2, 1), 3)),
    (Transposed(2, 4, (1, 0)), Transposed(7, 4, (3, 2))),
]


@pytest.mark.parametrize("geometry", GEOMETRIES, ids=lambda pair: f"{pair[0]}-{pair[1]}")
class TestTransposed:
    def check(
        self,
        geometry: Sequence[Transposed],
        channels: tuple[int, ...],
        kernel_shape: tuple[int, ...],
        build: Callable[..., Tensor],
        combine: str,
    ) -> None:
        """kernel_shape is what stands behind the kernel's places; the group, if any, comes first."""
        dimensions = [phases(extent, item) for extent, item in zip((3, 5), geometry, strict=True)]
        data = placeholder((2, 3, 5, *channels), "X")
        x = RNG.uniform(-1, 1, data.shape).astype(np.float32)
        grouped = build is grouped_transposed_conv
        kernel = RNG.uniform(-1, 1, (*(item.kernel for item in geometry), *kernel_shape)).astype(np.float32)
        arranged = phase_weights(kernel, dimensions)
        if grouped:
            arranged = np.ascontiguousarray(np.moveaxis(arranged, 4, 0))
        if build is narrow_transposed_conv:
            arranged = narrow_weights(arranged)
        weight = placeholder(arranged.shape, "W")
        got = run(build(data, weight, dimensions), {data: x, weight: arranged})
        want = scattered(x, kernel, geometry, combine)
        np.testing.assert_allclose(cropped(got, dimensions), want, rtol=1e-5, atol=1e-5)

    def test_dense(self, geometry: Sequence[Transposed]) -> None:
        self.check(geometry, (3,), (3, 4), transposed_conv, "nyxc,co->nyxo")

    def test_narrow(self, geometry: Sequence[Transposed]) -> None:
        self.check(geometry, (3,), (3, 4), narrow_transposed_conv, "nyxc,co->nyxo")

    def test_grouped(self, geometry: Sequence[Transposed]) -> None:
        self.check(geometry, (2, 3), (2, 3, 4), grouped_transposed_conv, "nyxgc,gco->nyxgo")

    def test_depthwise(self, geometry: Sequence[Transposed]) -> None:
        self.check(geometry, (3,), (3,), depthwise_transposed_conv, "nyxc,c->nyxc")


def test_transposed_of_one_and_three_dimensions() -> None:
    for geometry in (
        [Transposed(5, 2, (1, 2))],
        [Transposed(2, 2), Transposed(3, 1, (1, 1)), Transposed(4, 2, (1, 1))],
    ):
        image = (4, 3, 2)[: len(geometry)]
        dimensions = [phases(extent, item) for extent, item in zip(image, geometry, strict=True)]
        kernel = RNG.uniform(-1, 1, (*(item.kernel for item in geometry), 2, 3)).astype(np.float32)
        arranged = phase_weights(kernel, dimensions)
        data, weight = placeholder((1, *image, 2), "X"), placeholder(arranged.shape, "W")
        x = RNG.uniform(-1, 1, data.shape).astype(np.float32)
        got = run(transposed_conv(data, weight, dimensions), {data: x, weight: arranged})
        text = "nxc,co->nxo" if len(geometry) == 1 else "nzyxc,co->nzyxo"
        np.testing.assert_allclose(
            cropped(got, dimensions), scattered(x, kernel, geometry, text), rtol=1e-5, atol=1e-5
        )


def test_a_kernel_that_the_stride_divides_wastes_nothing() -> None:
    found = phases(8, Transposed(4, 2, (1, 1)))
    assert (found.taps, found.count, found.whole, found.output, found.skip) == (2, 8, 16, 16, 0)
    assert sorted(place for row in found.places for place in row) == [0, 1, 2, 3]
    data, weight = placeholder((1, 8, 8, 3), "X"), placeholder((2, 2, 2, 2, 3, 5), "W")
    operator = Operator("t", (data, weight), transposed_conv(data, weight, [found, found]))
    assert operator.flops == 2 * 8 * 8 * 4 * 4 * 3 * 5
    assert split_phases((1, 16, 16, 5), [found, found]) == (1, 8, 2, 8, 2, 5)
    assert split_phases((1, 1, 16, 1), [found, found]) == (1, 1, 1, 8, 2, 1)


def test_refusals_say_what_was_found() -> None:
    image, volume = placeholder((1, 5, 5, 3), "X"), placeholder((1, 5, 5, 3, 4, 2), "V")
    two = [phases(5, Transposed(4, 2, (1, 1)))] * 2
    cases: list[tuple[Callable[[], object], str]] = [
        (lambda: dense_conv(image, image, plain_window(1)), "rank 3 and weights of rank 3, found shapes"),
        (lambda: dense_conv(image, image, plain_window(3)), "rank 5 and weights of rank 5"),
        (lambda: capsule_conv2d(volume, placeholder((3, 3, 3, 5, 3, 4), "W"), Window()), r"found \(4, 2\)"),
        (lambda: Window((1,), (0, 0, 0, 0), (1,)), "two pads per image dimension"),
        (lambda: plain_window(1).output((3, 4), (1, 1)), "1 dimensions"),
        (lambda: phases(1, Transposed(1, 1, (1, 1))), "at least one element, found -1"),
        (lambda: phases(4, Transposed(0)), "kernel, stride and dilation >= 1"),
        (
            lambda: transposed_conv(image, placeholder((2, 2, 2, 3, 3, 4), "W"), two),
            r"phases and taps \(2, 2, 2, 2\)",
        ),
        (
            lambda: transposed_conv(
                placeholder((1, 4, 5, 3), "Y"), placeholder((2, 2, 2, 2, 3, 4), "W"), two
            ),
            r"data \[n, 5, 5, 3\]",
        ),
        (lambda: compute((2, 2), lambda *axes: axes[0], "t", ("i",)), "1 axis names"),
    ]
    for call, message in cases:
        with pytest.raises(ExpressionError, match=message):
            call()
