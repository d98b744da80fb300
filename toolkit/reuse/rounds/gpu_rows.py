"""Configurations of a GPU space with given tiles: each tile is looked up among the choices of its knob."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import Batch
from cross.schedule.tiling import TiledLoop
from toolkit.explore.neighbourhood.footprint import Shapes
from toolkit.reuse.rounds.gpu_threads import ThreadShapes, smallest_prime
from toolkit.reuse.rounds.gpu_tiles import GpuTiles, Row, Table

RADIX = 1 << 20  # above the sides of any tile

Found = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Choices:
    """The choices of one loop's knob by what is looked up: `codes` in order, and the choice of each."""

    loop: TiledLoop
    codes: Table
    choices: Table

    def find(self, codes: Table) -> tuple[Table, Found]:
        """The choice for each code, [N], and whether there is one."""
        places = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return self.choices[places], self.codes[places] == codes


class GpuRows:
    """Finds tiles among the knobs of a contraction.

    The two levels inside a thread are split as GetS says: the inner one is the smallest prime, as far as
    there is such a choice. Of the last space loop the inner one is a vector, whose length is taken over from
    the reused program where it divides.

    Args:
        tiles: of the space.
        vector: length of the reused program's vectors.
    """

    def __init__(self, tiles: GpuTiles, vector: int) -> None:
        self.tiles = tiles
        last = len(tiles.loops.space) - 1
        space, reduce = tiles.stage.space, tiles.stage.reduce
        self._space = [_space_choices(loop, vector if loop.place == last else 1) for loop in space]
        self._reduce = [_choices(loop, loop.points(0), loop.choices, 1) for loop in reduce]
        self._blocks = {loop.place: np.unique(loop.points(0)) for loop in space}

    def has_blocks(self, shapes: Shapes) -> Found:
        """Which blocks, [N, S], the knobs have some tiles for."""
        found = np.ones(len(shapes), np.bool_)
        for place in range(shapes.shape[1]):
            found &= np.isin(shapes[:, place], self._blocks.get(place, [1]))
        return found

    def with_threads(self, template: Row, shapes: ThreadShapes) -> tuple[Batch, Found]:
        """The template, int64 [K], with each split of a block; and which of them the knobs have."""
        rows = np.repeat(template[None], len(shapes), axis=0)
        found = np.ones(len(shapes), np.bool_)
        for item in self._space:
            place = item.loop.place
            sides = shapes.virtual[:, place], shapes.threads[:, place], shapes.inner[:, place]
            rows[:, item.loop.column], there = item.find(_code(*sides))
            found &= there
        return rows, found

    def with_fetches(self, template: Row, fetched: Sequence[int]) -> Row | None:
        """The template with so many steps of each reduction loop fetched at once; None: no such choice."""
        row = template.copy()
        for item in self._reduce:
            choice, there = item.find(np.array([fetched[item.loop.place]]))
            if not there[0]:
                return None
            row[item.loop.column] = choice[0]
        return row


def _space_choices(loop: TiledLoop, vector: int) -> Choices:
    virtual, threads, outer, inner = loop.choices.T
    return _choices(loop, _code(virtual, threads, outer * inner), loop.choices[:, 2:], vector)


def _choices(loop: TiledLoop, codes: Table, halves: Table, vector: int) -> Choices:
    """Of the choices with one code the one with the wanted inner half."""
    rest = halves.prod(axis=1)
    wanted = np.array(
        [vector if vector > 1 and side % vector == 0 else smallest_prime(side) for side in rest.tolist()]
    )
    away = np.abs(np.log(halves[:, 1] / wanted))
    order = np.lexsort((away, codes))
    ordered, first = np.unique(codes[order], return_index=True)
    return Choices(loop, ordered, order[first])


def _code(virtual: Table, threads: Table, rest: Table) -> Table:
    found: Table = (virtual * RADIX + threads) * RADIX + rest
    return found
