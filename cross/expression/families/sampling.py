"""Reading images between their elements, at positions that are computed: grid sampling, regions of interest.

A position counts elements: 0 is the middle of the first one. No position leads outside of an image, whatever
the data: see `bounded`.
"""

from __future__ import annotations

from collections.abc import Sequence

from cross.expression.families.indexed import nearest
from cross.expression.families.pool import COMBINERS
from cross.expression.language import functions
from cross.expression.language.dtypes import INDEX
from cross.expression.language.functions import (
    absolute,
    equal,
    floor,
    logical_and,
    logical_or,
    maximum,
    minimum,
    reduce_axis,
)
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Operand, Term, call, cast, constant, lookup, select

TAPS = {"nearest": 1, "linear": 2, "cubic": 4}
"""Elements along a dimension that a mode weighs."""
CUBIC = -0.75  # the coefficient of Keys' cubic convolution (1981) that ONNX names
BEYOND = 4.0  # elements outside of an image: no tap of a position there is inside

MOST_NEAR = 7  # of an element: 2 / 0.5 + 1 samples, one that is found too early, and one for rounding
LOWEST = float("-inf")  # of bins without elements
LEAST_STEP = 1e-6  # elements between the samples of a region that is a point


def bounded(x: Term, low: Operand, high: Operand) -> Term:
    """x, or the end of the range that it is beyond; `low` of NaN."""
    return select(x >= low, select(x <= high, x, high), low)


def unnormalized(
    grid: Tensor, image: Sequence[int], mode: str, padding: str, align_corners: bool, name: str = "positions"
) -> Tensor:
    """The positions [..., r] in an image of r dimensions that a grid [..., r] names, the last one first.

    In a grid -1 and 1 are the borders of the image, or with `align_corners` the middles of its outer
    elements. Positions outside stay there ("zeros"), become the nearest inside ("border") or are mirrored
    ("reflection").
    """

    def body(*axes: Term) -> Term:
        *outer, dimension = axes
        length = lookup([image], 0, dimension, grid.dtype)
        x = grid[(*outer, len(image) - 1 - dimension)]
        x = (x + 1.0) * (length - 1.0) * 0.5 if align_corners else ((x + 1.0) * length - 1.0) * 0.5
        x = call("round", x) if mode == "nearest" else x
        first: Operand = 0.0 if align_corners else -0.5
        last = length - (1.0 if align_corners else 0.5)
        inside = logical_and(x >= first, x <= last)
        if padding == "border":
            return select(inside, x, bounded(x, 0.0, length - 1.0))
        return x if padding == "zeros" else select(inside, x, _mirrored(x, first, last))

    return compute(grid.shape, body, name=name)


def _mirrored(x: Term, first: Operand, last: Term) -> Term:
    """A number outside of a range, mirrored at its ends until it is inside."""
    span = maximum(last - first, 1.0)
    distance = maximum(first - x, x - last)
    turns = floor(distance / span)
    rest = distance - turns * span
    even = equal(turns, floor(turns * 0.5) * 2.0)
    from_first = equal(x < first, even)
    return select(from_first, first + rest, last - rest)


def sample(
    data: Tensor, positions: Tensor, mode: str, padding: str, align_corners: bool, name: str = "sample"
) -> Tensor:
    """data [n, image..., c] at positions [n, output..., r] -> [n, output..., c], r the image's dimensions.

    `mode` is a key of TAPS; what an element outside counts as is `padding`: "zeros" 0, "border" the nearest
    one, "reflection" the one mirrored at the border, or with `align_corners` at the middle of the outer one.
    """
    image, count = data.shape[1:-1], TAPS[mode]
    taps = [reduce_axis(count, f"tap{d}") for d in range(len(image))]

    def body(*axes: Term) -> Term:
        batch, *place, channel = axes
        indices: list[Term] = []
        inside: list[Term] = []
        weights: list[Term] = []
        for dimension, (extent, tap) in enumerate(zip(image, taps, strict=True)):
            x = bounded(positions[(batch, *place, dimension)], -BEYOND, extent + BEYOND)
            index = cast(INDEX, floor(x))
            if count > 1:
                index = index + tap - (count // 2 - 1)
                weights.append(_weight(tap, x - floor(x), count))
            inside += [index >= 0, index < extent]
            mirrored = _mirrored_index(index, extent, align_corners) if padding == "reflection" else index
            indices.append(nearest(mirrored, extent))
        element = data[(batch, *indices, channel)]
        if padding == "zeros":
            element = select(logical_and(*inside), element, 0.0)
        for weight in weights:
            element = element * cast(data.dtype, weight)
        return functions.sum(element, taps) if weights else element

    return compute((*positions.shape[:-1], data.shape[-1]), body, name=name)


def _mirrored_index(index: Term, extent: int, align_corners: bool) -> Term:
    """An index mirrored at the middles of the outer elements, or at the borders of the image."""
    last = extent - 1 if align_corners else extent
    turned = index % max(2 * last, 1)
    return select(turned < extent, turned, 2 * last - (0 if align_corners else 1) - turned)


def _weight(tap: Term, part: Term, count: int) -> Term:
    """What a tap weighs, of a position `part` behind the tap number count // 2 - 1."""
    if count == TAPS["linear"]:
        return select(equal(tap, 0), 1.0 - part, part)
    t = absolute(part + 1.0 - cast(part.dtype, tap))
    near = ((CUBIC + 2.0) * t - (CUBIC + 3.0)) * t * t + 1.0
    far = ((CUBIC * t - 5.0 * CUBIC) * t + 8.0 * CUBIC) * t - 4.0 * CUBIC
    return select(t <= 1.0, near, far)


def align_regions(
    data: Tensor, regions: Tensor, batches: Tensor, output: Sequence[int], points: int, combiner: str
) -> Tensor:
    """ONNX's RoiAlign: data [n, h, w, c] in regions [r, 4] of the images `batches` [r] -> [r, oh, ow, c].

    A region (left, top, width, height) has oh * ow equal bins, and each of them
    points * points samples, read linearly, whose terms are combined by "sum" or "max". A sample more than
    an element outside of the image is 0; those nearer take the outer elements.
    """
    taps = [reduce_axis(2, f"tap{d}") for d in range(2)]
    samples = [reduce_axis(points, f"point{d}") for d in range(2)]

    def body(region: Term, *axes: Term) -> Term:
        *place, channel = axes
        indices: list[Term] = []
        weight: Term | None = None
        for dimension, extent in enumerate(data.shape[1:3]):
            start, size = (regions[region, item] for item in (1 - dimension, 3 - dimension))
            size = size * (1.0 / output[dimension])
            bins = cast(start.dtype, place[dimension])
            part = (cast(start.dtype, samples[dimension]) + 0.5) * size * (1.0 / points)
            index, own = _outer_taps(start + bins * size + part, extent, taps[dimension])
            indices.append(index)
            weight = own if weight is None else weight * own
        assert weight is not None
        image = nearest(cast(INDEX, batches[region]), data.shape[0])
        element = data[(image, *indices, channel)] * cast(data.dtype, weight)
        return COMBINERS[combiner](element, (*samples, *taps))

    return compute((regions.shape[0], *output, data.shape[-1]), body, name="align_regions")


def _outer_taps(position: Term, extent: int, tap: Term) -> tuple[Term, Term]:
    """The index of the tap 0 or 1 of a position, and its weight in a linear read of an image that goes on.

    It goes on for one element in front and behind; further outside the weight is 0.
    """
    seen = logical_and(position >= -1.0, position <= float(extent))
    x = bounded(position, 0.0, extent - 1.0)
    index = nearest(cast(INDEX, floor(x)) + tap, extent)
    return index, select(seen, select(equal(tap, 0), 1.0 - (x - floor(x)), x - floor(x)), 0.0)


def region_weights(regions: Tensor, extent: int, bins: int, dimension: int) -> Tensor:
    """What the rows (dimension 0) or columns (1) of an image weigh in the bins of regions: [r, bins, extent].

    As `align_regions`, with as many samples in a bin as it has elements, rounded up: their mean.
    """
    candidate = reduce_axis(MOST_NEAR, "candidate")

    def body(region: Term, place: Term, element: Term) -> Term:
        start, size = (regions[region, item] for item in (1 - dimension, 3 - dimension))
        count, step, begin = _samples(start, size, bins, place)
        own = cast(start.dtype, element)
        number, position = _near(own, candidate, step, begin)
        seen = logical_and(number < count, position >= -1.0, position <= float(extent))
        distance = absolute(bounded(position, 0.0, extent - 1.0) - own)
        return functions.sum(select(seen, maximum(1.0 - distance, 0.0) / maximum(count, 1.0), 0.0), candidate)

    return compute((regions.shape[0], bins, extent), body, name="region_weights")


def region_extremes(regions: Tensor, extent: int, bins: int, dimension: int, combiner: str) -> Tensor:
    """The largest ("max") or smallest weight ("min") that one of the samples of `region_weights` gives a row
    or column: [r, bins, extent]; of one that no sample reads -1, or 2.

    Samples outside of the image read its first or last row or column with the weight 0.
    """
    candidate = reduce_axis(MOST_NEAR, "candidate")
    absent, choose = (-1.0, maximum) if combiner == "max" else (2.0, minimum)

    def geometry(region: Term, place: Term) -> tuple[Term, Term, Term]:
        start, size = (regions[region, item] for item in (1 - dimension, 3 - dimension))
        return _samples(start, size, bins, place)

    def body(region: Term, place: Term, element: Term) -> Term:
        count, step, begin = geometry(region, place)
        own = cast(begin.dtype, element)
        number, position = _near(own, candidate, step, begin)
        seen = logical_and(number < count, position >= -1.0, position <= float(extent))
        x = bounded(position, 0.0, extent - 1.0)
        lower, part = floor(x), x - floor(x)
        upper = bounded(lower + 1.0, 0.0, extent - 1.0)
        taps = [
            select(logical_and(seen, equal(own, tap)), weight, absent)
            for tap, weight in ((lower, 1.0 - part), (upper, part))
        ]
        return COMBINERS[combiner](choose(*taps), candidate)

    near = compute((regions.shape[0], bins, extent), body, name="near")

    def all_samples(region: Term, place: Term, element: Term) -> Term:
        count, step, begin = geometry(region, place)
        own = cast(begin.dtype, element)
        before = logical_and(equal(own, 0.0), begin + 0.5 * step < -1.0)
        behind = logical_and(equal(own, extent - 1.0), begin + (count - 0.5) * step > float(extent))
        outside = logical_and(count > 0.0, logical_or(before, behind))
        return choose(near[region, place, element], select(outside, constant(0.0, begin.dtype), absent))

    return compute(near.shape, all_samples, name="region_extremes")


def _samples(start: Term, size: Term, bins: Term | int, place: Term) -> tuple[Term, Term, Term]:
    """How many samples a bin of a region has, how far apart they are, and where the bin begins."""
    size = size * (1.0 / bins)
    count = call("ceil", size)
    return count, size / maximum(count, 1.0), start + cast(start.dtype, place) * size


def _near(own: Term, candidate: Term, step: Term, begin: Term) -> tuple[Term, Term]:
    """Number and position of one of the samples that may be less than an element away from the element `own`.

    They are half an element or more apart.
    """
    first = maximum(floor((own - 1.0 - begin) / maximum(step, LEAST_STEP) - 0.5), 0.0)
    number = first + cast(own.dtype, candidate)
    return number, begin + (number + 0.5) * step


def region_bins(regions: Tensor, extent: int, bins: int, dimension: int, scale: float) -> Tensor:
    """Which rows (dimension 0) or columns (1) of an image lie in the bins of MaxRoiPool's regions [r, 5]:
    1 or -1 [r, bins, extent].
    """

    def body(region: Term, place: Term, element: Term) -> Term:
        start, end = (_rounded(regions[region, item] * scale) for item in (2 - dimension, 4 - dimension))
        size = maximum(end - start + 1.0, 1.0) / float(bins)
        own, number = cast(start.dtype, element), cast(start.dtype, place)
        begins = own >= start + floor(number * size)
        inside = logical_and(begins, own < start + call("ceil", (number + 1.0) * size))
        return select(inside, constant(1.0, start.dtype), -1.0)

    return compute((regions.shape[0], bins, extent), body, name="region_bins")


def _rounded(x: Term) -> Term:
    """The nearest whole number; halves away from 0."""
    size = absolute(x)
    whole = floor(size) + select(size - floor(size) >= 0.5, constant(1.0, x.dtype), 0.0)
    return select(x < 0.0, -whole, whole)


def region_maxima(data: Tensor, rows: Sequence[Tensor], columns: Sequence[Tensor], batches: Tensor) -> Tensor:
    """The largest weighted element of data [n, h, w, c], of the images `batches` [r], in each bin of regions:
    [r, oh, ow, c]; 0 in a bin without any.

    `rows` are the largest and the smallest weights of rows [r, oh, h], the largest negative where one is not
    in a bin, and `columns` those of columns [r, ow, w]; an element weighs the product of both.
    """
    count, width, channels = rows[0].shape[0], columns[0].shape[1], data.shape[-1]
    row, column = reduce_axis(data.shape[1], "row"), reduce_axis(data.shape[2], "column")

    def weighted(element: Term, most: Term, least: Term) -> Term:
        return select(most < 0.0, LOWEST, element * select(element < 0.0, least, most))

    def across(region: Term, y: Term, x: Term, channel: Term) -> Term:
        image = nearest(cast(INDEX, batches[region]), data.shape[0])
        weights = (cast(data.dtype, item[region, x, column]) for item in columns)
        return functions.max(weighted(data[image, y, column, channel], *weights), column)

    lines = compute((count, data.shape[1], width, channels), across, name="across")

    def down(region: Term, y: Term, x: Term, channel: Term) -> Term:
        most, least = (cast(data.dtype, item[region, y, row]) for item in rows)
        line = lines[region, row, x, channel]
        return functions.max(select(line > LOWEST, weighted(line, most, least), LOWEST), row)

    found = compute((count, rows[0].shape[1], width, channels), down, name="down")
    return compute(
        found.shape, lambda *axes: select(found[axes] > LOWEST, found[axes], 0.0), name="region_maxima"
    )


def region_sums(data: Tensor, rows: Tensor, columns: Tensor, batches: Tensor) -> Tensor:
    """data [n, h, w, c] of the images `batches` [r], weighed by rows [r, oh, h] and columns [r, ow, w]:
    [r, oh, ow, c].
    """
    count, width, channels = rows.shape[0], columns.shape[1], data.shape[-1]
    row, column = reduce_axis(data.shape[1], "row"), reduce_axis(data.shape[2], "column")

    def across(region: Term, y: Term, x: Term, channel: Term) -> Term:
        image = nearest(cast(INDEX, batches[region]), data.shape[0])
        return functions.sum(data[image, y, column, channel] * columns[region, x, column], column)

    lines = compute((count, data.shape[1], width, channels), across, name="across")

    def down(region: Term, y: Term, x: Term, channel: Term) -> Term:
        return functions.sum(lines[region, row, x, channel] * rows[region, y, row], row)

    return compute((count, rows.shape[1], width, channels), down, name="region_sums")
