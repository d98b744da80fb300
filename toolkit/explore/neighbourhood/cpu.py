"""The rounds of a local search on a CPU (ETO, Algorithm 1), and the one that begins with an untuned program.

The first round has tiles near those of a given program, with everything else as in that program. Each later
round changes one decision of the fastest program found: length of the reduction's inner loops, unrolling, the
order of loops; then the tiles of one axis; then the register tiles of two axes exchange factors. Spaces
without tiled reductions, such as those of elementwise operators and Winograd convolutions, have the later
rounds alone, one knob after the other: their first round is the given program itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cross.schedule.knobs import ratios
from cross.schedule.space import Batch, Part, ScheduleSpace
from cross.schedule.tiles import divisors
from cross.schedule.tiling import TiledLoop, TiledStage
from toolkit.explore.neighbourhood.loops import IrregularLoops, MajorLoops, major_loops
from toolkit.explore.neighbourhood.tile_shapes import (
    BLOCK,
    REGISTER,
    Row,
    Sizes,
    TileShapes,
    points,
    tile_sizes,
    tiled_reduction,
    unique,
)
from toolkit.explore.rounds import Known, Rounds, Step, descend, fastest

BLOCKS: Final = 5  # sizes of a block that the first round tries
CHANGES: Final = 4  # nearest choices of a knob that a round tries
PASSES: Final = 2  # over all kinds of changes, at most

BlockSizes = Callable[[MajorLoops], Sequence[int]]
"""The sizes of blocks that are worth trying, in points. Raises IrregularLoops: none are."""


def cpu_rounds(space: ScheduleSpace, first: Batch, known: Known) -> Rounds:
    """`first`, then rounds around the fastest of it and of the untuned programs."""
    steps: tuple[Step, ...] = tuple(within_algorithm(space, change) for change in CHANGED)
    return descend(first, steps, known, also=space.batch(space.defaults()), passes=PASSES)


def untuned_rounds(space: ScheduleSpace, known: Known) -> Rounds:
    """The rounds around the operator's own untuned programs.

    Those come first, with what the likely best of them calls for; then the rounds around the fastest of them.
    """
    untuned = space.batch(space.defaults())
    yield np.concatenate([untuned, _around(space, space.batch([space.default()])[0])])
    yield from cpu_rounds(space, _around(space, fastest(untuned, known)), known)


def _around(space: ScheduleSpace, row: Row) -> Batch:
    """The first round around an untuned program, int64 [K]: it says what fits into registers, but not how
    large a block should be."""
    part = space.part_of(row)
    like = part.of(row[None])[0]
    stage = tiled_reduction(part.space)
    sizes = {} if stage is None else tile_sizes(stage, like)

    def blocks(loops: MajorLoops) -> list[int]:
        return [size for size in divisors(loops.points) if size >= points(sizes, REGISTER)]

    return first_round(part, like, sizes, blocks)


def first_round(part: Part, like: Row, sizes: Sizes, blocks: BlockSizes) -> Batch:
    """`like`, a configuration of an algorithm, and those that have tiles of other sizes instead of its own.

    Valid rows of the whole space, int64 [N, K]; likely the best come first. Register tiles are near those of
    `sizes`, the tiles of a tuned or untuned program; empty: that has none.
    """
    space, stage = part.space, tiled_reduction(part.space)
    rows = [like]
    if stage is not None and sizes:
        with suppress(IrregularLoops):
            loops = major_loops(space.program, space.operator.name)
            wanted = _spread(blocks(loops), points(sizes, BLOCK))
            shapes = TileShapes(space, stage, loops, sizes, like)
            found = [shapes.block(tile, size) for size, tile in itertools.product(wanted, shapes.registers())]
            rows += [row for row in found if row is not None]
    together = unique(np.stack(rows))
    return part.embedded(together[space.valid(together)])


def _spread(sizes: Sequence[int], near: int) -> list[int]:
    """At most BLOCKS of the sizes: the nearest to `near`, and others as far apart as they are."""
    ordered = sorted(sizes)
    if len(ordered) > BLOCKS:
        places = np.linspace(0, len(ordered) - 1, BLOCKS - 1).round().astype(int)
        nearest = min(ordered, key=lambda size: max(size / near, near / size))
        ordered = sorted({nearest, *(ordered[place] for place in places)})
    return sorted(ordered, key=lambda size: max(size / near, near / size))


# ------------------------------------------------------------------------- what the later rounds change


def other_decisions(space: ScheduleSpace, row: Row) -> Batch:
    """The row with the nearest other choices of each knob that does not tile the largest reduction's axes."""
    tiled = _tiled_columns(space)
    return _neighbours(space, row, [column for column in range(len(space.knobs)) if column not in tiled])


def other_tiles(space: ScheduleSpace, row: Row) -> Batch:
    """The row with the nearest other tiles of each axis."""
    return _neighbours(space, row, sorted(_tiled_columns(space)))


def exchanged_factors(space: ScheduleSpace, row: Row) -> Batch:
    """The row with register tiles of about the same size in other proportions: one axis gives a factor of two
    to another, or takes its length."""
    stage = tiled_reduction(space)
    rows = [] if stage is None else _exchanged(stage, row)
    together = unique(np.stack(rows)) if rows else np.zeros((0, len(space.knobs)), np.int64)
    return together[space.valid(together)]


CHANGED: Final = (other_decisions, other_tiles, exchanged_factors)
"""The later rounds of a pass, in order. Each takes a space and a configuration, int64 [K]."""


def within_algorithm(space: ScheduleSpace, change: Callable[[ScheduleSpace, Row], Batch]) -> Step:
    """A change as a step of rounds: within the algorithm of the configuration."""

    def step(best: Row) -> Batch:
        part = space.part_of(best)
        return part.embedded(change(part.space, part.of(best[None])[0]))

    return step


def _tiled_columns(space: ScheduleSpace) -> set[int]:
    stage = tiled_reduction(space)
    return set() if stage is None else {loop.column for loop in stage.space}


def _neighbours(space: ScheduleSpace, row: Row, columns: Sequence[int]) -> Batch:
    none = np.zeros((0, len(space.knobs)), np.int64)
    return np.concatenate([none, *(space.neighbours(row, column, CHANGES) for column in columns)])


def _exchanged(stage: TiledStage, row: Row) -> list[NDArray[np.int64]]:
    rows = []
    for one, other in itertools.permutations(stage.space, 2):
        mine, theirs = (int(loop.choices[row[loop.column], REGISTER]) for loop in (one, other))
        lengths = [(mine * 2, max(1, theirs // 2))] if theirs > 1 else []
        lengths += [(theirs, mine)] if mine < theirs else []
        for pair in lengths:
            changed = row.copy()
            for loop, length in zip((one, other), pair, strict=True):
                changed[loop.column] = _with_register(loop, int(row[loop.column]), length)
            rows.append(changed)
    return rows


def _with_register(loop: TiledLoop, choice: int, length: int) -> int:
    """The choice with a register tile of about this length and otherwise the tiles of `choice`."""
    outer, middle, register = loop.choices[choice].tolist()
    return int(ratios(loop.choices, (outer, max(1, middle * register // length), length)).argmin())
