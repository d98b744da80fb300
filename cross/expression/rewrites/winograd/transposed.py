"""Winograd for transposed convolutions: every phase is a convolution with stride 1 and a small kernel of its
own (transposed.py), so F(m x m, r x r) computes it, r taps each way: 2 for a 4x4 kernel with stride 2.

    d [n, h, w, ci]  -- B^T d B -->  V [x, y, tile, ci]
                     -- times U [a, b, x, y, ci, co] -->  M [a, b, x, y, tile, co]
                     -- A^T M A, phase by phase -->  out [n, (h, a), (w, b), co]

A tile is the m x m outputs of all phases over the same input pixels. Neighbouring phases read inputs that
overlap; what their transforms have in common is computed once (`shared_positions`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cross.errors import ExpressionError
from cross.expression.families.data_movement import pad
from cross.expression.language.functions import reduce_axis, sum
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import lookup
from cross.expression.rewrites.winograd.convolution import data_transform
from cross.expression.rewrites.winograd.matrices import Filtering, Matrix


@dataclass(frozen=True, slots=True)
class PhaseReads:
    """Where the phases of one dimension read: output (i, a) sums the inputs at i + first + step * a + t.

    There are `count` values of i, `phases` of a, and as many of t as the algorithm has taps. `first` counts
    from the first element of the input without padding.
    """

    count: int
    phases: int
    first: int
    step: int


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


def winograd_transposed_conv2d(
    data: Tensor,
    weights: Tensor,
    dimensions: Sequence[PhaseReads],
    algorithm: Filtering,
    name: str = "transposed_conv",
) -> Tensor:
    """Transposed convolution of data [n, h, w, ci] by transformed weights [phases..., side, side, ci, co]
    -> [n, count, phase, count, phase, co].

    Raises:
        ExpressionError: shapes that do not fit.
    """
    phases, counts = tuple(item.phases for item in dimensions), tuple(item.count for item in dimensions)
    expected = (*phases, algorithm.side, algorithm.side, *data.shape[3:])
    if len(data.shape) != 4 or len(weights.shape) != 6 or weights.shape[:5] != expected:
        raise ExpressionError(
            f"winograd_transposed_conv2d {name}: expected data of rank 4 and weights [phases..., side, side, "
            f"ci, co] of {algorithm.name}, found shapes {data.shape} and {weights.shape}"
        )
    tile = algorithm.outputs
    tiles = -(-counts[0] // tile), -(-counts[1] // tile)
    rows, columns = (shared_positions(algorithm, item) for item in dimensions)
    before = [max(0, -item.first) for item in dimensions]
    starts = [max(0, item.first) for item in dimensions]
    # Tiles that reach beyond the padded image read zeros there.
    ends = [(tiles[i] - 1) * tile + starts[i] + len((rows, columns)[i][0]) for i in range(2)]
    after = [max(0, ends[i] - before[i] - data.shape[1 + i]) for i in range(2)]
    padded = pad(data, (0, *before, 0), (0, *after, 0))
    transformed = data_transform(padded, tiles, tile, (rows[0], columns[0]), name, starts)
    products = _products(transformed, weights, (rows[1], columns[1]), name)
    inverse = _inverse_transform(products, algorithm, name)
    return compute(
        (data.shape[0], counts[0], phases[0], counts[1], phases[1], weights.shape[5]),
        lambda b, y, py, x, px, c: inverse[b, y // tile, x // tile, py, px, y % tile, x % tile, c],
        name=name,
    )


def _products(data: Tensor, weights: Tensor, shifts: tuple[int, int], name: str) -> Tensor:
    """M[py, px, x, y, b, ty, tx, o] = sum over c of V[.., b, ty, tx, c] U[py, px, x, y, c, o], with V at
    position x of phase py and y of px, as the shifts say.
    """
    kc = reduce_axis(weights.shape[4], "kc")
    return compute(
        (*weights.shape[:4], *data.shape[2:5], weights.shape[5]),
        lambda py, px, x, y, b, ty, tx, c: sum(
            data[py * shifts[0] + x, px * shifts[1] + y, b, ty, tx, kc] * weights[py, px, x, y, kc, c], kc
        ),
        name=f"{name}.products",
    )


def _inverse_transform(products: Tensor, algorithm: Filtering, name: str) -> Tensor:
    """Y[b, ty, tx, py, px, u, v, c] = sum over x, y of A[x, u] A[y, v] M[py, px, x, y, b, ty, tx, c]."""
    tile, side, matrix = algorithm.outputs, algorithm.side, algorithm.output
    grid, phases, channels = products.shape[4:7], products.shape[:2], products.shape[7]
    i, j = reduce_axis(side, "i"), reduce_axis(side, "j")
    half = compute(
        (*grid, *phases, tile, side, channels),
        lambda b, ty, tx, py, px, u, y, c: sum(
            lookup(matrix, i, u, products.dtype) * products[py, px, i, y, b, ty, tx, c], i
        ),
        name=f"{name}.half",
    )
    return compute(
        (*grid, *phases, tile, tile, channels),
        lambda b, ty, tx, py, px, u, v, c: sum(
            lookup(matrix, j, v, products.dtype) * half[b, ty, tx, py, px, u, j, c], j
        ),
        name=f"{name}.tile",
    )
