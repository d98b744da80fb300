"""Winograd convolution F(m x m, 3x3) for m = 2 and 4 (Lavin and Gray, "Fast Algorithms for Convolutional
Neural Networks"): Y = A^T [ (G w G^T) * (B^T d B) ] A for every m x m tile of the output.

    d [n, h, w, ci]  -- B^T d B -->  V [x, y, tile, ci]  -- times U [x, y, ci, co] -->  M [x, y, tile, co]
                     -- A^T M A -->  out [n, h, w, co]

U = G w G^T is computed ahead of time in float64 (`transform_weights`). x and y run over the m + 2 positions
of a transformed tile. Both transforms are separable, so each is two sums over one matrix of literals. The
tiles are rounded up: the last ones read zeros beyond the padding, and nobody reads what they compute there.

Start at `winograd_conv2d`; `winograd_form` rewrites an operator that holds a direct convolution.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.errors import ExpressionError
from cross.expression.data_movement import pad
from cross.expression.naming import replace_reads
from cross.expression.operator import Operator, reads, to_text
from cross.expression.tensor import Tensor, compute, placeholder
from cross.expression.terms import (
    Axis,
    Binary,
    Const,
    Read,
    Reduce,
    Select,
    Term,
    lookup,
    reduce_axis,
    sum,
)
from cross.expression.window import Window

KERNEL = 3
TILES = (2, 4)

Matrix = tuple[tuple[float, ...], ...]

_DATA: dict[int, Matrix] = {  # B, [m + 2, m + 2]: position read, position written
    2: ((1, 0, 0, 0), (0, 1, -1, 1), (-1, 1, 1, 0), (0, 0, 0, -1)),
    4: (
        (4, 0, 0, 0, 0, 0),
        (0, -4, 4, -2, 2, 4),
        (-5, -4, -4, -1, -1, 0),
        (0, 1, -1, 2, -2, -5),
        (1, 1, 1, 1, 1, 0),
        (0, 0, 0, 0, 0, 1),
    ),
}
_WEIGHT: dict[int, Matrix] = {  # G, [m + 2, 3]
    2: ((1, 0, 0), (1 / 2, 1 / 2, 1 / 2), (1 / 2, -1 / 2, 1 / 2), (0, 0, 1)),
    4: (
        (1 / 4, 0, 0),
        (-1 / 6, -1 / 6, -1 / 6),
        (-1 / 6, 1 / 6, -1 / 6),
        (1 / 24, 1 / 12, 1 / 6),
        (1 / 24, -1 / 12, 1 / 6),
        (0, 0, 1),
    ),
}
_OUTPUT: dict[int, Matrix] = {  # A, [m + 2, m]
    2: ((1, 0), (1, 1), (1, -1), (0, -1)),
    4: ((1, 0, 0, 0), (1, 1, 1, 1), (1, -1, 1, -1), (1, 2, 4, 8), (1, -2, 4, -8), (0, 0, 0, 1)),
}


def weight_matrix(tile: int) -> Matrix:
    """G, [tile + 2, 3]: what the weights are multiplied by along both dimensions of their window."""
    return _WEIGHT[tile]


def transform_weights(weight: NDArray[Any], tile: int) -> NDArray[Any]:
    """U = G w G^T for weights [3, 3, ci, co] -> [tile + 2, tile + 2, ci, co], rounded once to their dtype."""
    matrix = np.array(weight_matrix(tile), np.float64)
    result = np.einsum("xi,yj,ijco->xyco", matrix, matrix, weight.astype(np.float64), optimize=True)
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
    products = _products(_data_transform(padded, tiles, tile, name), weights, name)
    inverse = _inverse_transform(products, tile, name)
    return compute(
        (data.shape[0], oh, ow, weights.shape[3]),
        lambda b, y, x, c: inverse[b, y // tile, x // tile, y % tile, x % tile, c],
        name=name,
    )


def _data_transform(data: Tensor, tiles: tuple[int, int], tile: int, name: str) -> Tensor:
    """V[x, y, b, ty, tx, c] = sum over i, j of B[i, x] B[j, y] d[b, ty m + i, tx m + j, c]."""
    matrix, side = _DATA[tile], tile + KERNEL - 1
    n, channels = data.shape[0], data.shape[3]
    i, j = reduce_axis(side, "i"), reduce_axis(side, "j")
    rows = compute(
        (n, *tiles, side, side, channels),
        lambda b, ty, tx, x, q, c: sum(
            lookup(matrix, i, x, data.dtype) * data[b, ty * tile + i, tx * tile + q, c], i
        ),
        name=f"{name}.rows",
    )
    return compute(
        (side, side, n, *tiles, channels),
        lambda x, y, b, ty, tx, c: sum(lookup(matrix, j, y, data.dtype) * rows[b, ty, tx, x, j, c], j),
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


def _inverse_transform(products: Tensor, tile: int, name: str) -> Tensor:
    """Y[b, ty, tx, u, v, c] = sum over x, y of A[x, u] A[y, v] M[x, y, b, ty, tx, c]."""
    matrix = _OUTPUT[tile]
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


# --------------------------------------------------------------------------------- rewriting an operator


@dataclass(frozen=True, slots=True)
class WinogradForm:
    """An operator with its convolution by F(tile x tile, 3x3); input number `weight` is U."""

    operator: Operator
    weight: int
    tile: int

    def inputs(self, direct: list[NDArray[Any]]) -> list[NDArray[Any]]:
        """The inputs of this form from those of the direct one."""
        given = list(direct)
        given[self.weight] = transform_weights(given[self.weight], self.tile)
        return given


def winograd_form(operator: Operator, tile: int) -> WinogradForm | None:
    """The same operator by F(tile x tile, 3x3), None where its reduction is no such convolution.

    It must be the operator's only reduction: NHWC, 3x3, stride and dilation 1, constant float32 weights.
    """
    reductions = [stage for stage in operator.stages if stage.reduce_axes]
    operands = _operands(reductions[0]) if len(reductions) == 1 else None
    if operands is None or operands[1] not in operator.inputs:
        return None
    stage, (data, weight) = reductions[0], operands
    position = operator.inputs.index(weight)
    if position not in operator.constants or weight.dtype != "float32" or _uses(operator, weight) != 1:
        return None
    source, window = _unpadded(data)
    side = tile + KERNEL - 1
    weights = placeholder((side, side, *weight.shape[2:]), weight.name, weight.dtype)
    inputs = tuple(weights if item is weight else item for item in operator.inputs)
    result = winograd_conv2d(source, weights, window, stage.name)
    rewritten = Operator(
        f"{operator.name}_winograd{tile}", inputs, _replaced(operator, stage, result), operator.constants
    )
    return WinogradForm(rewritten, position, tile)


def _operands(stage: Tensor) -> tuple[Tensor, Tensor] | None:
    """(data, weight) of sum(data[b, y + kh, x + kw, kc] * weight[kh, kw, kc, c]) with a 3x3 window."""
    match stage.body:
        case Reduce("sum", Binary("*", Read(data, at), Read(weight, (kh, kw, kc, c))), axes):
            pass
        case _:
            return None
    if len(stage.axes) != 4 or axes != (kh, kw, kc) or weight.shape[:2] != (KERNEL, KERNEL):
        return None
    b, y, x, out = stage.axes
    batch = (b, Const(0, "int64")) if b.extent == 1 else (b,)
    window = (Binary("+", y, kh), Binary("+", x, kw), kc)
    return (data, weight) if c is out and len(at) == 4 and at[0] in batch and at[1:] == window else None


def _uses(operator: Operator, tensor: Tensor) -> int:
    return len([read for stage in operator.stages for read in reads(stage) if read.tensor is tensor])


def _unpadded(data: Tensor) -> tuple[Tensor, Window]:
    """What a zero padding in front of a window reads, and the window with that padding."""
    if not isinstance(data.body, Select) or not isinstance(data.body.then, Read):
        return data, Window()
    source, indices = data.body.then.tensor, data.body.then.indices
    if len(source.shape) != 4:
        return data, Window()
    before = tuple(_offset(index, axis) for index, axis in zip(indices, data.axes, strict=True))
    after = tuple(d - s - b for d, s, b in zip(data.shape, source.shape, before, strict=True))
    pads = (before[1], before[2], after[1], after[2])
    if (before[0], before[3], after[0], after[3]) != (0, 0, 0, 0) or min(pads) < 0:
        return data, Window()
    # Whatever else the select may be, only the zero padding itself may be taken apart.
    same = _text(pad(source, before, after)) == _text(data)
    return (source, Window(pads=pads)) if same else (data, Window())


def _offset(index: Term, axis: Axis) -> int:
    """b of axis - b; -1 for anything else."""
    match index:
        case Binary("-", left, Const(value, _)) if left is axis:
            return int(value)
    return 0 if index is axis else -1


def _text(tensor: Tensor) -> str:
    assert tensor.body is not None
    return to_text(tensor.body, {}, {axis: f"s{number}" for number, axis in enumerate(tensor.axes)})


def _replaced(operator: Operator, stage: Tensor, result: Tensor) -> Tensor:
    """The operator's output with every read of a stage turned to another tensor."""
    new: dict[Tensor, Tensor] = {stage: result}

    def change(read: Read, known: Mapping[Tensor, Tensor] = new) -> Term:
        return replace(read, tensor=known.get(read.tensor, read.tensor))

    for tensor in operator.stages:
        if tensor not in new and tensor.body is not None:
            new[tensor] = replace(tensor, body=replace_reads(tensor.body, change))
    return new[operator.output]
