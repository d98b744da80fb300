"""A search that asks for every program once: many configurations of a space may make the same one."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.proposer import Proposer
from toolkit.explore.space import Batch, SearchSpace

Program = Callable[[NDArray[np.int64]], Hashable]
"""What a configuration, int64 [K], makes: equal for equal programs."""

ATTEMPTS: Final = 4
ENOUGH: Final = 0.75
"""Share of a batch that is not asked for again only because the rest of it repeats programs."""


class DistinctPrograms:
    """Asks for what `inner` asks for, without configurations whose program was asked for or told before.

    `inner` is told what those cost, as soon as that is known: an unrolling limit that changes nothing then
    looks to it like one that was measured. Where ATTEMPTS bring nothing but repetitions they are asked for,
    so that a search ends when its space or its budget does. It keeps to the contract of a Proposer.
    """

    def __init__(self, space: SearchSpace, inner: Proposer, program: Program) -> None:
        self._space = space
        self._inner = inner
        self._program = program
        self._programs: dict[int, Hashable] = {}  # of configurations that were asked for, by their ids
        self._costs_s: dict[Hashable, float] = {}
        self._waiting: dict[Hashable, list[NDArray[np.int64]]] = {}

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        found: list[NDArray[np.int64]] = []
        repeated: list[tuple[Hashable, NDArray[np.int64]]] = []
        for _ in range(ATTEMPTS):
            rows = self._inner.ask(n - len(found))
            for row, program in zip(rows, self._programs_of(rows), strict=True):
                if program in self._waiting or program in self._costs_s:
                    repeated.append((program, row))
                else:
                    self._waiting[program] = []
                    found.append(row)
            if not len(rows) or len(found) >= ENOUGH * n:
                break
        if not found and repeated:
            self._tell_repeated(repeated[n:])
            return self._batch([row for _, row in repeated[:n]])
        self._tell_repeated(repeated)
        return self._batch(found)

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """See Proposer.tell."""
        self._inner.tell(batch, costs_s)
        told: list[tuple[Hashable, NDArray[np.int64]]] = []
        for program, cost_s in zip(self._programs_of(batch), costs_s.tolist(), strict=True):
            self._costs_s[program] = cost_s
            told += [(program, other) for other in self._waiting.pop(program, [])]
        self._tell_repeated(told)

    def _programs_of(self, rows: Batch) -> list[Hashable]:
        ids = self._space.ids(rows).tolist()
        for key, row in zip(ids, rows, strict=True):
            if key not in self._programs:
                self._programs[key] = self._program(row)
        return [self._programs[key] for key in ids]

    def _tell_repeated(self, repeated: list[tuple[Hashable, NDArray[np.int64]]]) -> None:
        """Tell the costs that are known; what is being measured waits for them."""
        rows, costs_s = [], []
        for program, row in repeated:
            if program in self._costs_s:
                rows.append(row)
                costs_s.append(self._costs_s[program])
            else:
                self._waiting[program].append(row)
        if rows:
            self._inner.tell(self._batch(rows), np.array(costs_s))

    def _batch(self, rows: list[NDArray[np.int64]]) -> Batch:
        return np.stack(rows) if rows else np.zeros((0, len(self._space.shape)), np.int64)
