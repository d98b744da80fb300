"""Tree features: every loop of a nest in one row, for models over the tree of loops (TreeGRU, section 4).

float32 [N, L * C], to be read as [N, L, C]. Rows are the loops that run more than once in some configuration,
in depth-first order of the nest, so that a parent comes before its children; missing rows are all zero. The
channels are `channels(vocabulary)`:

    exists     1 in every row that is there
    parent     the row of the nearest loop around, -1 for none
    variable   a number of the loop variable within the space, from 0: what an embedding is learnt for
    ...        the operations of the statement that stands for the loop, then its context, as `row_features`
               of flattened.py names them

`exists`, `parent` and `variable` are the same for all configurations of a structure. The context of a loop is
that of the chain of the statement beneath it that chain.main_store picks.
"""

from __future__ import annotations

from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.loopnest.nodes import ONE, For, LoopNest, nested
from cross.loopnest.program import Programs
from toolkit.features.base import Knobs, NestFeatures, Table
from toolkit.features.chain import Chain, chain, main_store
from toolkit.features.flattened import context_rows, row_features
from toolkit.features.nest import NestColumns
from toolkit.features.totals import operations
from toolkit.features.vocabulary import CPU, Vocabulary, vocabulary_for


def channels(vocabulary: Vocabulary) -> tuple[str, ...]:
    """The columns of one row."""
    return ("exists", "parent", "variable", "operations", *row_features(vocabulary))


CHANNELS: Final = channels(CPU)
"""Columns of the tree features of a CPU program."""


class TreeRow(msgspec.Struct, frozen=True):
    """A loop that has a row: the row around it, and the chain whose context it shows.

    `path`: the variables of the chain's loops, which name it, as no two loops of a nest share one.
    """

    loop: For
    parent: int
    path: tuple[str, ...]
    chain: Chain


class TreeFeatures(NestFeatures["_Structure"]):
    """`loops` is the largest number of rows of any structure, `channels` the number of columns of one,
    `variables` the number of every loop variable that has a row."""

    kind = "tree"

    def __init__(self, programs: Programs) -> None:
        self._channels = channels(vocabulary_for(programs.space.target))
        self.channels = len(self._channels)
        self.variables: dict[str, int] = {}
        super().__init__(programs, lambda structure: self._structure(programs.parametric(structure).nest))
        self.loops = max(structure.loops for structure in self.all())
        self.width = self.loops * self.channels

    @property
    def names(self) -> list[str]:
        """A name per column."""
        return [f"row{row} {name}" for row in range(self.loops) for name in self._channels]

    def _structure(self, nest: LoopNest) -> _Structure:
        rows = tree_rows(nest)
        for row in rows:
            self.variables.setdefault(row.loop.var, len(self.variables))
        return _Structure(nest, rows, [self.variables[row.loop.var] for row in rows])


def tree_rows(nest: LoopNest) -> list[TreeRow]:
    """The loops of a parametric nest that have rows, parents first."""
    rows: list[TreeRow] = []
    chains: dict[tuple[str, ...], Chain] = {}
    for loops, loop in nested(nest.body):
        if not isinstance(loop, For) or loop.extent == ONE:
            continue
        names = {row.loop.var: place for place, row in enumerate(rows)}
        parent = max((names[outer.var] for outer in loops if outer.var in names), default=-1)
        inner, store = main_store(loop)
        around = (*loops, *inner)
        path = tuple(item.var for item in around)
        if path not in chains:
            chains[path] = chain(around, store)
        rows.append(TreeRow(loop, parent, path, chains[path]))
    return rows


class _Structure:
    """One lowered nest, ready to be evaluated: each distinct chain once."""

    def __init__(self, nest: LoopNest, rows: list[TreeRow], variables: list[int]) -> None:
        self.loops = len(rows)
        self._nest = NestColumns(nest)
        self._channels = len(channels(self._nest.vocabulary))
        self.width = self.loops * self._channels
        chains = {row.path: row.chain for row in rows}
        self._contexts = [self._nest.context(chain) for chain in chains.values()]
        constants = [
            (1.0, row.parent, variable, np.log2(1.0 + sum(operations(row.chain.store).values())))
            for row, variable in zip(rows, variables, strict=True)
        ]
        self._constants: NDArray[np.float32] = np.array(constants, dtype=np.float32).reshape(-1, 4)
        # of every chain: which of its loops, innermost first, fill which rows
        self._shown: list[tuple[NDArray[np.intp], NDArray[np.intp]]] = []
        for path in chains:
            mine = [place for place, row in enumerate(rows) if row.path == path]
            inwards = [len(path) - 1 - path.index(rows[place].loop.var) for place in mine]
            self._shown.append((np.array(mine, dtype=np.intp), np.array(inwards, dtype=np.intp)))

    def features(self, knobs: Knobs, count: int) -> Table:
        """float32 [count, width]."""
        values = self._nest.table(knobs, count)
        result = np.empty((self.loops, self._channels, count), dtype=np.float32)
        result[:, :4] = self._constants[:, :, None]
        for context, (mine, inwards) in zip(self._contexts, self._shown, strict=True):
            result[mine, 4:] = context_rows(context.columns(values))[inwards]
        logarithmic = result[:, 4:]
        logarithmic += 1.0
        np.log2(logarithmic, out=logarithmic)
        return result.reshape(self.width, count).T
