"""What a GPU function keeps in registers: which part of a buffer is a thread's own, and what is a vector."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from cross.expression.language.terms import Int
from cross.loopnest.nodes import (
    Allocate,
    Buffer,
    Expr,
    For,
    LoopKind,
    Scope,
    Statement,
    Store,
    Var,
    loads,
    nested,
    stores,
    variables,
)
from cross.loopnest.threads import THREAD_PRIVATE, extent_of

VECTOR_LANES = (2, 4, 8, 16)
VECTOR_DTYPES = ("float16", "float32", "float64", "int32")


class Use(msgspec.Struct, frozen=True):
    """An access to a buffer, with the loops around it, outermost first."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    writes: bool
    loops: tuple[For, ...]


def uses(statement: Statement) -> Iterator[Use]:
    """Every access of a statement, in program order; a store's own one last."""
    for loops, store in stores(statement):
        for load in (load for part in store.parts for load in loads(part)):
            yield Use(load.buffer, load.indices, False, loops)
        yield Use(store.buffer, store.indices, True, loops)


def own_dimensions(statement: Statement) -> dict[str, frozenset[int]]:
    """By buffer that outlives loops over threads: the dimensions of which a thread has one element."""
    outside = {
        item.buffer.name
        for loops, item in nested(statement)
        if isinstance(item, Allocate)
        and item.buffer.scope in THREAD_PRIVATE
        and not any(loop.kind is LoopKind.THREAD for loop in loops)
    }
    found: dict[str, frozenset[int]] = {}
    for use in uses(statement):
        if use.buffer.name in outside:
            threads = {Var(loop.var) for loop in use.loops if loop.kind is LoopKind.THREAD}
            own = frozenset(place for place, index in enumerate(use.indices) if index in threads)
            found[use.buffer.name] = found.get(use.buffer.name, frozenset()) | own
    return found


def runs_as_vector(loop: For) -> bool:
    """Whether a loop may become one vector statement: of a length and dtype that vectors have, one guard."""
    if loop.kind is not LoopKind.VECTORIZED or extent_of(loop) not in VECTOR_LANES:
        return False
    store = loop.body
    if not isinstance(store, Store) or store.buffer.dtype not in VECTOR_DTYPES:
        return False
    return store.guard is None or loop.var not in variables(store.guard)


def vector_registers(found: Sequence[Use]) -> dict[str, int]:
    """The registers that are only ever accessed by whole vectors, with their number of lanes."""
    lanes: dict[str, int] = {}
    for use in found:
        if use.buffer.scope is Scope.REGISTER:
            whole = _whole_vector(use)
            if lanes.setdefault(use.buffer.name, whole) != whole:
                lanes[use.buffer.name] = 0
    return {name: count for name, count in lanes.items() if count}


def _whole_vector(use: Use) -> int:
    """How many lanes an access of the innermost loop has, which are all of the last dimension; else 0."""
    if not use.loops or not use.indices or use.buffer.dtype not in VECTOR_DTYPES:
        return 0
    loop, last = use.loops[-1], use.buffer.shape[-1]
    if not runs_as_vector(loop) or use.indices[-1] != Var(loop.var) or last != Int(extent_of(loop)):
        return 0
    if any(loop.var in variables(index) for index in use.indices[:-1]):
        return 0
    return extent_of(loop)
