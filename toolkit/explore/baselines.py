"""Baselines without a cost model: random and index order, and a genetic algorithm (AutoTVM, section 6.1)."""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.explore.proposer import Remembering
from toolkit.explore.space import Batch, SearchSpace, draw_unseen, enumerated, fresh

_BROODS: Final = 8  # of children, until enough of them are new


class RandomProposer(Remembering):
    """Draws configurations at random, each once, whatever it is told."""

    def __init__(self, space: SearchSpace, rng: np.random.Generator) -> None:
        super().__init__(space)
        self._rng = rng

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        return self._history.asked(draw_unseen(self._space, self._rng, n, self._history.seen))


class GridProposer(Remembering):
    """Walks the space once, in index order; ends when every valid configuration has been asked for."""

    def __init__(self, space: SearchSpace) -> None:
        super().__init__(space)
        self._blocks = enumerated(space)
        self._ahead: Batch = np.zeros((0, len(space.shape)), np.int64)

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        self._ahead = fresh(self._space, self._ahead, self._history.seen)
        while len(self._ahead) < n:
            block = next(self._blocks, None)
            if block is None:
                break
            self._ahead = np.concatenate([self._ahead, fresh(self._space, block, self._history.seen)])
        return self._history.asked(self._ahead[:n])


class GeneticOptions(msgspec.Struct, frozen=True):
    """`population` configurations drawn at random begin, and so many of the fastest are parents after them.

    A parent is the fastest of `tournament` drawn ones; `mutation` of the children are mutated.
    """

    population: int = 32
    tournament: int = 3
    mutation: float = 0.5


class GeneticProposer(Remembering):
    """The population is made of the fastest configurations measured so far, so that the elite never dies.

    Parents win tournaments; a child takes each knob from one of its two parents, and may then have a knob
    drawn anew. Children that were measured before are mutated until they are new.
    """

    def __init__(
        self, space: SearchSpace, rng: np.random.Generator, options: GeneticOptions = GeneticOptions()
    ) -> None:
        super().__init__(space)
        self._rng = rng
        self._options = options

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        parents = self._history.fastest(self._options.population)
        rows: Batch = np.zeros((0, len(self._space.shape)), np.int64)
        founders = min(n, max(0, self._options.population - len(self._history.seen)))
        if len(parents) and founders < n:
            rows = self._brood(parents, n - founders)
        taken = np.concatenate([self._history.seen, self._space.ids(rows)])
        drawn = draw_unseen(self._space, self._rng, n - len(rows), taken)
        return self._history.asked(np.concatenate([rows, drawn]))

    def _brood(self, parents: Batch, n: int) -> Batch:
        """Up to n new children."""
        rows = parents[:0]
        for _ in range(_BROODS):
            if len(rows) >= n:
                break
            children = self._children(parents, 2 * (n - len(rows)))
            rows = fresh(self._space, np.concatenate([rows, children]), self._history.seen)
        return rows[:n]

    def _children(self, parents: Batch, count: int) -> Batch:
        """count valid configurations. A cross that breaks a constraint is the mother instead."""
        space, rng = self._space, self._rng
        mothers, fathers = self._winners(parents, count), self._winners(parents, count)
        crossed = np.where(rng.random(mothers.shape) < 0.5, mothers, fathers)
        crossed = np.where(space.valid(crossed)[:, None], crossed, mothers)
        known = np.isin(space.ids(crossed), self._history.seen)
        mutates = known | (rng.random(count) < self._options.mutation)
        children: Batch = np.where(mutates[:, None], space.mutate(rng, crossed), crossed)
        return children

    def _winners(self, parents: Batch, count: int) -> Batch:
        """The fastest of each tournament; parents come fastest first."""
        drawn = self._rng.integers(0, len(parents), (count, self._options.tournament))
        fastest: NDArray[np.int64] = drawn.min(axis=1)
        return parents[fastest]
