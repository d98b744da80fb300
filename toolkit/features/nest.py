"""A lowered nest, ready to be evaluated: its totals, and the loop context of its chains."""

from __future__ import annotations

import numpy as np

from cross.expression.language.terms import Int
from cross.loopnest.nodes import Expr, LoopNest, Scope
from toolkit.features.base import Knobs
from toolkit.features.chain import Chain, main_chain
from toolkit.features.loops import LoopColumns, LoopContext
from toolkit.features.tape import Tape, Values
from toolkit.features.totals import (
    accesses,
    arithmetic,
    barriers,
    buffer_bytes,
    register_bytes,
    scope_bytes,
    traffic_bytes,
)
from toolkit.features.unrolling import unrolled_rows
from toolkit.features.vocabulary import GPU, vocabulary_of


def totals(nest: LoopNest) -> list[Expr]:
    """The totals of the vocabulary as expressions over knobs; `loops` are those of the main chain."""
    memory = (Scope.ARGUMENT, Scope.WORKSPACE)
    on_chip = [
        scope_bytes(nest, Scope.SHARED),
        register_bytes(nest),
        barriers(nest),
        traffic_bytes(nest, memory),
        accesses(nest, memory),
        traffic_bytes(nest, (Scope.SHARED,)),
        accesses(nest, (Scope.SHARED,)),
    ]
    return [
        Int(len(nest.body.statements)),
        Int(len(main_chain(nest).loops)),
        buffer_bytes(nest.workspace),
        scope_bytes(nest, Scope.LOCAL),
        *arithmetic(nest).values(),
        *(on_chip if vocabulary_of(nest) is GPU else ()),
    ]


class NestColumns:
    """The tape of a nest, with the rows of its totals; chains are added before the first table is made."""

    def __init__(self, nest: LoopNest) -> None:
        self.vocabulary = vocabulary_of(nest)
        self._tape = Tape()
        self._unrolled = unrolled_rows(nest.body, self._tape)
        self._totals = np.array([self._tape.row(total) for total in totals(nest)], dtype=np.intp)

    def context(self, chain: Chain) -> LoopContext:
        """The loop context of a chain of this nest."""
        return LoopContext(chain, self._tape, self._unrolled, self.vocabulary.kinds)

    def table(self, knobs: Knobs, count: int) -> Values:
        """What contexts and totals are read from, [rows, count]."""
        return self._tape.run(knobs, count)

    def totals(self, table: Values) -> Values:
        """The totals of the vocabulary, [totals, N]."""
        found: Values = table[self._totals]
        return found


class MainChain:
    """A lowered nest with the context of its main chain, ready to be evaluated."""

    def __init__(self, nest: LoopNest) -> None:
        self.chain = main_chain(nest)
        self._nest = NestColumns(nest)
        self.vocabulary = self._nest.vocabulary
        self._context = self._nest.context(self.chain)

    def columns(self, knobs: Knobs, count: int) -> tuple[Values, LoopColumns]:
        """The totals of the vocabulary, [totals, count], and the columns of the chain's loops."""
        table = self._nest.table(knobs, count)
        return self._nest.totals(table), self._context.columns(table)
