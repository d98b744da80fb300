"""Integer expressions over knobs as straight-line code: each distinct one is evaluated once for a batch.

Extents, strides and limits of a nest repeat the same few expressions many times. A tape gives every distinct
one a row of one table; `run` fills the table [rows, N] from the knob columns of N configurations.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Binary, Int
from cross.loopnest.nodes import Expr, Knob
from toolkit.features.base import Knobs

Values = NDArray[np.float64]
Step = Callable[..., Any]  # (*operands, out=): writes its row


class Tape:
    """Rows are added while a structure is prepared, all before the first run."""

    def __init__(self) -> None:
        self._rows: dict[object, int] = {}
        self._constants: list[tuple[int, float]] = []
        self._knobs: list[tuple[int, str]] = []
        self._steps: list[tuple[Step, tuple[int, ...], int]] = []

    def row(self, expr: Expr) -> int:
        """The row of an integer expression without loop variables."""
        known = self._rows.get(expr)  # an expression's hash is of all its parts: asked for once
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
        table = np.empty((len(self._rows), count))
        for row, value in self._constants:
            table[row] = value
        for row, name in self._knobs:
            table[row] = knobs[name]
        for step, operands, row in self._steps:
            step(*[table[operand] for operand in operands], out=table[row])
        return table

    def _new(self, key: object) -> int:
        row = self._rows[key] = len(self._rows)
        return row
