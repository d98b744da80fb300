"""Flattened context features: the loop context cut or padded to a fixed depth, one width for all operators.

The innermost FLATTENED_LOOPS loops of the main chain in rows of `row_features` columns, innermost first. Rows
keep their place, so that they mean the same only between nests of one pattern.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cross.loopnest.nodes import LoopNest
from cross.loopnest.program import Programs
from cross.schedule.space import Batch
from toolkit.features.base import Knobs, Structures, Table
from toolkit.features.chain import main_chain
from toolkit.features.context import ACCESS_FEATURES
from toolkit.features.loops import LoopColumns
from toolkit.features.nest import NestColumns
from toolkit.features.slots import SLOTS, slotted
from toolkit.features.tape import Values
from toolkit.features.vocabulary import Vocabulary, vocabulary_for

FLATTENED_LOOPS: Final = 24
KIND: Final = "flattened"
_SLOTTED: Final = tuple(f"{slot} {name}" for slot in SLOTS for name in ACCESS_FEATURES)


def row_features(vocabulary: Vocabulary) -> tuple[str, ...]:
    """What is said about a loop."""
    return vocabulary.loop_features + _SLOTTED


class FlattenedFeatures:
    """Features of the configurations of one space: call it with a batch."""

    kind = KIND

    def __init__(self, programs: Programs) -> None:
        self._structures = Structures(programs, _Structure)
        self.width = len(self.names)

    @property
    def names(self) -> list[str]:
        """A name per column."""
        vocabulary = vocabulary_for(self._structures.programs.space.target)
        rows = range(FLATTENED_LOOPS)
        features = row_features(vocabulary)
        return [*vocabulary.totals, *(f"loop{row} {name}" for row in rows for name in features)]

    def __call__(self, batch: Batch) -> Table:
        """float32 [N, width] for int64 [N, K]."""
        return self._structures.table(batch, self.width)


def context_rows(columns: LoopColumns) -> Values:
    """`row_features` of every loop, innermost first, as they are before the logarithm: [L, R, N]."""
    depth, count = columns.lengths.shape
    own = columns.kinds.shape[1] + 3
    rows = np.empty((depth, own + len(_SLOTTED), count))
    rows[:, 0] = columns.lengths
    rows[:, 1 : own - 2] = columns.kinds  # 0 and 1, which log2(1 + x) leaves as they are
    rows[:, own - 2], rows[:, own - 1] = columns.top_down, columns.inside
    accesses = rows[:, own:]
    touch = slotted(columns.touch)
    accesses[:, 0::3] = touch.swapaxes(0, 1)
    reuse = np.where(touch > 0.0, slotted(columns.reuse) - 1.0, 0.0)  # log2(1 + x) leaves log2(reuse)
    accesses[:, 1::3] = reuse.swapaxes(0, 1)
    accesses[:, 2::3] = slotted(columns.stride).swapaxes(0, 1)
    return rows


class _Structure:
    """One lowered nest, ready to be evaluated."""

    def __init__(self, nest: LoopNest) -> None:
        self._nest = NestColumns(nest)
        self._context = self._nest.context(main_chain(nest))
        vocabulary = self._nest.vocabulary
        self._totals = len(vocabulary.totals)
        self.width = self._totals + FLATTENED_LOOPS * len(row_features(vocabulary))

    def features(self, knobs: Knobs, count: int) -> Table:
        """float32 [count, width]."""
        values = self._nest.table(knobs, count)
        rows = context_rows(self._context.columns(values))[:FLATTENED_LOOPS]
        result = np.zeros((self.width, count), dtype=np.float32)
        start = self._totals
        result[:start] = self._nest.totals(values)
        result[start : start + rows.shape[0] * rows.shape[1]] = rows.reshape(-1, count)
        result += 1.0
        np.log2(result, out=result)
        return result.T
