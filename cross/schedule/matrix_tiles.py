"""Sums of products of bytes in the tile registers of x86-64 (AMX): which reductions, and tiles for them.

A tile register has 16 rows of 64 bytes. One instruction adds to 16 x 16 sums of 32 bits the products of up to
16 rows of data with up to 16 columns of weights, 64 bytes of each: words of four bytes, as `vpdpbusd` takes
them, so data and weights lie in memory as they do for vectors. There are eight such registers: sums, and what
is multiplied. Source: Intel 64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18.

The rows of a register are neighbours along one axis; a tile of several rows along others, or of more than 16,
takes several registers with the same weights. Start at `tiled_groups`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from boards.target import Target
from cross.expression.language.tensor import Axis, Read, Reduce, reads_in
from cross.expression.language.terms import Call
from cross.schedule.cycles import CACHE_SHARE, L2_BYTES_PER_CYCLE, WAY_BYTES, Machine, fullest_set
from cross.schedule.plan import Group, Plan, packable, varying_axes, wide_axes
from cross.schedule.reads import nest_of
from cross.schedule.tiles import WASTE, divisors, factors, waste
from cross.schedule.untuned import Tile, ordered_tiles
from cross.schedule.vector_axis import stride

ROWS: Final = 16
COLUMNS: Final = 16
WORDS: Final = 16  # of each row and column
WORD_BYTES: Final = 4
REGISTERS: Final = 8
FEWEST_WORDS: Final = (
    4  # below, three quarters of a register are empty; an estimate of where vectors do as well
)
MOST_SUMS: Final = 4  # registers of rows, or of columns, in a tile
PRODUCT_CYCLES: Final = 14.0  # of an instruction, and for each row of its sums:
ROW_CYCLES: Final = 1 / 8
ROWS_LOADED_PER_CYCLE: Final = 1.25
"""Measured on one Xeon with AMX (480 MiB of L3), one to four registers of rows and of columns: with 7 rows an
instruction takes 14.4 to 16 cycles, with 16 it takes 16; beside 64 cycles of them 80 rows are loaded."""
FUNCTIONS: Final = frozenset({"dot4", "sdot4"})
"""Products of four bytes: of data without sign and weights with one, of both with signs."""


def tiled_groups(plan: Plan, target: Target) -> frozenset[str]:
    """The owners of the groups whose sums tile registers can hold; none for a target without any."""
    if not target.has_tiles:
        return frozenset()
    return frozenset(group.owner.name for group in plan.groups if _is_product(plan, group))


def _is_product(plan: Plan, group: Group) -> bool:
    """Whether a group sums products of rows of data and columns of weights that lie side by side."""
    reduction = group.reduction
    if reduction is None or len(wide_axes(reduction.axes)) < 2 or not wide_axes(reduction.reduce_axes):
        return False
    body = plan.body(reduction)
    match body:
        case Reduce("sum", Call(function, (Read() as data, Read() as weights))) if function in FUNCTIONS:
            pass
        case _:
            return False
    *rows, columns = wide_axes(reduction.axes)
    words = wide_axes(reduction.reduce_axes)[-1]
    last = len(rows)
    packed = weights.tensor.name in packable(plan, body)
    apart = varying_axes(weights, [*rows, columns]) == (last,) and last not in varying_axes(
        data, [*rows, columns]
    )
    side_by_side = packed or (stride(weights, columns) == 1 and stride(weights, words) is not None)
    even = stride(data, words) == 1 and stride(data, rows[-1]) not in (None, 0)
    return apart and side_by_side and even and bool(column_sizes(columns)) and bool(_word_sizes(words))


# --------------------------------------------------------------------------------------------------- sizes


def row_sizes(axes: Sequence[Axis]) -> list[list[int]]:
    """What each axis but that of the columns may have of a tile: the last, whole registers of equal rows."""
    *others, rows = axes
    last = [size for size in factors(rows.extent, MOST_SUMS * ROWS) if size % registers_of(size) == 0]
    return [*(factors(axis.extent, MOST_SUMS) for axis in others), last]


def column_sizes(axis: Axis) -> list[int]:
    """Whole registers of columns that cover the axis with little overlap."""
    sizes = [COLUMNS * count for count in range(1, MOST_SUMS + 1) if COLUMNS * count <= axis.extent]
    return [size for size in sizes if waste(axis.extent, size) <= WASTE]


def word_sizes(axes: Sequence[Axis]) -> list[tuple[int, ...]]:
    """What each axis of a reduction may have innermost: the words of a register, and what else fits."""
    *others, words = axes
    return [*(divisors(axis.extent) for axis in others), _word_sizes(words)]


def _word_sizes(axis: Axis) -> tuple[int, ...]:
    return tuple(size for size in divisors(axis.extent) if FEWEST_WORDS <= size <= WORDS)


def registers_of(rows: Any) -> Any:
    """Registers that rows along one axis take; for numbers or arrays."""
    return -(-rows // ROWS)


def fits_registers(sizes: Sequence[Any]) -> Any:
    """Whether sums of a tile and what is multiplied stay in registers; for numbers or arrays.

    sizes: of the tile, the rows of a register last but one, columns last. Of the operand with fewer
    registers all are there at a time, and one of the other.
    """
    rows = math.prod(sizes[:-2]) * registers_of(sizes[-2])
    columns = sizes[-1] // COLUMNS
    return rows * columns + np.minimum(rows, columns) + 1 <= REGISTERS


def fastest_tile(plan: Plan, group: Group, target: Target) -> Tile:
    """The tile of a group, and the order of the loops around it, with the fewest estimated cycles."""
    assert group.reduction is not None
    axes, reduced = wide_axes(group.reduction.axes), wide_axes(group.reduction.reduce_axes)
    words = max(_word_sizes(reduced[-1]))
    (data,) = (read for read in reads_in(plan.body(group.reduction)) if stride(read, axes[-1]) == 0)
    nest, machine = nest_of(plan, group, COLUMNS), Machine.of(target, COLUMNS)
    last = len(axes) - 1
    orders = {tuple(range(last + 1)): False, (last, *range(last)): True}
    best = Tile((1,) * last + (COLUMNS,), False, math.inf)
    for sizes in itertools.product(*row_sizes(axes[:-1]), column_sizes(axes[-1])):
        sensible = all(waste(axis.extent, size) <= WASTE for axis, size in zip(axes, sizes, strict=True))
        if not sensible or not fits_registers(sizes):
            continue
        taps = [(axis, axis.extent) for axis in reduced[:-1]]
        window = [*zip(axes[:-1], sizes[:-1], strict=True), *taps]
        stay = _stay_near(data, window, math.prod(extent for _, extent in taps) * sizes[-1], target)
        step = _step_cycles(sizes, words, stay)
        found = ordered_tiles(nest, machine, sizes, sizes[-1] // COLUMNS, orders, step)
        best = min(best, *found, key=lambda tile: tile.cycles)
    return best


def _stay_near(data: Read, window: Sequence[tuple[Axis, int]], weights: int, target: Target) -> bool:
    """Whether the first cache keeps what a tile reads of one register's words, for all steps of a window.

    Pixels lie a power of two apart as a rule, so that their lines fall into few of its sets; the lines of the
    weights lie side by side and take a part of every set.
    """
    strides = [(stride(data, axis) or 0) * WORD_BYTES for axis, _ in window]
    fullest = fullest_set([size for _, size in window], strides, target.cache_line_bytes)
    everywhere = weights * WORD_BYTES * WORDS / WAY_BYTES
    return fullest + everywhere <= CACHE_SHARE * target.l1d_bytes / WAY_BYTES


def _step_cycles(sizes: Sequence[int], words: int, stay: bool) -> float:
    """Of one word of the reduction. `stay`: data come from the first cache, else from the second."""
    rows, columns = math.prod(sizes[:-1]), sizes[-1] // COLUMNS
    registers: int = math.prod(sizes[:-2]) * registers_of(sizes[-2])
    multiplied = registers * columns * (PRODUCT_CYCLES + ROW_CYCLES * rows / registers)
    loading = rows / (ROWS_LOADED_PER_CYCLE if stay else L2_BYTES_PER_CYCLE / (WORDS * WORD_BYTES))
    loading += words * columns / ROWS_LOADED_PER_CYCLE
    # Of two equally good tiles the one that loads less wins.
    return (max(multiplied, loading) + 0.05 * loading) / words


def fits(fields: Sequence[str]) -> Any:
    """The constraint on a tile whose sizes have these names."""

    def holds(values: Any) -> NDArray[np.bool_]:
        return np.asarray(fits_registers([values[field] for field in fields]))

    return holds
