"""From the columns of the "tree" features (toolkit/features/tree.py) to what the TreeGRU network reads."""

from __future__ import annotations

from typing import Final, NamedTuple

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.cost_model.base import Rows

LOOPS_STEP: Final = 8
"""The number of loops is padded to a multiple of this: programs of nearly one size share a compilation."""
EXISTS, PARENT, VARIABLE, CONTEXT, TEXT = 0, 1, 2, 3, 4
"""The first channel of each kind. The context goes on to the last one; the text of a loop, its length and
annotation, are what follows the number of operations, without the last AFTER_TEXT."""
TEXT_CHANNELS: Final = 5  # at least: of CPU programs, whose loops have four kinds
AFTER_TEXT: Final = 14  # products of lengths, and what is said about the buffers
_LEAST_DEVIATION: Final = 1e-3


class Trees(NamedTuple):
    """Programs as the network reads them, rows in the order of the loop nest.

    context: float32 [L, N, inputs]; exists: float32 [L, N], 0 for missing loops; parent: int32 [L, N], the
    row of the loop around, L where there is none; variable: int32 [L, N], the number of the loop variable.
    """

    context: NDArray[np.float32]
    exists: NDArray[np.float32]
    parent: NDArray[np.int32]
    variable: NDArray[np.int32]


class TreeReader(msgspec.Struct, frozen=True):
    """What of the features [N, L * channels] a network reads: the context of a loop, or only its text."""

    channels: int
    vanilla: bool

    def __post_init__(self) -> None:
        if self.channels < TEXT + TEXT_CHANNELS:
            raise ValueError(
                f"tree features: expected at least {TEXT + TEXT_CHANNELS} channels a loop, "
                f"found {self.channels}"
            )

    @property
    def inputs(self) -> int:
        """Numbers that the network reads of each loop."""
        text = max(TEXT_CHANNELS, self.channels - TEXT - AFTER_TEXT)
        return text if self.vanilla else self.channels - CONTEXT

    def loops(self, features: Rows) -> NDArray[np.float32]:
        """[N, L, channels] of features [N, F]. Raises ValueError when F is no multiple of the channels."""
        count, width = features.shape
        if width % self.channels:
            raise ValueError(
                f"tree features of {self.channels} channels a loop: expected a multiple of that many "
                f"columns, found {width}"
            )
        return features.reshape(count, width // self.channels, self.channels)

    def read(self, loops: NDArray[np.float32]) -> NDArray[np.float32]:
        """The channels that the network reads, [..., inputs]."""
        first = TEXT if self.vanilla else CONTEXT
        return loops[..., first : first + self.inputs]

    def depths(self, features: Rows) -> NDArray[np.int64]:
        """Loops of each program, int64 [N]."""
        counts: NDArray[np.int64] = np.count_nonzero(self.loops(features)[:, :, EXISTS], axis=1)
        return counts


class Scale(msgspec.Struct, frozen=True):
    """Middle and deviation of each input over the loops of the training data, float32 [inputs]."""

    center: NDArray[np.float32]
    deviation: NDArray[np.float32]


def measured_scale(reader: TreeReader, features: Rows) -> Scale:
    """The scale of the loops that exist."""
    loops = reader.loops(features)
    rows = reader.read(loops[loops[:, :, EXISTS] > 0.0])
    if not len(rows):
        return Scale(np.zeros(reader.inputs, np.float32), np.ones(reader.inputs, np.float32))
    deviation = np.maximum(rows.std(axis=0, dtype=np.float64), _LEAST_DEVIATION)
    return Scale(rows.mean(axis=0, dtype=np.float64).astype(np.float32), deviation.astype(np.float32))


def padded_depth(most: int) -> int:
    """Rows of loops that the network is given for programs with at most so many."""
    return max(LOOPS_STEP, -(-most // LOOPS_STEP) * LOOPS_STEP)


def trees(reader: TreeReader, scale: Scale, features: Rows, depth: int) -> Trees:
    """What the network reads of features [N, F]; L = `depth`, at least the number of loops of every row."""
    loops = reader.loops(features)[:, :depth].transpose(1, 0, 2)
    loops = np.concatenate([loops, np.zeros((depth - len(loops), *loops.shape[1:]), np.float32)])
    exists = np.ascontiguousarray(loops[:, :, EXISTS])
    above = loops[:, :, PARENT].astype(np.int32)
    parent = np.where((exists > 0.0) & (above >= 0), above, np.int32(depth))
    context = (reader.read(loops) - scale.center) / scale.deviation
    variable = np.ascontiguousarray(loops[:, :, VARIABLE]).astype(np.int32)
    return Trees(np.ascontiguousarray(context), exists, parent, variable)
