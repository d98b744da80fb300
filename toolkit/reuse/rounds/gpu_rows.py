"""Configurations of a GPU space with given tiles: each tile is looked up among the choices of its knob."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import Batch
from cross.schedule.tiling import TiledLoop
from toolkit.explore.neighbourhood.footprint import Shapes
from toolkit.reuse.rounds.gpu_threads import ThreadShapes, smallest_prime
from toolkit.reuse.rounds.gpu_tiles import GpuTiles, Row

Found = NDArray[np.bool_]
Choices = dict[tuple[int, ...], int]
"""The choice of a knob by the tile that is looked up."""


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
        last = len(tiles.loops.space) - 1
        self._space = [
            (loop, _by_tile(loop, 2, vector if loop.place == last else 1)) for loop in tiles.stage.space
        ]
        self._reduce = [(loop, _by_tile(loop, 0, 1)) for loop in tiles.stage.reduce]
        self._blocks = {loop.place: np.unique(loop.points(0)) for loop in tiles.stage.space}

    def has_blocks(self, shapes: Shapes) -> Found:
        """Which blocks, [N, S], the knobs have some tiles for."""
        found = np.ones(len(shapes), np.bool_)
        for place in range(shapes.shape[1]):
            found &= np.isin(shapes[:, place], self._blocks.get(place, [1]))
        return found

    def with_threads(self, template: Row, shapes: ThreadShapes) -> tuple[Batch, Found]:
        """The template, int64 [K], with each split of a block; and which of them the knobs have."""
        rows = np.repeat(template[None], len(shapes), axis=0)
        for loop, choices in self._space:
            sides = (side[:, loop.place].tolist() for side in (shapes.virtual, shapes.threads, shapes.inner))
            rows[:, loop.column] = _chosen(choices, zip(*sides, strict=True))
        return rows, np.asarray((rows >= 0).all(axis=1))

    def with_fetches(self, template: Row, fetched: Sequence[int]) -> Row | None:
        """The template with so many steps of each reduction loop fetched at once; None: no such choice."""
        row = template.copy()
        for loop, choices in self._reduce:
            (row[loop.column],) = _chosen(choices, [(fetched[loop.place],)])
        return row if (row >= 0).all() else None


def _by_tile(loop: TiledLoop, inside: int, vector: int) -> Choices:
    """Choices by the sizes of the levels before `inside` and the product of the two from there on; of several
    the one with the wanted innermost size."""
    rest = loop.points(inside).tolist()
    wanted = [vector if vector > 1 and size % vector == 0 else smallest_prime(size) for size in rest]
    away = np.abs(np.log(loop.choices[:, inside + 1] / wanted))
    tiles = loop.choices[:, :inside].tolist()
    worst_first = np.argsort(away, kind="stable")[::-1].tolist()
    return {(*tiles[choice], rest[choice]): choice for choice in worst_first}


def _chosen(choices: Choices, tiles: Iterable[tuple[int, ...]]) -> list[int]:
    """The choice for each tile, -1 where there is none."""
    return [choices.get(tile, -1) for tile in tiles]
