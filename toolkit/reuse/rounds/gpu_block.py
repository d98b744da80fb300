"""Algorithm 1 of ETO for one size of a block: the candidates of each of its rounds as configurations."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np

from cross.schedule.gpu_tiles import UNROLL_LIMITS
from cross.schedule.space import Batch, ScheduleSpace
from toolkit.reuse.rounds.block_shape import cheapest_block, factorizations, input_elements, staged_steps
from toolkit.reuse.rounds.gpu_rows import GpuRows
from toolkit.reuse.rounds.gpu_steps import (
    GpuFeatures,
    Ratios,
    default_fetches,
    other_fetches,
    ratios,
    vector_lengths,
    wanted_registers,
)
from toolkit.reuse.rounds.gpu_threads import Staging, order_by_cost, thread_costs, thread_shapes
from toolkit.reuse.rounds.gpu_tiles import BELOW, GpuTiles, Row
from toolkit.reuse.rounds.gpu_unroll import default_unroll, other_unrolls
from toolkit.reuse.rounds.loops import MajorLoops
from toolkit.reuse.rounds.rounds import Known, fastest
from toolkit.reuse.rounds.search_cost import thread_counts


@dataclass(frozen=True, slots=True)
class Reuse:
    """What the searches of all sizes share: the space and its tiles, the loops and features of the reused
    program, and the configuration that gives all other knobs their values."""

    space: ScheduleSpace
    tiles: GpuTiles
    rows: GpuRows
    source: MajorLoops
    reused: GpuFeatures
    template: Row

    @property
    def lanes(self) -> int:
        """Threads that load at once."""
        limits = self.space.target.gpu
        assert limits is not None
        return max(1, limits.warp_size)

    def none(self) -> Batch:
        """No configuration."""
        return np.zeros((0, len(self.space.knobs)), np.int64)


@dataclass(slots=True)
class BlockSearch:
    """The rounds of one block: `best` is the fastest configuration that was found."""

    reuse: Reuse
    shape: tuple[int, ...]
    ratios: Ratios
    fetches: int | None  # None: nothing is staged
    best: Row
    tried: list[Row] = field(default_factory=list)

    def with_threads(self) -> Batch:
        """For each number of threads the cheapest split of the block that the board can run."""
        reuse, size = self.reuse, math.prod(self.shape)
        counts = thread_counts(
            reuse.tiles.loops, reuse.source, reuse.reused.block, reuse.reused.threads, size
        )
        rows = [row for count in counts if (row := self._split(count)) is not None]
        return self._next(rows)

    def with_fetches(self) -> Batch:
        """The best one with other numbers of fetches."""
        if self.fetches is None:
            return self.reuse.none()
        loops, default = self.reuse.tiles.loops, self.fetches
        rows = []
        for fetches in other_fetches(loops, self.reuse.reused, self.ratios, default):
            row = self.reuse.rows.with_fetches(self.best, fetched_steps(loops, fetches))
            rows += [] if row is None else [self._unrolled(row, fetches)]
        return self._next(rows)

    def with_unrolling(self) -> Batch:
        """The best one with unrolling of each other effect."""
        column = self.reuse.tiles.unroll
        chosen = UNROLL_LIMITS[self.best[column]]
        others = other_unrolls(self.reuse.tiles.sides(self.best).body, chosen, BELOW)
        return self._next([changed(self.best, column, UNROLL_LIMITS.index(option)) for option in others])

    def with_vectors(self, number: int, column: int) -> Batch:
        """The best one with longer vectors for the fetches of an input: its number, and its knob's column."""
        tiles = self.reuse.tiles
        if self.fetches is None:
            return self.reuse.none()
        sides = tiles.sides(self.best)
        elements = input_elements(tiles.loops, (*sides.block, *sides.fetched))[number]
        lengths = vector_lengths(elements, math.prod(sides.threads))
        choices = self.reuse.space.knobs[column].choices
        return self._next([
            changed(self.best, column, choices.index((length,)))
            for length in lengths
            if (length,) in choices
        ])  # fmt: skip

    def settle(self, known: Known) -> bool:
        """Take the fastest of what was tried; False: nothing of it ran."""
        if not self.tried:
            return False
        rows = np.stack(self.tried)
        self.best = fastest(rows, known)[0]
        return not np.isinf(known(rows)).all()

    def _split(self, threads: int) -> Row | None:
        """The block between so many threads (GetTShape, GetS, default unrolling)."""
        reuse = self.reuse
        shapes = thread_shapes(self.shape, threads)
        rows, found = reuse.rows.with_threads(self.best, shapes)
        found[found] = reuse.space.valid(rows[found])
        shapes, rows = shapes[found], rows[found]
        if not len(rows):
            return None
        fetched = reuse.tiles.sides(self.best).fetched
        staging = Staging(fetched, self.fetches is not None, reuse.lanes)
        costs = thread_costs(reuse.tiles.loops, self.shape, shapes, staging)
        return self._unrolled(rows[order_by_cost(shapes, costs)[0]], self.fetches)

    def _unrolled(self, row: Row, fetches: int | None) -> Row:
        """With the default unrolling."""
        tiles, reused = self.reuse.tiles, self.reuse.reused
        wanted = (
            float(reused.registers) if fetches is None else wanted_registers(reused, self.ratios, fetches)
        )
        option = default_unroll(tiles.sides(row).body, tiles.loops, wanted, BELOW, reused.unroll)
        return changed(row, tiles.unroll, UNROLL_LIMITS.index(option))

    def _next(self, rows: list[Row]) -> Batch:
        """The valid ones of a round, which count as tried."""
        batch = np.stack(rows) if rows else self.reuse.none()
        batch = batch[self.reuse.space.valid(batch)]
        self.tried += list(batch)
        return batch


def begin_reuse(space: ScheduleSpace, tiles: GpuTiles, source: GpuTiles, reused: Row, template: Row) -> Reuse:
    """The search for a contraction that begins with a configuration, int64 [K'], of the space of `source`."""
    rows = GpuRows(tiles, vector=source.sides(reused).inner[-1])
    return Reuse(space, tiles, rows, source.loops, source.features(reused), template)


def begin_block(reuse: Reuse, size: int) -> BlockSearch | None:
    """The search for blocks of `size` points; None: no block of that size, or no such number of fetches."""
    tiles, loops = reuse.tiles, reuse.tiles.loops
    shapes = factorizations(size, loops.space)
    found = cheapest_block(loops, shapes[reuse.rows.has_blocks(shapes)])
    if found is None:
        return None
    compared = ratios(loops, reuse.source, reuse.reused, found.shape)
    template = reuse.template.copy()
    for _, column in tiles.vectors:
        template[column] = 0  # GetS begins with single elements
    if not tiles.is_staged(template):
        return BlockSearch(reuse, found.shape, compared, None, template)
    fetches = default_fetches(loops, reuse.reused, compared)
    row = None if fetches is None else reuse.rows.with_fetches(template, fetched_steps(loops, fetches))
    return None if row is None else BlockSearch(reuse, found.shape, compared, fetches, row)


def fetched_steps(loops: MajorLoops, fetches: int) -> tuple[int, ...]:
    """Steps of each reduction loop that one of so many fetches is for."""
    return staged_steps(loops, loops.split_extent // fetches)


def changed(row: Row, column: int, choice: int) -> Row:
    """The configuration with another choice of one knob."""
    found = row.copy()
    found[column] = choice
    return found
