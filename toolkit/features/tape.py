"""Integer expressions over knobs as straight-line code: each distinct one is evaluated once for a batch.

Extents, strides and limits of a nest repeat the same few expressions many times. A tape gives every distinct
one a row of one table; `run` fills the table [rows, N] from the knob columns of N configurations. Batches of
one structure are small, so that numpy's calls are what costs: steps that do the same and need nothing of each
other are one call (a level of the expressions' graph, as in vectorized interpreters).
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Binary, Int
from cross.loopnest.nodes import Expr, Knob
from toolkit.features.base import Knobs

Values = NDArray[np.float64]
Step = Callable[..., Any]  # (*operands, out=), arrays of the same shape: elementwise


class _Level(msgspec.Struct, frozen=True):
    """Steps that are one call: rows of each operand, and the stretch of rows that they write."""

    step: Step
    operands: tuple[NDArray[np.intp], ...]
    out: slice


class Tape:
    """Rows are added while a structure is prepared, all before the first run."""

    def __init__(self) -> None:
        self._rows: dict[object, int] = {}
        self._constants: list[tuple[int, float]] = []
        self._knobs: list[tuple[int, str]] = []
        self._steps: list[tuple[Step, tuple[int, ...], int]] = []

    def row(self, expr: Expr) -> int:
        """The row of an integer expression without loop variables."""
        known = self._rows.get(expr)
        if known is not None:
            return known
        match expr:
            case Int(value):
                row = self._new(expr)
                self._constants.append((row, float(value)))
            case Knob(name):
                row = self._new(expr)
                self._knobs.append((row, name))
            case Binary(op, left, right) if OPERATIONS[op].integer is not None:
                row = self.step(expr, OPERATIONS[op].numpy, self.row(left), self.row(right))
            case _:
                raise TypeError(f"no integer expression over knobs: {expr}")
        return row

    def step(self, key: object, step: Step, *operands: int) -> int:
        """The row that `step` writes from the rows of its operands; one for each key."""
        row = self._rows.get(key)
        if row is None:
            row = self._new(key)
            self._steps.append((step, operands, row))
        return row

    def run(self, knobs: Knobs, count: int) -> Values:
        """float64 [rows, count] from int64 [count] for each knob."""
        places, levels = self._order
        table = np.empty((len(self._rows), count))
        table[: len(self._constants)] = np.reshape([value for _, value in self._constants], (-1, 1))
        for place, (_, name) in enumerate(self._knobs, start=len(self._constants)):
            table[place] = knobs[name]
        for level in levels:
            level.step(*[table.take(rows, axis=0) for rows in level.operands], out=table[level.out])
        return table.take(places, axis=0)

    @functools.cached_property
    def _order(self) -> tuple[NDArray[np.intp], list[_Level]]:
        """Where a run puts each row, and its calls: constants, knobs, then the steps level by level."""
        depth = np.zeros(len(self._rows), np.intp)
        for _, operands, row in self._steps:
            depth[row] = 1 + max(depth[operand] for operand in operands)

        def kind(item: tuple[Step, tuple[int, ...], int]) -> tuple[int, int, int]:
            step, operands, row = item
            return int(depth[row]), numbers.setdefault(step, len(numbers)), len(operands)

        numbers: dict[Step, int] = {}
        steps = sorted(self._steps, key=kind)
        written = [row for row, _ in (*self._constants, *self._knobs)] + [row for _, _, row in steps]
        places = np.empty(len(written), np.intp)
        places[written] = np.arange(len(written))
        levels, first = [], len(written) - len(steps)
        for _, group in itertools.groupby(steps, key=kind):
            same = list(group)
            read = places[np.array([operands for _, operands, _ in same], np.intp).T]
            levels.append(_Level(same[0][0], tuple(read), slice(first, first + len(same))))
            first += len(same)
        return places, levels

    def _new(self, key: object) -> int:
        row = self._rows[key] = len(self._rows)
        return row
