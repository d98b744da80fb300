"""Tiles of registers for cores that issue in order, by a figure of merit instead of estimated cycles.

The merit of a tile is the share of a core's peak that its inner loop can reach: what it issues, beside loads
and the loop's own instructions, and the latency of dependent multiply-adds bound the cycles of a step; empty
lanes and overlapping last tiles waste part of them. Start at `best_register_tile`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.target import Target
from cross.expression.language.tensor import reads_in
from cross.schedule.core import (
    PRODUCT_LATENCY_CYCLES,
    WRITTEN_OUT,
    Core,
    Operands,
    has_broadcasts,
    operand_counts,
    register_tiles,
)
from cross.schedule.cycles import memory_bytes_per_cycle
from cross.schedule.plan import Group, Plan, operands, wide_axes
from cross.schedule.tiles import vector_count, waste
from cross.schedule.vector_axis import stride

SIDES = 0.02  # price of a tile's sides: between tiles of one size the one nearest to a square
IN_ORDER_LATENCY_CYCLES = 8  # between dependent multiply-adds of a Cortex-A53
LANE_STEPS = 4  # of a sum that one load of a vector of four floats feeds, element by element
MOVED_CYCLES = 1.0
"""Of a Cortex-A53, in which a vector is moved from two integer registers to one: of an operand that is
repeated one for LANE_STEPS steps of a sum, of others one in each step."""
IN_ORDER_LOOP_CYCLES = 8.0
"""Of an iteration of such a loop beside multiply-adds and moves: some of what it begins with is waited for.
Fitted, as the next four, to the issue model (cross/inspection/cortex_a53.py) of pointwise and 3x3
convolutions in tiles of 9 to 21 vectors: where registers last, cycles are met within 8 %
(tests/unit/cross/test_in_order_tiles.py)."""
AHEAD = 7  # vectors of what an iteration begins with are loaded before (codegen/scheduling/pipelining.py)
WAITING_CYCLES = 1.5  # for each further one
FEW_ROWS, MOST_ROWS = 5, 8
"""How many rows' next elements a longer body loads unseen, and up to how many it is still as quick as a short
one, which begins with what the one before loaded."""
CROWDED = 1.6  # times the cycles where LLVM orders loads, as registers do not last (issue model)
MEMORY_BYTES_PER_CYCLE = 3.0  # of boards that do not say: a Raspberry Pi 3's, as its file has it
UNEVEN = 0.97
"""Price of rows that do not divide an axis evenly, beside what is computed twice: blocks of a chain are whole
tiles. So the first chain of a MobileNet-v2 stays whole on a Cortex-A53: 18.9 MB from memory, not 22.2."""
GUARDED = 0.6
"""What a depthwise tile of parts of rows reaches of others' speed: by the issue model of a Cortex-A53, rows
of 10 to 14 take 2.2 to 2.6 cycles for each of 3x3 products, parts of them 4.4 to 6.6, or 2.8 to 3 beside a
copy of the image. Longer rows have more sums than there are registers."""
NEXT_REGISTERS = 3  # with 31 of 32 taken code is a seventh slower (issue model); 29 are fine
LOADED_AHEAD = 2
"""Times the registers of a core: sums and loads of a written-out window of integers that LLVM keeps in those
of a Cortex-A53. Counted on depthwise convolutions of 3x3, of 32: up to 62 no spills, from 65 on 10 to 32."""


def best_register_tile(
    extents: Sequence[int],
    core: Core,
    vectors: Sequence[int],
    operands: Operands,
    windows: Sequence[Sequence[NDArray[np.int64]]] = (),
    overlap: Overlap | None = None,
    *,
    padded: bool = False,
) -> tuple[int, ...]:
    """Sizes of the innermost loops, in axis order, with the largest merit on a core that runs in order.

    The first arguments are those of `register_tiles`; windows: see `windows_of`; overlap: see `overlap_of`;
    padded: whether sums read beyond an image, where a row that is whole knows which of its elements do.
    """
    best, best_merit = (1,) * len(extents), 0.0
    for tile, count in register_tiles(extents, core, vectors, operands):
        counts = (*tile[:-1], count)
        if any(_registers(window, counts) > LOADED_AHEAD * core.registers for window in windows):
            continue
        merit = tile_merit(counts, operands, core, overlap) * tile[-1] / (count * core.lanes)
        if not core.shared_steps:  # chosen for sums of floats
            merit *= UNEVEN ** sum(
                extent % size > 0 for extent, size in zip(extents[:-1], tile, strict=False)
            )
        for extent, size in zip(extents, tile, strict=True):
            merit /= waste(extent, size)
        if not has_broadcasts(counts, operands):  # a window: neighbours read the sides of a tile again
            merit *= 1.0 - SIDES * sum(1.0 / size for size in tile[-3:-1])
            if padded and not is_whole_row(tile, extents):
                merit *= GUARDED
        if merit > best_merit:
            best, best_merit = tile, merit
    return best


def is_whole_row(tile: Sequence[int], extents: Sequence[int]) -> bool:
    """Whether a tile is one row of an image, of all its columns."""
    return len(tile) > 1 and tile[-2] == extents[-2] and math.prod(tile[:-2]) == 1


def tile_merit(
    counts: Sequence[int], operands: Operands, core: Core, overlap: Overlap | None = None
) -> float:
    """Share of the FMA peak that a step with full lanes can reach on a core that runs in order."""
    accumulators, shared_steps = math.prod(counts), core.shared_steps
    vectors, broadcasts = operand_counts(counts, operands)
    if shared_steps:  # two operands move to vector registers in a cycle; an addition takes two, once for all
        waiting = max(0, PRODUCT_LATENCY_CYCLES - accumulators)  # of more rows, additions fill the time
        added = 2 * accumulators / shared_steps + waiting
        cycles = accumulators + added + (vectors + broadcasts) / 2
        # beside each multiplication one load, shift or flip of signs issues
        beside = vectors + broadcasts * (1 + 2 / shared_steps)
        return float(accumulators / (cycles + max(0.0, beside - accumulators)))
    issued = accumulators + MOVED_CYCLES * vectors  # one instruction a cycle
    if broadcasts:
        window, channels = lane_steps(core, counts, overlap)
        rounds = window * channels / LANE_STEPS
        loaded = broadcasts * (overlap.loaded(counts) if overlap is not None and window > 1 else 1.0)
        begun = IN_ORDER_LOOP_CYCLES + WAITING_CYCLES * max(0, loaded * window - AHEAD)
        lone = overlap is not None and overlap.channels < LANE_STEPS  # elements come one by one
        if window == 1 and (lone or accumulators + vectors + broadcasts >= core.registers):
            issued *= CROWDED
        if channels > LANE_STEPS and broadcasts > FEW_ROWS:
            begun += MOVED_CYCLES * loaded * (rounds - 1)
        issued += (MOVED_CYCLES * loaded + begun / rounds) / LANE_STEPS
    return float(accumulators / max(issued, IN_ORDER_LATENCY_CYCLES))


def in_order_cycles(
    extents: Sequence[int],
    steps: int,
    tile: Sequence[int],
    operands: Operands,
    core: Core,
    overlap: Overlap | None = None,
) -> float:
    """Cycles of arithmetic of all tiles of a sum of floats on one core that runs in order, by the merit of
    the tile: extents of its space axes, the vector axis last, steps of the reduction, sizes of a tile."""
    vectors = vector_count(tile[-1], core.lanes)
    tiles = math.prod(-(-extent // size) for extent, size in zip(extents, tile, strict=True))
    multiplied = tiles * math.prod(tile[:-1]) * vectors * steps
    return multiplied / tile_merit((*tile[:-1], vectors), operands, core, overlap)


def memory_cycles(moved_bytes: float, target: Target) -> float:
    """In which so many bytes come from memory to all cores together."""
    return moved_bytes / memory_bytes_per_cycle(target, MEMORY_BYTES_PER_CYCLE)


def lane_steps(core: Core, counts: Sequence[int], overlap: Overlap | None) -> tuple[int, int]:
    """How many steps of a sum are written out on a core that runs in order, for a tile of these sizes, the
    last in vectors: along the last axis of a window, and along channels.

    One load of a vector has an operand's elements for LANE_STEPS channels. More steps are written out where
    registers are left for the next ones, which are loaded before the last element of these is used; or where
    neighbours share them, as far as registers last for all; and a window only where its body is short enough.
    """
    rows, vectors = math.prod(counts[:-1]), counts[-1]
    fits = rows * vectors + vectors + rows <= core.registers - NEXT_REGISTERS
    if overlap is None:
        return 1, 4 * LANE_STEPS if fits and rows <= MOST_ROWS else LANE_STEPS
    short = rows * overlap.steps * min(LANE_STEPS, overlap.channels) <= WRITTEN_OUT
    lasts = fits or any(move == 1 for _, move in overlap.moves)
    if overlap.channels >= LANE_STEPS:  # of fewer, elements of neighbours are in one vector
        lasts = rows * vectors + overlap.alive(counts) < core.registers - NEXT_REGISTERS + 1
    return overlap.steps if short and lasts else 1, LANE_STEPS


class Overlap(msgspec.Struct, frozen=True):
    """What neighbours read in common of a sum over a window: along the space axes at some positions an
    element `moves` by so many, but not all, of the `steps` of the window's last axis; the sum has so many
    `channels`."""

    steps: int
    moves: tuple[tuple[int, int], ...]
    channels: int

    def loaded(self, counts: Sequence[int]) -> float:
        """The part of a tile's elements that a step loads, where all steps of the axis are written out."""
        part = 1.0
        for position, move in self.moves:
            size = counts[position]
            part *= ((size - 1) * move + self.steps) / (size * self.steps)
        return part

    def alive(self, counts: Sequence[int]) -> int:
        """The elements of a tile that a step of the axis and the next one read, together."""
        rows = math.prod(counts[:-1])
        shared = [rows // counts[at] * (counts[at] + 1) for at, move in self.moves if move == 1]
        return min(shared, default=2 * rows)


def overlap_of(plan: Plan, group: Group) -> Overlap | None:
    """The overlap of what a sum over several axes reads of the operand that is repeated along vectors."""
    assert group.reduction is not None
    reduce, wide = wide_axes(group.reduction.reduce_axes), wide_axes(group.reduction.axes)
    for (_, positions), read in operands(plan, group).items():
        step = stride(read, reduce[-2]) if len(reduce) > 1 else None
        if step and len(wide) - 1 not in positions:
            strides = [(position, stride(read, wide[position])) for position in positions]
            steps = reduce[-2].extent
            moves = [(at, move // step) for at, move in strides if move and move % step == 0]
            shared = tuple((at, move) for at, move in moves if move < steps)
            return Overlap(steps, shared, reduce[-1].extent)
    return None


def windows_of(plan: Plan, group: Group) -> list[list[NDArray[np.int64]]]:
    """What a reduction of integers that is written out whole reads side by side: for each operand the places
    of its elements, by the steps of the sum and by those of each space axis but the last.

    The code generator orders no loads of such loops, and LLVM loads ahead as far as they go.
    """
    assert group.reduction is not None
    axes, reduced = wide_axes(group.reduction.axes), group.reduction.reduce_axes
    if math.prod(axis.extent for axis in reduced) > WRITTEN_OUT:
        return []
    found = []
    for read in reads_in(plan.body(group.reduction)):
        strides = [(stride(read, axis), axis.extent) for axis in (*axes[:-1], *reduced)]
        steps = [step * np.arange(extent) for step, extent in strides if step is not None]
        if len(steps) == len(strides) and any(step[-1] for step in steps[: len(axes) - 1]):
            taps = functools.reduce(np.add.outer, steps[len(axes) - 1 :], np.zeros(1, np.int64))
            found.append([taps.ravel(), *steps[: len(axes) - 1]])
    return found


def _registers(window: Sequence[NDArray[np.int64]], counts: Sequence[int]) -> int:
    """Registers that a tile's sums and all that it reads of a window take; 0 if it is not written out."""
    taps, *places = window
    if taps.size * math.prod(counts) > WRITTEN_OUT:
        return 0
    first = [place[:count] for place, count in zip(places, counts[:-1], strict=True)]
    return math.prod(counts) + counts[-1] * np.unique(functools.reduce(np.add.outer, first, taps)).size
