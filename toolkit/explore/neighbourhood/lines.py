"""Memory lines under blocks of an array, for many blocks at once.

A block reaches, in every dimension, one set of positions; the elements under it are the product of those
sets. Its lines are counted by the places that rows start at within a line, so that no address is listed: for
each dimension a histogram of those places, for each set of the last one the lines of a row from each place.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import msgspec
import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Table = NDArray[np.int64]


class Side(msgspec.Struct, frozen=True):
    """A dimension of `extent` elements: block n reaches the positions `sets[which[n]]`, each ascending."""

    extent: int
    sets: Sequence[Positions]
    which: Positions

    @property
    def counts(self) -> Positions:
        """How many positions each block reaches, int64 [N]."""
        found: Positions = np.array([len(item) for item in self.sets], np.int64)[self.which]
        return found


def lines_under(sides: Sequence[Side], line: int) -> Positions:
    """Lines of `line` elements under each block in a row-major array that starts at a line, int64 [N].

    Dimensions that a block covers whole are joined with the one before, so that rows are as long as they can
    be; then only rows that begin in the line in which the one before ends share one.
    """
    covered = np.zeros(len(sides[0].which), np.int64)  # how many dimensions are joined, from the last on
    still = np.ones(len(covered), np.bool_)
    for side in sides[:0:-1]:
        still &= side.counts == side.extent
        covered += still
    lines = np.zeros(len(covered), np.int64)
    for joined in np.unique(covered).tolist():
        blocks = np.flatnonzero(covered == joined)
        inner = len(sides) - 1 - joined
        width = int(np.prod([side.extent for side in sides[inner + 1 :]], dtype=np.int64))
        lines[blocks] = _lines_of_rows(sides[: inner + 1], blocks, width, line)
    return lines


def _lines_of_rows(sides: Sequence[Side], blocks: Positions, width: int, line: int) -> Positions:
    """Lines of some blocks where each position of the last side stands for `width` elements in a row."""
    last = sides[-1]
    rows = np.stack([_lines_from_each_place(positions, width, line) for positions in last.sets])
    starts = np.zeros((len(blocks), line), np.int64)  # how many rows begin at each place within a line
    starts[:, 0] = 1
    strides = _strides(sides, width)
    for side, stride in zip(sides[:-1], strides[:-1], strict=True):
        turned = np.stack([_turned(positions, stride % line, line) for positions in side.sets])
        starts = np.matmul(starts[:, None, :], turned[side.which[blocks]])[:, 0, :]
    found: Positions = (starts * rows[last.which[blocks]]).sum(axis=1)
    if len(sides) > 1:
        gaps = [strides[-2] - int(positions[-1] - positions[0] + 1) * width + 1 for positions in last.sets]
        close = np.array(gaps)[last.which[blocks]] <= line
        for number in np.flatnonzero(close).tolist():
            found[number] -= _shared(sides, int(blocks[number]), strides, width, line)
    return found


def _strides(sides: Sequence[Side], width: int) -> list[int]:
    """Elements from one position to the next in every dimension."""
    strides = [width]
    for side in sides[:0:-1]:
        strides.insert(0, strides[0] * side.extent)
    return strides


def _lines_from_each_place(positions: Positions, width: int, line: int) -> Positions:
    """Lines of runs of `width` elements, at these positions of a row from each place in a line, [line]."""
    begins = positions[None, :] * width + np.arange(line)[:, None]
    first, last = begins // line, (begins + width - 1) // line
    shared = np.count_nonzero(first[:, 1:] == last[:, :-1], axis=1)
    found: Positions = (last - first + 1).sum(axis=1) - shared
    return found


def _turned(positions: Positions, stride: int, line: int) -> Table:
    """[p, q]: how many of the positions lead from place p in a line to place q."""
    places = np.bincount(positions * stride % line, minlength=line)
    found: Table = places[_turns(line)]
    return found


@lru_cache
def _turns(line: int) -> Table:
    steps = np.arange(line)
    found: Table = (steps[None, :] - steps[:, None]) % line
    return found


def _shared(sides: Sequence[Side], block: int, strides: Sequence[int], width: int, line: int) -> int:
    """Rows of a block that begin in the line where the row directly before them ends; by listing them, for
    they are few elements apart only in narrow arrays."""
    *outer, last = [side.sets[side.which[block]] for side in sides]
    begin, end = int(last[0]) * width, int(last[-1]) * width + width - 1
    rows = np.zeros(1, np.int64)
    for positions, stride in zip(outer, strides[:-1], strict=True):
        rows = (rows[:, None] + (positions * stride)[None, :]).reshape(-1)
    ends, begins = (rows[:-1] + end) // line, (rows[1:] + begin) // line
    return int(np.count_nonzero((ends == begins) & (np.diff(rows) > 0)))
