"""Winograd convolution F(m x m, 3x3) for m = 2 and 4 (Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks"): Y = A^T [(G w G^T) * (B^T d B)] A for every m x m tile of the output.

    d [n, h, w, ci]  -- B^T d B -->  V [x, y, tile, ci]  -- times U [x, y, ci, co] -->  M [x, y, tile, co]
                     -- A^T M A -->  out [n, h, w, co]

U = G w G^T is computed ahead of time in float64 (`transform_weights`). x and y run over the m + 2 positions
of a transformed tile. Both transforms are separable, so each is two sums over one matrix of literals. The
tiles are rounded up: the last ones read zeros beyond the padding, and nobody reads what they compute there.

Start at `winograd_conv2d`; transposed.py has transposed convolutions, form.py rewrites an
operator that holds a direct convolution.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression.families.data_movement import pad
from cross.expression.families.window import Window
from cross.expression.language.functions import reduce_axis, sum
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import lookup
from cross.expression.rewrites.winograd.matrices import TILES, Filtering, Matrix, filtering

KERNEL = 3


def transform_weights(weight: NDArray[Any], algorithm: Filtering, first: int = 0) -> NDArray[Any]:
    """U = G w G^T along the dimensions `first` and the next: taps -> side, rounded once to the dtype.

    Weights [3, 3, ci, co] -> [m + 2, m + 2, ci, co]; phases [a, b, 2, 2, ci, co] with `first` = 2.
    """
    matrix = np.array(algorithm.weight, np.float64)
    result = weight.astype(np.float64)
    for dimension in (first, first + 1):
        result = np.moveaxis(np.tensordot(matrix, result, axes=(1, dimension)), 0, dimension)
    return np.ascontiguousarray(result.astype(weight.dtype))


def winograd_conv2d(data: Tensor, weights: Tensor, window: Window, name: str = "conv") -> Tensor:
    """3x3 convolution of data [n, h, w, ci] by transformed weights [m + 2, m + 2, ci, co] -> [n, oh, ow, co].

    Raises:
        ExpressionError: strides or dilations other than 1, or shapes that do not fit.
    """
    tile = weights.shape[0] - KERNEL + 1 if len(weights.shape) == 4 else 0
    if tile not in TILES or weights.shape[1] != weights.shape[0] or len(data.shape) != 4:
        raise ExpressionError(
            f"winograd_conv2d {name}: expected data of rank 4 and weights [m + 2, m + 2, ci, co] with m of "
            f"{TILES}, found shapes {data.shape} and {weights.shape}"
        )
    if data.shape[3] != weights.shape[2]:
        raise ExpressionError(
            f"winograd_conv2d {name}: the data has {data.shape[3]} input channels, the weights are for "
            f"{weights.shape[2]}"
        )
    if window.strides != (1, 1) or window.dilations != (1, 1):
        raise ExpressionError(
            f"winograd_conv2d {name}: expected strides and dilations of 1, found {window.strides} and "
            f"{window.dilations}; use conv2d"
        )
    image = data.shape[1], data.shape[2]
    oh, ow = window.output(image, (KERNEL, KERNEL))
    tiles = -(-oh // tile), -(-ow // tile)
    # Tiles that reach beyond the padded image read zeros there.
    after = (tiles[i] * tile + KERNEL - 1 - window.before[i] - image[i] for i in range(2))
    padded = pad(data, (0, *window.before, 0), (0, *after, 0))
    algorithm = filtering(tile, KERNEL)
    transformed = data_transform(padded, tiles, tile, (algorithm.data, algorithm.data), name)
    inverse = _inverse_transform(_products(transformed, weights, name), algorithm, name)
    return compute(
        (data.shape[0], oh, ow, weights.shape[3]),
        lambda b, y, x, c: inverse[b, y // tile, x // tile, y % tile, x % tile, c],
        name=name,
    )


def data_transform(
    data: Tensor,
    tiles: tuple[int, int],
    step: int,
    matrices: tuple[Matrix, Matrix],
    name: str,
    starts: Sequence[int] = (0, 0),
) -> Tensor:
    """V[x, y, b, ty, tx, c] = sum over i, j of B[i, x] B'[j, y] d[b, ty step + i + s, tx step + j + s', c].

    `matrices` are B and B', [inputs of a tile, positions], `starts` s and s', of the rows and the columns.
    """
    heights, widths = matrices
    n, channels = data.shape[0], data.shape[3]
    i, j = reduce_axis(len(heights), "i"), reduce_axis(len(widths), "j")
    rows = compute(
        (n, *tiles, len(heights[0]), len(widths), channels),
        lambda b, ty, tx, x, q, c: sum(
            lookup(heights, i, x, data.dtype)
            * data[b, ty * step + i + starts[0], tx * step + q + starts[1], c],
            i,
        ),
        name=f"{name}.rows",
    )
    return compute(
        (len(heights[0]), len(widths[0]), n, *tiles, channels),
        lambda x, y, b, ty, tx, c: sum(lookup(widths, j, y, data.dtype) * rows[b, ty, tx, x, j, c], j),
        name=f"{name}.data",
    )


def _products(data: Tensor, weights: Tensor, name: str) -> Tensor:
    """M[x, y, b, ty, tx, o] = sum over c of V[x, y, b, ty, tx, c] U[x, y, c, o]: one product a position."""
    kc = reduce_axis(weights.shape[2], "kc")
    return compute(
        (*data.shape[:-1], weights.shape[3]),
        lambda x, y, b, ty, tx, c: sum(data[x, y, b, ty, tx, kc] * weights[x, y, kc, c], kc),
        name=f"{name}.products",
    )


def _inverse_transform(products: Tensor, algorithm: Filtering, name: str) -> Tensor:
    """Y[b, ty, tx, u, v, c] = sum over x, y of A[x, u] A[y, v] M[x, y, b, ty, tx, c]."""
    tile, matrix = algorithm.outputs, algorithm.output
    side, _, n, rows, columns, channels = products.shape
    i, j = reduce_axis(side, "i"), reduce_axis(side, "j")
    half = compute(
        (n, rows, columns, tile, side, channels),
        lambda b, ty, tx, u, y, c: sum(
            lookup(matrix, i, u, products.dtype) * products[i, y, b, ty, tx, c], i
        ),
        name=f"{name}.half",
    )
    return compute(
        (n, rows, columns, tile, tile, channels),
        lambda b, ty, tx, u, v, c: sum(lookup(matrix, j, v, products.dtype) * half[b, ty, tx, u, j, c], j),
        name=f"{name}.tile",
    )
