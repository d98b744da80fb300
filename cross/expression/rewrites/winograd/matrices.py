"""Winograd's minimal filtering F(m, r): m outputs of a filter with r taps by m + r - 1 products.

    y = A^T [(G g) * (B^T d)]        y[u] = sum over t of d[u + t] g[t], for m + r - 1 inputs d and r taps g

They interpolate at 0, 1, -1, 2, -2 as far as needed and at infinity (Winograd, "Arithmetic Complexity of
Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"). Denominators stand
in G, which is applied ahead of time, so that the other two hold small integers.

A window of two dimensions has one for its rows and one for its columns (`Planar`): along a dimension with one
tap there is nothing to save, and F(1, 1) does nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

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

    @property
    def side(self) -> int:
        """Inputs of a tile, and products."""
        return self.outputs + self.taps - 1


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
        """Such as F(2x2,3x3)."""
        rows, columns = self.both
        return f"F({rows.outputs}x{columns.outputs},{rows.taps}x{columns.taps})"


def planar(outputs: int, taps: tuple[int, int]) -> Planar | None:
    """The algorithm with so many outputs, of TILES, along each of the (rows, columns) that has several taps.

    Known are 2 and 3 taps, and 5 with two outputs: more of them need points that round more. None where there
    is none, or both dimensions have one tap.
    """
    rows, columns = (_FILTERINGS.get((outputs if extent > 1 else 1, extent)) for extent in taps)
    return None if rows is None or columns is None or taps == (1, 1) else Planar(rows, columns)


_SIX_POINTS: Matrix = (
    (4, 0, 0, 0, 0, 0),
    (0, -4, 4, -2, 2, 4),
    (-5, -4, -4, -1, -1, 0),
    (0, 1, -1, 2, -2, -5),
    (1, 1, 1, 1, 1, 0),
    (0, 0, 0, 0, 0, 1),
)
"""B of every F(m, r) with m + r = 7: 0, 1, -1, 2, -2 and infinity."""

_FILTERINGS = {
    (item.outputs, item.taps): item
    for item in (
        Filtering(1, 1, data=((1,),), weight=((1,),), output=((1,),)),
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
                (1 / 4, 0, 0),
                (-1 / 6, -1 / 6, -1 / 6),
                (-1 / 6, 1 / 6, -1 / 6),
                (1 / 24, 1 / 12, 1 / 6),
                (1 / 24, -1 / 12, 1 / 6),
                (0, 0, 1),
            ),
            output=((1, 0, 0, 0), (1, 1, 1, 1), (1, -1, 1, -1), (1, 2, 4, 8), (1, -2, 4, -8), (0, 0, 0, 1)),
        ),
        Filtering(
            2,
            5,
            data=_SIX_POINTS,
            weight=(
                (1 / 4, 0, 0, 0, 0),
                (-1 / 6, -1 / 6, -1 / 6, -1 / 6, -1 / 6),
                (-1 / 6, 1 / 6, -1 / 6, 1 / 6, -1 / 6),
                (1 / 24, 1 / 12, 1 / 6, 1 / 3, 2 / 3),
                (1 / 24, -1 / 12, 1 / 6, -1 / 3, 2 / 3),
                (0, 0, 0, 0, 1),
            ),
            output=((1, 0), (1, 1), (1, -1), (1, 2), (1, -2), (0, 1)),
        ),
    )
}
