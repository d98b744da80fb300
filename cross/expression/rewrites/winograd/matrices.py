"""Winograd's minimal filtering F(m, r): m outputs of a filter with r taps by m + r - 1 products.

    y = A^T [(G g) * (B^T d)]        y[u] = sum over t of d[u + t] g[t], for m + r - 1 inputs d and r taps g

They interpolate at 0, 1, -1, 2, -2 as far as needed and at infinity (Winograd, "Arithmetic Complexity of
Computations", 1980; Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"). Denominators stand
in G, which is applied ahead of time, so that the other two hold small integers.
"""

from __future__ import annotations

from dataclasses import dataclass

Matrix = tuple[tuple[float, ...], ...]

TILES = (2, 4)  # m
TAPS = (2, 3)  # r


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

    @property
    def name(self) -> str:
        """Of the two-dimensional algorithm, such as F(2x2,3x3)."""
        return f"F({self.outputs}x{self.outputs},{self.taps}x{self.taps})"


def filtering(outputs: int, taps: int) -> Filtering:
    """F(outputs, taps) for outputs of TILES and taps of TAPS."""
    return _FILTERINGS[outputs, taps]


_FILTERINGS = {
    (item.outputs, item.taps): item
    for item in (
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
            data=(
                (4, 0, 0, 0, 0, 0),
                (0, -4, 4, -2, 2, 4),
                (-5, -4, -4, -1, -1, 0),
                (0, 1, -1, 2, -2, -5),
                (1, 1, 1, 1, 1, 0),
                (0, 0, 0, 0, 0, 1),
            ),
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
    )
}
