"""Winograd's minimal filtering F(m, r): m outputs of a filter with r taps by m + r - 1 products.

    y = A^T [(G g) * (B^T d)]        y[u] = sum over t of d[u + t] g[t], for m + r - 1 inputs d and r taps g

They interpolate at 0, 1, -1, 2, -2 as far as needed and at infinity (Winograd, "Arithmetic Complexity of
Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"). Denominators stand
in G, which is applied ahead of time, so that the other two hold small integers.

A window of two dimensions has one for its rows and one for its columns (`Planar`): along a dimension with one
tap there is nothing to save, and F(1, 1) does nothing.

With stride 2 the even inputs meet the even taps, the odd inputs the odd taps: two filters with stride 1,
whose outputs are added up (`_interleaved`). Of 3 taps there are 2 and 1: 4 outputs take 5 + 4 products.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

Matrix = tuple[tuple[float, ...], ...]

TILES = (2, 4)  # m


@dataclass(frozen=True, slots=True)
class Filtering:
    """F(outputs, taps): `data` is B [side, side], `weight` G [side, taps], `output` A [side, outputs]."""

    outputs: int
    taps: int
    data: Matrix
    weight: Matrix
    output: Matrix
    stride: int = 1

    @property
    def side(self) -> int:
        """Inputs of a tile, and products."""
        return self.stride * (self.outputs - 1) + self.taps

    @property
    def step(self) -> int:
        """Inputs from one tile to the next."""
        return self.stride * self.outputs


@dataclass(frozen=True, slots=True)
class Planar:
    """An algorithm for the rows of a window and one for its columns."""

    rows: Filtering
    columns: Filtering

    @property
    def both(self) -> tuple[Filtering, Filtering]:
        """Of the rows, then of the columns."""
        return self.rows, self.columns

    @property
    def name(self) -> str:
        """Such as F(2x2,3x3); with strides F(2x2,3x3)/2x2."""
        rows, columns = self.both
        strides = "" if rows.stride == columns.stride == 1 else f"/{rows.stride}x{columns.stride}"
        return f"F({rows.outputs}x{columns.outputs},{rows.taps}x{columns.taps}){strides}"


def planar(outputs: int, taps: tuple[int, int], strides: tuple[int, int] = (1, 1)) -> Planar | None:
    """The algorithm with so many outputs, of TILES, along each of the (rows, columns) that has several taps.

    Known are 2 and 3 taps, and 5 with two outputs: more of them need points that round more. With stride 2, 3
    and 5 taps. None where there is none, or both dimensions have one tap.
    """
    rows, columns = (
        _FILTERINGS.get((outputs if extent > 1 else 1, extent, stride))
        for extent, stride in zip(taps, strides, strict=True)
    )
    return None if rows is None or columns is None or taps == (1, 1) else Planar(rows, columns)


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


_SIX_POINTS: Matrix = (
    (1, 0, 0, 0, 0, 0),
    (0, 1, -1, 1, -1, 1),
    (-5, 1, 1, 2, 2, 0),
    (0, -4, 4, -1, 1, -5),
    (4, -4, -4, -2, -2, 0),
    (0, 0, 0, 0, 0, 4),
)
"""B of every F(m, r) with m + r = 7: infinity, 1, -1, 2, -2 and 0.

It is the transpose of Lavin and Gray's read backwards, for a filter and outputs in reverse order, with the
signs of -1 and -2 turned: where even inputs are added up first, then odd ones (schedule/winograd/stages.py),
products at 1 and -1 (2 and -2) share the sum of the former, and most sums begin with an input that is not
multiplied. Six positions take 9 multiplications and 6 additions, in the order of the inputs 12 and 10.
"""

_WITH_STRIDE_1 = {
    (item.outputs, item.taps): item
    for item in (
        *map(_of_one_tap, (1, *TILES)),
        Filtering(
            2,
            2,
            data=((1, 0, 0), (-1, 1, 1), (0, 0, -1)),
            weight=((1, 0), (1, 1), (0, 1)),
            output=((1, 0), (1, 1), (0, -1)),
        ),
        Filtering(
            4,
            2,
            data=(
                (2, 0, 0, 0, 0),
                (-1, -2, 2, -1, 2),
                (-2, -1, -3, 0, -1),
                (1, 1, 1, 1, -2),
                (0, 0, 0, 0, 1),
            ),
            weight=((1 / 2, 0), (-1 / 2, -1 / 2), (-1 / 6, 1 / 6), (1 / 6, 1 / 3), (0, 1)),
            output=((1, 0, 0, 0), (1, 1, 1, 1), (1, -1, 1, -1), (1, 2, 4, 8), (0, 0, 0, 1)),
        ),
        Filtering(
            2,
            3,
            data=((1, 0, 0, 0), (0, 1, -1, 1), (-1, 1, 1, 0), (0, 0, 0, -1)),
            weight=((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
            output=((1, 0), (1, 1), (1, -1), (0, -1)),
        ),
        Filtering(
            4,
            3,
            data=_SIX_POINTS,
            weight=(
                (1, 0, 0),
                (-1 / 6, -1 / 6, -1 / 6),
                (1 / 6, -1 / 6, 1 / 6),
                (1 / 6, 1 / 12, 1 / 24),
                (-1 / 6, 1 / 12, -1 / 24),
                (0, 0, 1 / 4),
            ),
            output=((1, 0, 0, 0), (1, 1, 1, 1), (-1, 1, -1, 1), (8, 4, 2, 1), (-8, 4, -2, 1), (0, 0, 0, 1)),
        ),
        Filtering(
            2,
            5,
            data=_SIX_POINTS,
            weight=(
                (1, 0, 0, 0, 0),
                (-1 / 6, -1 / 6, -1 / 6, -1 / 6, -1 / 6),
                (1 / 6, -1 / 6, 1 / 6, -1 / 6, 1 / 6),
                (2 / 3, 1 / 3, 1 / 6, 1 / 12, 1 / 24),
                (-2 / 3, 1 / 3, -1 / 6, 1 / 12, -1 / 24),
                (0, 0, 0, 0, 1 / 4),
            ),
            output=((1, 0), (1, 1), (-1, 1), (2, 1), (-2, 1), (0, 1)),
        ),
    )
}

_FILTERINGS = {
    **{(*key, 1): item for key, item in _WITH_STRIDE_1.items()},
    (1, 1, 2): replace(_WITH_STRIDE_1[1, 1], stride=2),
    **{
        (outputs, taps, 2): _interleaved(
            _WITH_STRIDE_1[outputs, -(-taps // 2)], _WITH_STRIDE_1[outputs, taps // 2]
        )
        for outputs in TILES
        for taps in (3, 5)
    },
}
"""By outputs, taps and stride."""
