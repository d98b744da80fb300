"""Transposed convolutions, phase by phase: no multiplication by an inserted zero, and no scatter.

Along one dimension, with stride s, output element Y = s * i + a of phase a reads a short run of the input

    out[s * i + a] = sum over t of in[i + first + step * a + t] * w[a, t]

where w[a] holds the kernel's elements of one residue class modulo s. So all phases together are one ordinary
convolution with the output split into (i, a), which in memory is the output itself. Kernels that the stride
does not divide leave a few zeros in w. `phases` works this out for a dimension, `phase_weights` lays a
kernel out ahead of time, and the families below are the convolutions.
"""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression.families.conv import IMAGE_AXES, check_ranks
from cross.expression.families.data_movement import pad
from cross.expression.language.functions import reduce_axis, sum, summand
from cross.expression.language.tensor import Axis, Tensor, compute
from cross.expression.language.terms import Term

Product = Callable[[Term, Term], Term]

NARROW_CHANNELS = 16  # fewer leave vectors over output channels short
NARROW_TAPS = 16  # more make the gathering stage long
PHASE_AXES = {"z": "pz", "y": "py", "x": "px"}
TAP_AXES = {"z": "tz", "y": "ty", "x": "tx"}


class Phases(msgspec.Struct, frozen=True):
    """One dimension of a transposed convolution.

    Computed are `count` times `stride` elements; the output is `output` of them behind the first `skip`.
    Element s * i + a reads the input at i + first + step * a + t for 0 <= t < taps; `places[a][t]` is the
    kernel's element there, -1 for none.
    """

    extent: int
    stride: int
    count: int
    output: int
    skip: int
    first: int
    step: int
    places: tuple[tuple[int, ...], ...]

    @property
    def taps(self) -> int:
        return len(self.places[0])

    @property
    def whole(self) -> int:
        """How many elements are computed, those that are cut off included."""
        return self.count * self.stride

    @property
    def before(self) -> int:
        """Zeros needed in front of the input."""
        return max(0, -self.first)

    @property
    def after(self) -> int:
        """Zeros needed behind the input."""
        last = self.count - 1 + self.first + self.step * (self.stride - 1) + self.taps - 1
        return max(0, last - self.extent + 1)


class Transposed(msgspec.Struct, frozen=True):
    """The geometry along one dimension, as ONNX gives it; `pads` is (before, after)."""

    kernel: int
    stride: int = 1
    pads: tuple[int, int] = (0, 0)
    dilation: int = 1
    output_padding: int = 0

    def output(self, extent: int) -> int:
        """Elements of the output for `extent` elements of input."""
        reach = (self.kernel - 1) * self.dilation + 1
        return (extent - 1) * self.stride + reach - self.pads[0] - self.pads[1] + self.output_padding


def phases(extent: int, geometry: Transposed) -> Phases:
    """The phases for an input of `extent` elements.

    A dilated kernel counts as one with zeros in between. Where no regular first element exists, which takes
    a stride of 3 or more and padding that it does not divide, the output is computed from further in front.

    Raises:
        ExpressionError: the output would be empty, or a number is out of range.
    """
    if min(geometry.kernel, geometry.stride, geometry.dilation) < 1 or geometry.output_padding < 0:
        raise ExpressionError(
            "transposed convolution: expected kernel, stride and dilation >= 1 and output padding >= 0, "
            f"found {geometry}"
        )
    output = geometry.output(extent)
    if output < 1 or min(geometry.pads) < 0:
        raise ExpressionError(
            "transposed convolution: expected pads >= 0 and an output of at least one element, "
            f"found {output} for {extent} elements of input and {geometry}"
        )
    stride = geometry.stride
    for skip in (0, geometry.pads[0] % stride):
        lead = geometry.pads[0] - skip
        reads = [_reads(phase + lead, geometry) for phase in range(stride)]
        regular = _regular(reads)
        if regular is not None:
            break
    assert regular is not None
    first, step, taps = regular
    places = tuple(
        tuple(found.get(first + step * phase + tap, -1) for tap in range(taps))
        for phase, found in enumerate(reads)
    )
    count = -(-(output + skip) // stride)
    return Phases(extent, stride, count, output, skip, first, step, places)


def _reads(offset: int, geometry: Transposed) -> dict[int, int]:
    """Input element, counted from i, to kernel element (-1: a zero of a dilated kernel), for the output
    element s * i + offset - padding.
    """
    found: dict[int, int] = {}
    for reach in range((geometry.kernel - 1) * geometry.dilation + 1):
        if (offset - reach) % geometry.stride == 0:
            place, rest = divmod(reach, geometry.dilation)
            found[(offset - reach) // geometry.stride] = -1 if rest else place
    return found


def _regular(reads: Sequence[dict[int, int]]) -> tuple[int, int, int] | None:
    """(first, step, taps) of runs of equal length that hold every phase's reads; the shortest such."""
    spans = [(phase, min(found), max(found)) for phase, found in enumerate(reads) if found]
    taps = max((high - low + 1 for _, low, high in spans), default=1)
    for step in (0, 1):
        first = min((low - step * phase for phase, low, _ in spans), default=0)
        if all(high < first + step * phase + taps for phase, _, high in spans):
            return first, step, taps
    return None


def phase_weights(kernel: NDArray[Any], dimensions: Sequence[Phases]) -> NDArray[Any]:
    """A kernel [kernel..., more...] as [phases..., taps..., more...]; places without an element are zero."""
    rank = len(dimensions)
    result = kernel
    for position, dimension in enumerate(dimensions):
        places = np.array(dimension.places)
        # dimension `position` becomes (phase, tap); the phases gather in front
        taken = np.take(result, np.maximum(places, 0), axis=2 * position)
        mask = (places >= 0).reshape(
            (1,) * (2 * position) + places.shape + (1,) * (taken.ndim - 2 * position - 2)
        )
        result = np.where(mask, taken, np.zeros((), kernel.dtype))
    order = [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2), *range(2 * rank, result.ndim)]
    return np.ascontiguousarray(result.transpose(order))


def transposed_conv(
    data: Tensor,
    weight: Tensor,
    dimensions: Sequence[Phases],
    name: str = "transposed_conv",
    padding: float = 0.0,
    product: Product = summand,
) -> Tensor:
    """Transposed convolution: data [n, image..., ci], weight [phases..., taps..., ci, co]
    -> [n, (count, phase)..., co], in two dimensions [n, count, phase, count, phase, co].

    `padding` lies around the image; `product` of an element and a weight is summed.

    Raises:
        ExpressionError: ranks or extents do not fit; so for all families here.
    """
    rank = len(dimensions)
    check_ranks(name, data, rank + 2, weight, 2 * rank + 2)
    ci, co = weight.shape[-2:]
    _check(name, data, weight.shape, dimensions, (ci,))
    padded, taps, kc = _padded(data, dimensions, padding), _tap_axes(dimensions), reduce_axis(ci, "kc")

    def body(b: Term, *axes: Term) -> Term:
        *places, c = axes
        element = padded[(b, *_seen(places, taps, dimensions), kc)]
        return sum(product(element, weight[(*places[1::2], *taps, kc, c)]), (*taps, kc))

    return compute((data.shape[0], *_split_shape(dimensions), co), body, name, _axis_names(rank, "c"))


def narrow_transposed_conv(
    data: Tensor,
    weight: Tensor,
    dimensions: Sequence[Phases],
    name: str = "narrow_transposed_conv",
    padding: float = 0.0,
    product: Product = summand,
) -> Tensor:
    """Transposed convolution to few channels: data [n, image..., ci], weight [ci, phases * taps * co]
    -> [n, (count, phase)..., co]; the weights are `narrow_weights` of the other form's.

    One matrix product gives what every input pixel adds anywhere, with vectors over all places of the
    kernel; a second stage gathers, for every output pixel, the sum of its taps.
    """
    rank = len(dimensions)
    check_ranks(name, data, rank + 2, weight, 2)
    ci, columns = weight.shape
    strides, taps = [item.stride for item in dimensions], [item.taps for item in dimensions]
    co = columns // math.prod((*strides, *taps))
    _check(name, data, (*strides, *taps), dimensions, (ci,))
    padded, kc = _padded(data, dimensions, padding), reduce_axis(ci, "kc")

    def every(b: Term, *axes: Term) -> Term:
        *place, column = axes
        return sum(product(padded[(b, *place, kc)], weight[kc, column]), kc)

    names = ("b", *IMAGE_AXES[rank], "column")
    products = compute((*padded.shape[:-1], columns), every, f"{name}_products", names)

    def gathered(b: Term, *axes: Term) -> Term:
        *places, c = axes
        parts = []
        for found in itertools.product(*(range(count) for count in taps)):
            column: Term | int = 0
            digits: tuple[Term | int, ...] = (*places[1::2], *found)
            for digit, base in zip(digits, (*strides, *taps), strict=True):
                column = digit + column * base
            parts.append(products[(b, *_seen(places, found, dimensions), column * co + c)])
        return functools.reduce(operator.add, parts)

    shape = (data.shape[0], *_split_shape(dimensions), co)
    return compute(shape, gathered, name, _axis_names(rank, "c"))


def narrow_weights(weights: NDArray[Any]) -> NDArray[Any]:
    """Weights [phases..., taps..., ci, co] as `narrow_transposed_conv` wants them."""
    inputs = weights.shape[-2]
    return np.ascontiguousarray(np.moveaxis(weights, -2, 0)).reshape(inputs, -1)


def is_narrow(dimensions: Sequence[Phases], channels: int) -> bool:
    """Whether the form for few channels suits a transposed convolution to `channels`."""
    return channels < NARROW_CHANNELS and math.prod(item.taps for item in dimensions) <= NARROW_TAPS


def grouped_transposed_conv(
    data: Tensor,
    weight: Tensor,
    dimensions: Sequence[Phases],
    name: str = "grouped_transposed_conv",
    padding: float = 0.0,
) -> Tensor:
    """Grouped: data [n, image..., g, ci/g], weight [g, phases..., taps..., ci/g, co/g]
    -> [n, (count, phase)..., g, co/g].
    """
    rank = len(dimensions)
    check_ranks(name, data, rank + 3, weight, 2 * rank + 3)
    groups, ci, co = weight.shape[0], *weight.shape[-2:]
    _check(name, data, weight.shape[1:], dimensions, (groups, ci))
    padded, taps, kc = _padded(data, dimensions, padding), _tap_axes(dimensions), reduce_axis(ci, "kc")

    def body(b: Term, *axes: Term) -> Term:
        *places, g, c = axes
        element = padded[(b, *_seen(places, taps, dimensions), g, kc)]
        return sum(summand(element, weight[(g, *places[1::2], *taps, kc, c)]), (*taps, kc))

    shape = (data.shape[0], *_split_shape(dimensions), groups, co)
    return compute(shape, body, name, _axis_names(rank, "g", "c"))


def depthwise_transposed_conv(
    data: Tensor,
    weight: Tensor,
    dimensions: Sequence[Phases],
    name: str = "depthwise_transposed_conv",
    padding: float = 0.0,
) -> Tensor:
    """Depthwise: data [n, image..., c], weight [phases..., taps..., c] -> [n, (count, phase)..., c]."""
    rank = len(dimensions)
    check_ranks(name, data, rank + 2, weight, 2 * rank + 1)
    channels = weight.shape[-1]
    _check(name, data, weight.shape, dimensions, (channels,))
    padded, taps = _padded(data, dimensions, padding), _tap_axes(dimensions)

    def body(b: Term, *axes: Term) -> Term:
        *places, c = axes
        element = padded[(b, *_seen(places, taps, dimensions), c)]
        return sum(summand(element, weight[(*places[1::2], *taps, c)]), taps)

    shape = (data.shape[0], *_split_shape(dimensions), channels)
    return compute(shape, body, name, _axis_names(rank, "c"))


def without_offsets(sums: Tensor, offsets: Tensor, name: str = "without_offsets") -> Tensor:
    """The sums [n, (count, phase)..., c] less offsets [phases..., c].

    Those of groups are [n, (count, phase)..., g, c] and [g, phases..., c].
    """
    rank = len(offsets.shape) - 1 if len(sums.shape) % 2 == 0 else len(offsets.shape) - 2

    def body(b: Term, *axes: Term) -> Term:
        places, (*g, c) = axes[: 2 * rank], axes[2 * rank :]
        return sums[(b, *axes)] - offsets[(*g, *places[1::2], c)]

    return compute(sums.shape, body, name)


def split_phases(shape: Sequence[int], dimensions: Sequence[Phases]) -> tuple[int, ...]:
    """The shape of an operand [n, image..., more...] of the whole output with its image dimensions split."""
    rank = len(dimensions)
    pairs = [
        (1, 1) if extent == 1 and dimension.whole != 1 else (dimension.count, dimension.stride)
        for extent, dimension in zip(shape[1 : 1 + rank], dimensions, strict=True)
    ]
    return (shape[0], *(extent for pair in pairs for extent in pair), *shape[1 + rank :])


def _split_shape(dimensions: Sequence[Phases]) -> tuple[int, ...]:
    return tuple(extent for dimension in dimensions for extent in (dimension.count, dimension.stride))


def _axis_names(rank: int, *channels: str) -> tuple[str, ...]:
    image = [name for axis in IMAGE_AXES[rank] for name in (axis, PHASE_AXES[axis])]
    return ("b", *image, *channels)


def _tap_axes(dimensions: Sequence[Phases]) -> tuple[Axis, ...]:
    names = IMAGE_AXES[len(dimensions)]
    return tuple(reduce_axis(item.taps, TAP_AXES[axis]) for item, axis in zip(dimensions, names, strict=True))


def _padded(data: Tensor, dimensions: Sequence[Phases], value: float) -> Tensor:
    rest = (0,) * (len(data.shape) - 1 - len(dimensions))
    before = [item.before for item in dimensions]
    return pad(data, (0, *before, *rest), (0, *(item.after for item in dimensions), *rest), value)


def _seen(places: Sequence[Term], taps: Sequence[Axis | int], dimensions: Sequence[Phases]) -> list[Term]:
    """Where the padded input is read: `places` holds (count, phase) of every dimension in turn."""
    counts, within = places[0::2], places[1::2]
    return [
        i + a * item.step + t + (item.first + item.before)
        if item.step
        else i + t + (item.first + item.before)
        for i, a, t, item in zip(counts, within, taps, dimensions, strict=True)
    ]


def _check(
    name: str, data: Tensor, weight: Sequence[int], dimensions: Sequence[Phases], channels: tuple[int, ...]
) -> None:
    rank = len(dimensions)
    image = tuple(item.extent for item in dimensions)
    expected = (*(item.stride for item in dimensions), *(item.taps for item in dimensions))
    if data.shape[1:] != (*image, *channels) or tuple(weight[: 2 * rank]) != expected:
        raise ExpressionError(
            f"transposed convolution {name}: expected data [n, {', '.join(map(str, (*image, *channels)))}] "
            f"and weights with phases and taps {expected}, found {data.shape} and {tuple(weight)}"
        )
