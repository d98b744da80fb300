"""Flattened context features: the loop context cut or padded to a fixed depth, one width for all operators.

The innermost FLATTENED_LOOPS loops of the main chain in rows of `row_features` columns, innermost first. Rows
keep their place, so that they mean the same only between nests of one pattern.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cross.loopnest.program import Programs
from toolkit.features.base import Knobs, NestFeatures, Table
from toolkit.features.context import ACCESS_FEATURES
from toolkit.features.loops import LoopColumns
from toolkit.features.nest import MainChain
from toolkit.features.slots import SLOTS, slotted
from toolkit.features.tape import Values
from toolkit.features.vocabulary import Vocabulary, vocabulary_for

FLATTENED_LOOPS: Final = 24
_SLOTTED: Final = tuple(f"{slot} {name}" for slot in SLOTS for name in ACCESS_FEATURES)


def row_features(vocabulary: Vocabulary) -> tuple[str, ...]:
    """Names of the features of one loop."""
    return vocabulary.loop_features + _SLOTTED


class FlattenedFeatures(NestFeatures["_Structure"]):
    """See NestFeatures."""

    kind = "flattened"

    def __init__(self, programs: Programs) -> None:
        super().__init__(programs, lambda structure: _Structure(programs.described(structure, MainChain)))
        self.width = len(self.names)

    @property
    def names(self) -> list[str]:
        """A name per column."""
        vocabulary = vocabulary_for(self.programs.space.target)
        rows = range(FLATTENED_LOOPS)
        features = row_features(vocabulary)
        return [*vocabulary.totals, *(f"loop{row} {name}" for row in rows for name in features)]


def context_rows(columns: LoopColumns) -> Values:
    """`row_features` of every loop, innermost first, as they are before the logarithm: [L, R, N]."""
    depth, count = columns.lengths.shape
    rows = np.empty((depth, columns.kinds.shape[1] + 3 + len(_SLOTTED), count))
    touch = slotted(columns.touch)
    columns.write(
        rows, touch, np.where(touch > 0.0, slotted(columns.reuse) - 1.0, 0.0), slotted(columns.stride)
    )
    return rows


class _Structure:
    """One lowered nest, ready to be evaluated."""

    def __init__(self, main: MainChain) -> None:
        self._main = main
        self._totals = len(main.vocabulary.totals)
        self.width = self._totals + FLATTENED_LOOPS * len(row_features(main.vocabulary))

    def features(self, knobs: Knobs, count: int) -> Table:
        """float32 [count, width]."""
        totals, columns = self._main.columns(knobs, count)
        rows = context_rows(columns)[:FLATTENED_LOOPS]
        result = np.zeros((self.width, count), dtype=np.float32)
        start = self._totals
        result[:start] = totals
        result[start : start + rows.shape[0] * rows.shape[1]] = rows.reshape(-1, count)
        result += 1.0
        np.log2(result, out=result)
        return result.T
