"""A small schedule space with a known landscape: tiles of a matrix product that must fit a cache.

It is a real space in every respect the search can see (knobs, constraints, neighbours, ids) and its run time
is a formula, so that a test knows the optimum and needs no compiler.
"""

from __future__ import annotations

import math
from typing import cast

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import Part, ScheduleSpace
from toolkit.explore.proposer import Proposer

Batch = NDArray[np.int64]


class TilingSpace:
    """Knobs: tile sizes of i, j and k, vector length, unrolling; a tile's footprint is limited."""

    def __init__(
        self,
        tiles: tuple[int, int, int] = (12, 12, 10),
        vectors: int = 4,
        unrolls: int = 3,
        footprint: float = 8192.0,
    ) -> None:
        self.shape: tuple[int, ...] = (*tiles, vectors, unrolls)
        self.size = math.prod(self.shape)
        self.parts = (Part("", cast(ScheduleSpace, self), None, slice(None), len(self.shape)),)
        self.footprint = footprint
        self._radix = np.array(
            [math.prod(self.shape[i + 1 :]) for i in range(len(self.shape))], dtype=np.uint64
        )

    def values(self, batch: Batch) -> NDArray[np.float64]:
        """Knob values, float64 [N, 5]: tile sizes, vector length, unroll factor."""
        i, j, k, v, u = np.asarray(batch, dtype=np.float64).T
        return np.stack([1 + i * i, 1 + j * j, 2.0**k, 2.0**v, 4.0**u], axis=1)

    def valid(self, batch: Batch) -> NDArray[np.bool_]:
        i, j, k, v, _ = self.values(batch).T
        result: NDArray[np.bool_] = (i * k + k * j + i * j <= self.footprint) & (v <= j)
        return result

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        rows = np.zeros((0, len(self.shape)), np.int64)
        for _ in range(20):
            drawn = rng.integers(0, self.shape, size=(2 * n + 4, len(self.shape)))
            rows = np.concatenate([rows, drawn[self.valid(drawn)]])
            if len(rows) >= n:
                break
        return rows[:n]

    def mutate(self, rng: np.random.Generator, batch: Batch) -> Batch:
        knob = rng.integers(0, len(self.shape), len(batch))
        changed = batch.copy()
        changed[np.arange(len(batch)), knob] = rng.integers(0, np.array(self.shape)[knob])
        return np.where(self.valid(changed)[:, None], changed, batch)

    def ids(self, batch: Batch) -> NDArray[np.uint64]:
        result: NDArray[np.uint64] = batch.astype(np.uint64) @ self._radix
        return result

    def features(self, batch: Batch) -> NDArray[np.float32]:
        """float32 [N, 9]: logarithms of the knob values and of what a tile reads, computes and reuses."""
        i, j, k, v, u = self.values(batch).T
        reads = i * k + k * j
        columns = [i, j, k, v, u, reads, i * j, i * j * k, i * j * k / reads]
        return np.log2(np.stack(columns, axis=1)).astype(np.float32)

    def cost_s(self, batch: Batch) -> NDArray[np.float64]:
        """Run time, float64 [N]: memory traffic, vector use and loop overhead, with one optimum region."""
        i, j, k, v, u = self.values(batch).T
        traffic = 1.0 / i + 1.0 / j + 0.5 / k
        arithmetic = 1.0 / v + 0.3 * np.maximum(0.0, i * v - 256.0) / 256.0
        overhead = 0.2 / u + 0.05 * np.abs(np.log2(u) - 2.0)
        result: NDArray[np.float64] = 1e-3 * (traffic + arithmetic + overhead)
        return result


def everything(space: TilingSpace) -> Batch:
    """Every valid configuration of a space, [N, 5]."""
    grid = np.stack(np.unravel_index(np.arange(math.prod(space.shape)), space.shape), axis=1)
    return grid[space.valid(grid)]


def best_after(space: TilingSpace, proposer: Proposer, trials: int) -> float:
    """Seconds of the fastest configuration that a search finds in so many trials, in batches of 16."""
    best = np.inf
    for _ in range(trials // 16):
        batch = proposer.ask(16)
        costs_s = space.cost_s(batch)
        proposer.tell(batch, costs_s)
        best = min(best, costs_s.min())
    return best
