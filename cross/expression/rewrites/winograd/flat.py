"""Winograd's algorithm with one axis for its tiles: for GPUs, whose blocks take tiles as they come.

    V [x, y, b, ty, tx, c] -> V [x, y, p, c]        with p = (b rows + ty) columns + tx

The products are then matrix products [tiles, ci] x [ci, co], one a position, whose first side is long even
where an image has few tiles. What is computed, and in which order, stays the same.
"""

from __future__ import annotations

from msgspec.structs import replace

from cross.expression.language.naming import replace_reads
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Read, Tensor
from cross.expression.language.terms import Int, Term, substitute


def with_flat_tiles(operator: Operator) -> Operator:
    """An operator of form.py with the axes (batch, row, column) of its tiles as one axis `p`."""
    rows, data, products, half, tile = (stage for stage in operator.stages if stage.reduce_axes)
    first = {rows: 0, data: 2, products: len(products.shape) - 4, half: 0, tile: 0}
    grid = tile.shape[:3]
    new: dict[Tensor, Tensor] = {}

    def change(read: Read) -> Term:
        place = first.get(read.tensor)
        indices = read.indices if place is None else _joined(read.indices, place, grid)
        return replace(read, tensor=new.get(read.tensor, read.tensor), indices=indices)

    for stage in operator.stages:
        assert stage.body is not None
        body = replace_reads(stage.body, change)
        place = first.get(stage)
        new[stage] = replace(stage, body=body) if place is None else _flat(stage, body, place)
    return replace(operator, output=new[operator.output])


def _joined(indices: tuple[Term, ...], place: int, grid: tuple[int, ...]) -> tuple[Term, ...]:
    """Indices with those of the tile, at `place` and the next two, as its number."""
    return *indices[:place], _number(indices[place : place + 3], grid), *indices[place + 3 :]


def _number(tile: tuple[Term, ...], grid: tuple[int, ...]) -> Term:
    batch, row, column = tile
    return (batch * grid[1] + row) * grid[2] + column


def _flat(stage: Tensor, body: Term, place: int) -> Tensor:
    """A stage with one axis for its tiles; in its body their axes are parts of that one's value."""
    batch, row, column = stage.axes[place : place + 3]
    rows, columns = row.extent, column.extent
    tile = Axis("p", batch.extent * rows * columns)
    number = _number((batch, row, column), (batch.extent, rows, columns))
    known: dict[Axis, Term] = {
        batch: tile // (rows * columns) if batch.extent > 1 else _ZERO,
        row: tile // columns % rows if rows > 1 else _ZERO,
        column: tile % columns if columns > 1 else _ZERO,
    }

    def own(read: Read) -> Term:
        return replace(read, indices=tuple(tile if index == number else index for index in read.indices))

    axes = (*stage.axes[:place], tile, *stage.axes[place + 3 :])
    shape = tuple(axis.extent for axis in axes)
    return replace(stage, shape=shape, axes=axes, body=substitute(replace_reads(body, own), known))


_ZERO = Int(0)
