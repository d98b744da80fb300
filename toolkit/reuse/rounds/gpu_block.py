"""Algorithm 1 of ETO for one size of a block on a GPU: the steps of its rounds as configurations."""

from __future__ import annotations

import math
from functools import partial

import msgspec
import numpy as np

from cross.schedule.gpu_tiles import UNROLL_LIMITS
from cross.schedule.space import Batch, ScheduleSpace
from toolkit.explore.neighbourhood.footprint import input_elements
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.explore.rounds import Known, Rounds, Step, descend
from toolkit.reuse.rounds.block_shape import cheapest_block, factorizations, staged_steps
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
from toolkit.reuse.rounds.sizes import thread_counts


class Reuse(msgspec.Struct, frozen=True):
    """Shared by the searches of all block sizes: the space and its tiles, loops and features of the reused
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


class BlockSearch(msgspec.Struct, frozen=True):
    """The rounds of one block, around its fastest configuration; `template`: without a number of threads."""

    reuse: Reuse
    shape: tuple[int, ...]
    ratios: Ratios
    fetches: int | None  # None: nothing is staged
    template: Row

    def rounds(self, known: Known) -> Rounds:
        """Numbers of threads, then what is changed of the fastest of them: fetches, unrolling, vectors."""
        vectors = [partial(self.with_vectors, *vector) for vector in self.reuse.tiles.vectors]
        steps: list[Step] = [self.with_fetches, self.with_unrolling, *vectors]
        return descend(self.with_threads(), steps, known, stops_failed=True)

    def with_threads(self) -> Batch:
        """For each number of threads the cheapest split of the block that the board can run."""
        reuse, size = self.reuse, math.prod(self.shape)
        loops, reused = reuse.tiles.loops, reuse.reused
        counts = thread_counts(loops, reuse.source, reused.block, reused.threads, size)
        return self._valid([row for count in counts if (row := self._split(count)) is not None])

    def with_fetches(self, best: Row) -> Batch:
        """The best one with other numbers of fetches."""
        if self.fetches is None:
            return self._valid([])
        loops, rows = self.reuse.tiles.loops, []
        for fetches in other_fetches(loops, self.reuse.reused, self.ratios, self.fetches):
            row = self.reuse.rows.with_fetches(best, fetched_steps(loops, fetches))
            rows += [] if row is None else [self._unrolled(row, fetches)]
        return self._valid(rows)

    def with_unrolling(self, best: Row) -> Batch:
        """The best one with unrolling of each other effect."""
        tiles = self.reuse.tiles
        others = other_unrolls(tiles.sides(best).body, UNROLL_LIMITS[best[tiles.unroll]], BELOW)
        return self.reuse.space.varied(best, tiles.unroll, [UNROLL_LIMITS.index(option) for option in others])

    def with_vectors(self, number: int, column: int, best: Row) -> Batch:
        """The best one with longer vectors for the fetches of an input: its number, and its knob's column."""
        tiles = self.reuse.tiles
        if self.fetches is None:
            return self._valid([])
        sides = tiles.sides(best)
        elements = input_elements(tiles.loops, (*sides.block, *sides.fetched))[number]
        lengths = vector_lengths(elements, math.prod(sides.threads))
        choices = self.reuse.space.knobs[column].choices
        longer = [choices.index((length,)) for length in lengths if (length,) in choices]
        return self.reuse.space.varied(best, column, longer)

    def _split(self, threads: int) -> Row | None:
        """The block between so many threads (GetTShape, GetS, default unrolling)."""
        reuse = self.reuse
        shapes = thread_shapes(self.shape, threads)
        rows, found = reuse.rows.with_threads(self.template, shapes)
        found[found] = reuse.space.valid(rows[found])
        shapes, rows = shapes[found], rows[found]
        if not len(rows):
            return None
        fetched = reuse.tiles.sides(self.template).fetched
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
        found = row.copy()
        found[tiles.unroll] = UNROLL_LIMITS.index(option)
        return found

    def _valid(self, rows: list[Row]) -> Batch:
        space = self.reuse.space
        batch = np.stack(rows) if rows else np.zeros((0, len(space.knobs)), np.int64)
        return batch[space.valid(batch)]


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
    compared = ratios(loops, reuse.source, reuse.reused, found)
    template = reuse.template.copy()
    for _, column in tiles.vectors:
        template[column] = 0  # GetS begins with single elements
    if not tiles.is_staged(template):
        return BlockSearch(reuse, found, compared, None, template)
    fetches = default_fetches(loops, reuse.reused, compared)
    row = None if fetches is None else reuse.rows.with_fetches(template, fetched_steps(loops, fetches))
    return None if row is None else BlockSearch(reuse, found, compared, fetches, row)


def fetched_steps(loops: MajorLoops, fetches: int) -> tuple[int, ...]:
    """Steps of each reduction loop that one of so many fetches is for."""
    return staged_steps(loops, loops.split_extent // fetches)
