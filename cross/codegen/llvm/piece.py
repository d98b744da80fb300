"""Root statements of nests as what is compiled on its own: kernels with equal pieces share one."""

from __future__ import annotations

import math

import msgspec

from cross.codegen.buffers import bound_extent
from cross.codegen.llvm.uses import buffers
from cross.expression.language.terms import Const, Lookup, walk
from cross.loopnest.nodes import (
    Allocate,
    Buffer,
    For,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    statements,
    stores,
)


class Piece(msgspec.Struct, frozen=True):
    """A root statement of a nest and all that its code depends on: equal pieces have the same code."""

    statement: Statement
    buffers: tuple[Buffer, ...]  # the arguments of its function, in order
    rounded: frozenset[str]  # see rounded_buffers
    literals: tuple[str, ...]  # its numbers as text: 0.0 and -0.0 are equal in Python

    @classmethod
    def of(cls, statement: Statement, nest: LoopNest, rounded: frozenset[str]) -> Piece:
        """The piece of a root statement of a nest; `rounded`: of the whole nest, see rounded_buffers."""
        used = buffers(statement)
        every = (*nest.arguments, *nest.workspace)
        written = [store for _, store in stores(statement)]
        terms = [term for store in written for part in store.parts for term in walk(part)]
        return cls(
            statement,
            tuple(buffer for buffer in every if buffer.name in used),
            rounded & {store.buffer.name for store in written},
            tuple(
                repr(term.value if isinstance(term, Const) else term.matrix)
                for term in terms
                if isinstance(term, Const | Lookup)
            ),
        )

    @property
    def extent(self) -> int:
        """Iterations of the collapsed parallel loops. Raises CompileError where it is not bound."""
        loops = Collapsed.of(self.statement).loops
        return math.prod(bound_extent(loop.extent, loop.var) for loop in loops)

    @property
    def in_tiles(self) -> bool:
        """Whether it sums in tile registers."""
        return any(
            isinstance(part, Allocate) and part.buffer.scope is Scope.TILE
            for part in statements(self.statement)
        )


class Collapsed(msgspec.Struct, frozen=True):
    """The parallel loops of a region, outermost first, and what each iteration runs."""

    loops: tuple[For, ...]
    body: Statement

    @classmethod
    def of(cls, statement: Statement) -> Collapsed:
        loops = []
        while isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
            loops.append(statement)
            statement = statement.body
        return cls(tuple(loops), statement)
