"""Convolutions by Winograd's algorithms F(m x m', r x r') (Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks"): Y = A^T [(G w G'^T) * (B^T d B')] A' for every m x m' tile of the output. Matrices without
a prime are of the rows, those with one of the columns.

    d [n, h, w, ci]  -- B^T d B' -->  V [x, y, tile, ci]  -- times U [x, y, ci, co] -->  M [x, y, tile, co]
                     -- A^T M A' -->  out [n, h, w, co]

U = G w G'^T is computed ahead of time in float64 (`transform_weights`). x and y run over the m + r - 1
positions of a transformed tile. Both transforms are separable, so each is two sums over one matrix of
literals. The tiles are rounded up: the last ones read zeros beyond the padding, and nobody reads what they
compute there.

With stride 2 the algorithms along rows and columns are those of matrices.py for it, and neighbouring tiles of
m x m' outputs read inputs that lie 2 m rows or 2 m' columns apart. Where even and odd inputs are channels of
their own, d is the image with space to depth, and M sums up their products, too.

Of a transposed convolution every phase (families/transposed.py) is a convolution with stride 1 and a small
kernel of its own: 2 x 2 taps for a 4x4 kernel with stride 2. U, M and the output then have two more axes,
for the phases (a, b) of rows and columns, and a tile is the m x m outputs of all phases over the same input
pixels. Neighbouring phases read inputs that overlap; what their transforms have in common is computed once
(`shared_positions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression.families.data_movement import pad
from cross.expression.families.window import Window
from cross.expression.language.functions import logical_and, reduce_axis, sum
from cross.expression.language.tensor import Axis, Tensor, compute
from cross.expression.language.terms import Int, Term, lookup, select
from cross.expression.rewrites.winograd.matrices import Filtering, Matrix, Planar

PHASES, POSITIONS, TILE = ("py", "px"), ("x", "y"), ("b", "ty", "tx")  # names of axes


class PhaseReads(msgspec.Struct, frozen=True):
    """Where the phases of one dimension read: output (i, a) sums the inputs at i + first + step * a + t.

    There are `count` values of i, `phases` of a, and as many of t as the algorithm has taps. `first` counts
    from the first element of the input without padding. A convolution that is not transposed has one phase.
    """

    count: int
    phases: int
    first: int
    step: int


def transform_weights(weight: NDArray[Any], algorithm: Planar, first: int = 0) -> NDArray[Any]:
    """U = G w G'^T along the dimensions `first` and the next: taps -> side, rounded once to the dtype.

    Weights [3, 3, ci, co] -> [m + 2, m + 2, ci, co]; phases [a, b, 2, 2, ci, co] with `first` = 2.
    """
    result = weight.astype(np.float64)
    for dimension, item in enumerate(algorithm.both, start=first):
        matrix = np.array(item.weight, np.float64)
        result = np.moveaxis(np.tensordot(matrix, result, axes=(1, dimension)), 0, dimension)
    return np.ascontiguousarray(result.astype(weight.dtype))


def winograd_conv2d(
    data: Tensor, weights: Tensor, algorithm: Planar, window: Window, name: str = "conv"
) -> Tensor:
    """Convolution of data [n, h, w, ci] by transformed weights [side, side', ci, co] -> [n, oh, ow, co].

    With space to depth the weights are [depth side, depth' side', ci, co]: see Filtering.

    Raises:
        ExpressionError: strides or dilations other than 1, or shapes that do not fit.
    """
    sides = algorithm.weight_sides
    if len(data.shape) != 4 or len(weights.shape) != 4 or weights.shape[:2] != sides:
        raise ExpressionError(
            f"winograd_conv2d {name}: expected data of rank 4 and weights [{sides[0]}, {sides[1]}, ci, co] "
            f"of {algorithm.name}, found shapes {data.shape} and {weights.shape}"
        )
    if data.shape[3] != weights.shape[2]:
        raise ExpressionError(
            f"winograd_conv2d {name}: the data has {data.shape[3]} input channels, the weights are for "
            f"{weights.shape[2]}"
        )
    strides = tuple(item.stride for item in algorithm.both)
    if window.strides != strides or window.dilations != (1, 1):
        raise ExpressionError(
            f"winograd_conv2d {name}: expected strides {strides} of {algorithm.name} and dilations of 1, "
            f"found {window.strides} and {window.dilations}; use conv2d"
        )
    counts = window.output(data.shape[1:3], tuple(item.taps for item in algorithm.both))
    reads = [PhaseReads(count, 1, -before, 0) for count, before in zip(counts, window.before, strict=True)]
    return _convolution(data, weights, reads, algorithm, name)


def winograd_transposed_conv2d(
    data: Tensor,
    weights: Tensor,
    reads: Sequence[PhaseReads],
    algorithm: Planar,
    name: str = "transposed_conv",
) -> Tensor:
    """Transposed convolution of data [n, h, w, ci] by transformed weights [phases..., side, side', ci, co]
    -> [n, count, phase, count, phase, co].

    Raises:
        ExpressionError: shapes that do not fit.
    """
    sides = (item.side for item in algorithm.both)
    expected = (*(item.phases for item in reads), *sides, *data.shape[3:])
    if len(data.shape) != 4 or len(weights.shape) != 6 or weights.shape[:5] != expected:
        raise ExpressionError(
            f"winograd_transposed_conv2d {name}: expected data of rank 4 and weights [phases..., side, side, "
            f"ci, co] of {algorithm.name}, found shapes {data.shape} and {weights.shape}"
        )
    return _convolution(data, weights, reads, algorithm, name)


def _convolution(
    data: Tensor, weights: Tensor, reads: Sequence[PhaseReads], algorithm: Planar, name: str
) -> Tensor:
    """The stages of a convolution; with axes for the phases where the weights have them."""
    phases, steps = weights.shape[:-4], [item.step for item in algorithm.both]
    high, wide = (item.outputs for item in algorithm.both)
    tiles = [-(-item.count // size) for item, size in zip(reads, (high, wide), strict=True)]
    shared = [shared_positions(*item) for item in zip(algorithm.both, reads, strict=True)]
    before = [max(0, -item.first) for item in reads]
    starts = [max(0, item.first) for item in reads]
    # Tiles that reach beyond the padded image read zeros there.
    ends = [(tiles[i] - 1) * steps[i] + starts[i] + len(shared[i][0]) for i in range(2)]
    if algorithm.depths == (1, 1):
        after = [max(0, ends[i] - before[i] - data.shape[1 + i]) for i in range(2)]
        padded = pad(data, (0, *before, 0), (0, *after, 0))
    else:
        padded = _space_to_depth(data, algorithm.depths, before, ends, f"{name}.depth")
    transformed = _data_transform(padded, tiles, steps, [matrix for matrix, _ in shared], starts, name)
    products = _products(transformed, weights, [shift for _, shift in shared], algorithm.depths, name)
    inverse = _inverse_transform(products, algorithm, name)
    if not phases:
        return compute(
            (data.shape[0], reads[0].count, reads[1].count, weights.shape[-1]),
            lambda b, y, x, c: inverse[b, y // high, x // wide, y % high, x % wide, c],
            name=name,
        )
    return compute(
        (data.shape[0], reads[0].count, phases[0], reads[1].count, phases[1], weights.shape[-1]),
        lambda b, y, py, x, px, c: inverse[b, y // high, x // wide, py, px, y % high, x % wide, c],
        name=name,
    )


def _space_to_depth(
    data: Tensor, depths: Sequence[int], before: Sequence[int], sizes: Sequence[int], name: str
) -> Tensor:
    """[n, sizes..., depth depth' ci]: the image behind `before` zeros, depth x depth' pixels together as one.

    Zeros follow the image, too.
    """
    _, height, width, channels = data.shape
    down, across = depths

    def body(b: Term, y: Term, x: Term, c: Term) -> Term:
        row, beside = down * y + c // (across * channels) - before[0], c % (across * channels)
        column = across * x + beside // channels - before[1]
        inside = logical_and(row >= 0, row < height, column >= 0, column < width)
        return select(inside, data[b, row, column, beside % channels], 0.0)

    return compute((data.shape[0], *sizes, down * across * channels), body, name=name)


def shared_positions(algorithm: Filtering, reads: PhaseReads) -> tuple[Matrix, int]:
    """B of all phases at once [inputs, positions], and how many positions one phase lies behind another.

    Position x of phase a is number shift * a + x. Phases that read the same inputs share all positions; of
    two that read one input apart, the last position (infinity) of the first is the first (0) of the second.
    """
    shifts = range(algorithm.side + 1)
    shift, columns = next(
        (shift, columns) for shift in shifts if (columns := _columns(algorithm, reads, shift)) is not None
    )
    return tuple(zip(*columns, strict=True)), shift


def _columns(algorithm: Filtering, reads: PhaseReads, shift: int) -> list[tuple[float, ...]] | None:
    """The columns of B by number, None where two that differ would have the same number."""
    inputs = algorithm.side + reads.step * (reads.phases - 1)
    found: dict[int, tuple[float, ...]] = {}
    for phase in range(reads.phases):
        for position, column in enumerate(zip(*algorithm.data, strict=True)):
            before = (0.0,) * (reads.step * phase)
            whole = (*before, *column, *(0.0,) * (inputs - len(before) - len(column)))
            if found.setdefault(shift * phase + position, whole) != whole:
                return None
    return [found[number] for number in range(len(found))]


def _data_transform(
    data: Tensor,
    tiles: Sequence[int],
    steps: Sequence[int],
    matrices: Sequence[Matrix],
    starts: Sequence[int],
    name: str,
) -> Tensor:
    """V[x, y, b, ty, tx, c] = sum over i, j of B[i, x] B'[j, y] d[b, ty m + i + s, tx m' + j + s', c].

    `steps` are m and m' (times the strides), `matrices` B and B', [inputs of a tile, positions], `starts` s
    and s', of the rows and the columns.
    """
    high, wide = steps
    heights, widths = matrices
    n, channels = data.shape[0], data.shape[3]
    i, j = reduce_axis(len(heights), "i"), reduce_axis(len(widths), "j")
    rows = compute(
        (n, *tiles, len(heights[0]), len(widths), channels),
        lambda b, ty, tx, x, q, c: sum(
            lookup(heights, i, x, data.dtype)
            * data[b, ty * high + i + starts[0], tx * wide + q + starts[1], c],
            i,
        ),
        name=f"{name}.rows",
    )
    return compute(
        (len(heights[0]), len(widths[0]), n, *tiles, channels),
        lambda x, y, b, ty, tx, c: sum(lookup(widths, j, y, data.dtype) * rows[b, ty, tx, x, j, c], j),
        name=f"{name}.data",
    )


def _products(
    data: Tensor, weights: Tensor, shifts: Sequence[int], depths: Sequence[int], name: str
) -> Tensor:
    """M[py, px, x, y, b, ty, tx, o] = sum over c of V[x', y', b, ty, tx, c] U[py, px, x, y, c, o].

    Position x of phase py is number x' = py shift + x of V. Without phases there is no py and px. With
    `depths` the sum runs over kh and kw, too: V's channel is (kh depth' + kw) ci + c, U's positions are
    depth x + kh and depth' y + kw.
    """
    kc = reduce_axis(weights.shape[-2], "kc")
    down, across = depths
    kh, kw = (
        reduce_axis(down, "kh") if down > 1 else Int(0),
        reduce_axis(across, "kw") if across > 1 else Int(0),
    )
    summed = [axis for axis in (kh, kw, kc) if isinstance(axis, Axis)]
    phases = PHASES if len(weights.shape) == 6 else ()

    def body(*axes: Term) -> Term:
        *phase, x, y, b, ty, tx, c = axes
        starts = [axis * shift for axis, shift in zip(phase, shifts, strict=False)]
        place = [start + axis for start, axis in zip(starts, (x, y), strict=True)] if starts else (x, y)
        depth = (kh * across + kw) * weights.shape[-2] + kc
        read = (x * down + kh, y * across + kw)
        return sum(data[(*place, b, ty, tx, depth)] * weights[(*phase, *read, kc, c)], summed)

    sides = [side // depth for side, depth in zip(weights.shape[-4:-2], depths, strict=True)]
    shape = (*weights.shape[:-4], *sides, *data.shape[2:5], weights.shape[-1])
    return compute(shape, body, f"{name}.products", (*phases, *POSITIONS, *TILE, "c"))


def _inverse_transform(products: Tensor, algorithm: Planar, name: str) -> Tensor:
    """Y[b, ty, tx, py, px, u, v, c] = sum over x, y of A[x, u] A'[y, v] M[py, px, x, y, b, ty, tx, c]."""
    rows, columns = algorithm.both
    grid, channels = products.shape[-4:-1], products.shape[-1]
    shape, phases = products.shape[:-6], PHASES if len(products.shape) == 8 else ()
    i, j = reduce_axis(rows.side, "i"), reduce_axis(columns.side, "j")

    def half_of(b: Term, ty: Term, tx: Term, *axes: Term) -> Term:
        *phase, u, y, c = axes
        return sum(lookup(rows.output, i, u, products.dtype) * products[(*phase, i, y, b, ty, tx, c)], i)

    half = compute(
        (*grid, *shape, rows.outputs, columns.side, channels),
        half_of,
        f"{name}.half",
        (*TILE, *phases, "u", "y", "c"),
    )

    def whole(*axes: Term) -> Term:
        *outer, v, c = axes
        return sum(lookup(columns.output, j, v, products.dtype) * half[(*outer, j, c)], j)

    return compute(
        (*grid, *shape, rows.outputs, columns.outputs, channels),
        whole,
        f"{name}.tile",
        (*TILE, *phases, "u", "v", "c"),
    )
