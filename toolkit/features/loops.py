"""The context of every loop of a chain, for whole batches: lengths, products, touched elements, strides.

Arrays have the loops innermost first and one column for each configuration. Quantities are exact: they are
integers below 2**53 held in float64.
"""

from __future__ import annotations

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.loopnest.nodes import ZERO, LoopKind
from toolkit.features.base import Table
from toolkit.features.chain import Chain
from toolkit.features.tape import Tape, Values


class LoopColumns(msgspec.Struct, frozen=True):
    """Of a chain of L loops around a statement that touches A buffers, for N configurations.

    lengths, top_down (product of the lengths of the loops around), inside (product of a loop's length and
    those of the loops within): [L, N]. kinds: one-hot in the order of the vocabulary, [L, kinds, N]. touch
    (elements of a buffer that the loop and those within touch), stride (elements between two iterations):
    [A, L, N].
    """

    lengths: Values
    kinds: Values
    top_down: Values
    inside: Values
    touch: Values
    stride: Values

    @property
    def reuse(self) -> Values:
        """Iterations for each touched element, [A, L, N]."""
        return self.inside / self.touch

    def write(self, rows: Table | Values, touch: Values, reuse: Values, stride: Values) -> None:
        """Fill rows [L, R, N] with what is said about each loop and then about each of A accesses, [A, L, N]:
        what log2(1 + x) of makes the features of a vocabulary. `reuse`: less 1, so that log2(reuse) remains.
        """
        own = self.kinds.shape[1] + 3
        rows[:, 0] = self.lengths
        rows[:, 1 : own - 2] = self.kinds  # 0 and 1, which log2(1 + x) leaves as they are
        rows[:, own - 2], rows[:, own - 1] = self.top_down, self.inside
        accesses = rows[:, own:]
        accesses[:, 0::3] = touch.swapaxes(0, 1)
        accesses[:, 1::3] = reuse.swapaxes(0, 1)
        accesses[:, 2::3] = stride.swapaxes(0, 1)


class LoopContext:
    """Ready to evaluate a chain over the tables of a tape."""

    def __init__(
        self, chain: Chain, tape: Tape, unrolled: dict[str, int], kinds: tuple[LoopKind, ...]
    ) -> None:
        loops = chain.loops[::-1]
        self.depth = len(loops)
        self._serial, self._unrolled = kinds.index(LoopKind.SERIAL), kinds.index(LoopKind.UNROLLED)
        self._lengths = np.array([tape.row(loop.extent) for loop in loops], dtype=np.intp)
        self._kinds = np.array([[[float(loop.kind is kind)] for kind in kinds] for loop in loops])
        self._kinds = self._kinds.reshape(self.depth, len(kinds), 1)
        limited = [(place, unrolled[loop.var]) for place, loop in enumerate(loops) if loop.var in unrolled]
        self._limited = np.array([place for place, _ in limited], dtype=np.intp)
        self._flags = np.array([row for _, row in limited], dtype=np.intp)
        self._stride = np.array(
            [[tape.row(access.stride.get(loop.var, ZERO)) for loop in loops] for access in chain.accesses],
            dtype=np.intp,
        ).reshape(len(chain.accesses), self.depth)
        self._touch = _Touch(chain, tape)

    def columns(self, table: Values) -> LoopColumns:
        """The columns of the configurations of a table [rows, N]."""
        count = table.shape[1]
        lengths = table[self._lengths]
        inside = np.multiply.accumulate(lengths, axis=0)
        total = inside[-1] if self.depth else np.ones(count)
        kinds = np.broadcast_to(self._kinds, (*self._kinds.shape[:2], count))
        if len(self._limited):
            flags = table[self._flags]
            kinds = kinds.copy()
            kinds[self._limited] = 0.0
            kinds[self._limited, self._serial] = 1.0 - flags
            kinds[self._limited, self._unrolled] = flags
        touch = self._touch.elements(table, lengths)
        return LoopColumns(lengths, kinds, total / inside, inside, touch, np.abs(table[self._stride]))


class _Touch:
    """How many elements of each buffer the loops up to each one touch.

    A dimension is reached as far as its index moves, 1 + sum |coefficient| (length - 1) over the loops up to
    here, but no further than its extent. The product over dimensions changes only at loops that move an
    index: these are the states; every (access, loop) shows one of them. All states are computed at once: the
    sums are one matrix product, which is exact for integers below 2**53 in any order.
    """

    def __init__(self, chain: Chain, tape: Tape) -> None:
        loops = chain.loops[::-1]
        self._shown: NDArray[np.intp] = np.zeros((len(chain.accesses), len(loops)), dtype=np.intp)
        coefficients: list[tuple[int, int]] = []  # row of the tape, position of the loop
        extents: list[int] = []  # row of the tape, for each dimension of each state
        sums: list[list[int]] = []  # what moved that dimension, numbers of coefficients
        starts: list[int] = []  # of the states among those dimensions
        for place, access in enumerate(chain.accesses):
            moved: list[list[int]] = [[] for _ in access.dimensions]
            shown = 0  # a single element
            for position, loop in enumerate(loops):
                moves = [
                    (item, index)
                    for item, index in zip(moved, access.dimensions, strict=True)
                    if loop.var in index
                ]
                for item, index in moves:
                    item.append(len(coefficients))
                    coefficients.append((tape.row(index[loop.var]), position))
                if moves:
                    starts.append(len(extents))
                    extents += [tape.row(extent) for extent in access.buffer.shape]
                    sums += [list(item) for item in moved]
                    shown = len(starts)
                self._shown[place, position] = shown
        self._rows = np.array([row for row, _ in coefficients], dtype=np.intp)
        self._loops = np.array([position for _, position in coefficients], dtype=np.intp)
        self._extents = np.array(extents, dtype=np.intp)
        self._starts = np.array(starts, dtype=np.intp)
        self._sums = np.zeros((len(sums), len(coefficients)))
        for number, item in enumerate(sums):
            self._sums[number, item] = 1.0

    def elements(self, table: Values, lengths: Values) -> Values:
        """[A, L, N] for lengths [L, N]."""
        states = np.ones((1 + len(self._starts), table.shape[1]))
        if len(self._starts):
            moves = np.abs(table[self._rows]) * (lengths[self._loops] - 1.0)
            reach = np.minimum(self._sums @ moves + 1.0, table[self._extents])
            np.multiply.reduceat(reach, self._starts, axis=0, out=states[1:])
        return states[self._shown]
