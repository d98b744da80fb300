"""Winograd's minimal filtering F(m, r): m outputs of a filter with r taps by m + r - 1 products.

    y = A^T [(G g) * (B^T d)]        y[u] = sum over t of d[u + t] g[t], for m + r - 1 inputs d and r taps g

They interpolate at as many points, of which infinity is one (Winograd, "Arithmetic Complexity of
Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"). The others are
chosen to round little, as Barabasz et al. do ("Error Analysis and Improving the Accuracy of Winograd
Convolution for Deep Neural Networks", 2020): see _POINTS. Divisions stand in G, which is applied ahead of
time, so that the other two hold numbers that are exact in floating point.

A window of two dimensions has one for its rows and one for its columns (`Planar`): along a dimension with one
tap there is nothing to save, and F(1, 1) does nothing.

With stride 2 the even inputs meet the even taps, the odd inputs the odd taps: two filters with stride 1,
whose outputs are added up (`_interleaved`). Of 3 taps there are 2 and 1: 4 outputs take 5 + 4 products.

Where the two filters are one F(m, r), of as many taps or with a zero for the last odd one, their products are
added up before the inverse transform (`_space_to_depth`): even and odd inputs are channels of their own. Of
7 taps 4 outputs take 7 products of 2 channels, in a plane 49 of 4 channels, directly 784 of 1.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from math import prod

import msgspec
from msgspec.structs import replace

Matrix = tuple[tuple[float, ...], ...]

TILES = (2, 3, 4, 5)  # m
FEW_CHANNELS = 4  # at most, of an image: with space to depth there are enough of them to fill vectors


class Filtering(msgspec.Struct, frozen=True):
    """F(outputs, taps): `data` is B [side, side], `weight` G [depth side, taps], `output` A [side, outputs].

    `depth`: how many neighbouring inputs are channels of one; row depth x + p of G is position x of input p.
    """

    outputs: int
    taps: int
    data: Matrix
    weight: Matrix
    output: Matrix
    stride: int = 1
    depth: int = 1

    @property
    def side(self) -> int:
        """Inputs of a tile, `depth` together as one, and products."""
        return self.stride // self.depth * (self.outputs - 1) + -(-self.taps // self.depth)

    @property
    def step(self) -> int:
        """Inputs from one tile to the next, `depth` together as one."""
        return self.stride // self.depth * self.outputs


class Planar(msgspec.Struct, frozen=True):
    """An algorithm for the rows of a window and one for its columns."""

    rows: Filtering
    columns: Filtering

    @property
    def both(self) -> tuple[Filtering, Filtering]:
        """Of the rows, then of the columns."""
        return self.rows, self.columns

    @property
    def depths(self) -> tuple[int, int]:
        """Of the rows, then of the columns."""
        return self.rows.depth, self.columns.depth

    @property
    def weight_sides(self) -> tuple[int, int]:
        """Rows of G for the rows, then of G' for the columns."""
        return len(self.rows.weight), len(self.columns.weight)

    @property
    def name(self) -> str:
        """Such as F(2x2,3x3); with strides F(2x2,3x3)/2x2."""
        rows, columns = self.both
        strides = "" if rows.stride == columns.stride == 1 else f"/{rows.stride}x{columns.stride}"
        return f"F({rows.outputs}x{columns.outputs},{rows.taps}x{columns.taps}){strides}"


def planar(
    outputs: int, taps: tuple[int, int], strides: tuple[int, int] = (1, 1), *, deep: bool = False
) -> Planar | None:
    """The algorithm with so many outputs, of TILES, along each of the (rows, columns) that has several taps.

    Known are those with at most seven points. With stride 2 these are windows of 3 to 8 taps: with 4, or more
    than 5, even and odd inputs are channels of their own; if `deep`, with 5, too. None where there is none,
    or both dimensions have one tap.
    """
    rows, columns = (
        _filtering(outputs if extent > 1 else 1, extent, stride, deep)
        for extent, stride in zip(taps, strides, strict=True)
    )
    return None if rows is None or columns is None or taps == (1, 1) else Planar(rows, columns)


def _filtering(outputs: int, taps: int, stride: int, deep: bool) -> Filtering | None:
    tables = (_DEEP, _FILTERINGS) if deep else (_FILTERINGS, _DEEP)
    key = outputs, taps, stride
    return next((table[key] for table in tables if key in table), None)


def _of_one_tap(outputs: int) -> Filtering:
    """F(outputs, 1): a product for each output."""
    same = tuple(tuple(float(row == column) for column in range(outputs)) for row in range(outputs))
    return Filtering(outputs, 1, data=same, weight=((1.0,),) * outputs, output=same)


def _interleaved(even: Filtering, odd: Filtering) -> Filtering:
    """The algorithm with stride 2 from those of the even taps and of the odd taps, of as many outputs."""
    taps = even.taps + odd.taps
    side = 2 * (even.outputs - 1) + taps
    data = [[0.0] * side for _ in range(side)]
    weight = [[0.0] * taps for _ in range(side)]
    for phase, item in enumerate((even, odd)):
        first = phase * even.side
        for position in range(item.side):
            for number in range(item.side):
                data[2 * number + phase][first + position] = item.data[number][position]
            for number in range(item.taps):
                weight[first + position][2 * number + phase] = item.weight[position][number]
    inputs, kernel = (tuple(map(tuple, matrix)) for matrix in (data, weight))
    return Filtering(even.outputs, taps, inputs, kernel, even.output + odd.output, stride=2)


def _space_to_depth(item: Filtering, taps: int) -> Filtering:
    """The algorithm with stride 2 for so many taps: that of the even taps serves the odd ones, too.

    If there is one odd tap less, the last is 0.
    """
    weight = [[0.0] * taps for _ in range(2 * item.side)]
    for position, row in enumerate(item.weight):
        for phase in range(2):
            for number in range((taps + 1 - phase) // 2):
                weight[2 * position + phase][2 * number + phase] = row[number]
    kernel = tuple(map(tuple, weight))
    return Filtering(item.outputs, taps, item.data, kernel, item.output, stride=2, depth=2)


def _interpolated(outputs: int, taps: int, points: Sequence[Fraction | None]) -> Filtering:
    """F(outputs, taps) by outputs + taps - 1 points, of which None is infinity: Toom-Cook, transposed.

    For a point p, B has the polynomial whose zeros are the other points, A and G the powers of p, G divided
    by what that polynomial is at p. For infinity all points are zeros of the polynomial.

    The highest power comes first, for outputs and taps in reverse order: most sums then begin with an input
    that is not multiplied. Signs of B and G are turned where p < 0. So products at p and -p share the sum of
    inputs of even number, if these are added up before the others (schedule/winograd/stages.py): 4 of 16
    operations of F(4x4,3x3) are additions then, not multiply-adds, and an image of 20x20x32 is 1.05 times
    as fast on a Zen 4.
    """
    data, weight, output = [], [], []
    for point in points:
        others = [other for other in points if other is not None and other != point]
        polynomial = _with_zeros(others)
        if point is None:
            data.append(polynomial)
            weight.append([Fraction(power == 0) for power in range(taps)])
            output.append([Fraction(power == 0) for power in range(outputs)])
        else:
            sign = -1 if point < 0 else 1
            at_point = sign * prod(point - other for other in others)
            data.append([Fraction(0), *(sign * value for value in polynomial)])
            weight.append([point**power / at_point for power in reversed(range(taps))])
            output.append([point**power for power in reversed(range(outputs))])
    return Filtering(outputs, taps, _floats(zip(*data, strict=True)), _floats(weight), _floats(output))


def _with_zeros(zeros: Sequence[Fraction]) -> list[Fraction]:
    """The coefficients, highest first, of the polynomial x^n + ... with these zeros."""
    found = [Fraction(1)]
    for zero in zeros:
        found = [
            high - zero * low for high, low in zip([*found, Fraction(0)], [Fraction(0), *found], strict=True)
        ]
    return found


def _floats(rows: Iterable[Iterable[Fraction]]) -> Matrix:
    return tuple(tuple(map(float, row)) for row in rows)


def _with_negatives(*points: str) -> list[Fraction]:
    return [sign * Fraction(point) for point in points for sign in (1, -1)]


_POINTS: dict[int, list[Fraction | None]] = {
    3: [None, Fraction(1), Fraction(0)],
    4: [None, *_with_negatives("1"), Fraction(0)],
    5: [None, *_with_negatives("1"), Fraction(2), Fraction(0)],
    6: [None, *_with_negatives("3/4", "3/2"), Fraction(0)],
    7: [None, *_with_negatives("1/4", "1", "3/2")],
}
"""By their number. With infinity first and 0 last, phases of a transposed convolution that read one input
apart share a position. Of all pairs and sets of three among the multiples of 1/4 up to 7/4, 2 and 5/2, whose
transforms are exact, those of six and seven round least or hardly more: F(4x4,3x3) of 128 channels a quarter
of what it does by 1, 2 and their negatives, and takes less than 1 % longer on a Zen 4."""

_WITH_STRIDE_1 = {
    **{(outputs, 1): _of_one_tap(outputs) for outputs in (1, 2, 4)},
    **{
        (outputs, taps): _interpolated(outputs, taps, _POINTS[outputs + taps - 1])
        for outputs, taps in ((2, 2), (2, 3), (2, 4), (2, 5), (3, 5), (4, 2), (4, 3), (4, 4), (5, 3))
    },
}

_FILTERINGS = {
    **{(*key, 1): item for key, item in _WITH_STRIDE_1.items()},
    (1, 1, 2): replace(_WITH_STRIDE_1[1, 1], stride=2),
    **{
        (outputs, taps, 2): _interleaved(
            _WITH_STRIDE_1[outputs, -(-taps // 2)], _WITH_STRIDE_1[outputs, taps // 2]
        )
        for outputs in (2, 4)
        for taps in (3, 5)
    },
}
_DEEP = {
    (outputs, taps, 2): _space_to_depth(_WITH_STRIDE_1[outputs, -(-taps // 2)], taps)
    for outputs in (2, 4)
    for taps in range(4, 9)
}
"""Both by outputs, taps and stride."""
