"""What a statement holds: other statements, buffers that it stores to and loads from, and their dtypes."""

from __future__ import annotations

from cross.expression.language.operations import EIGHTS
from cross.expression.language.terms import Call, walk
from cross.loopnest.nodes import (
    Buffer,
    Expr,
    For,
    Load,
    LoopKind,
    Scope,
    Statement,
    loads,
    statements,
    stores,
    variables,
)


def stored(statement: Statement) -> list[str]:
    """Names of the buffers that a statement stores to, in order, each once."""
    return list(dict.fromkeys(store.buffer.name for _, store in stores(statement)))


def buffers(statement: Statement) -> dict[str, Buffer]:
    """The buffers that a statement stores to or loads from, by name."""
    found = {}
    for _, store in stores(statement):
        for buffer in (store.buffer, *(load.buffer for load in loads(store.value))):
            found[buffer.name] = buffer
    return found


def reads_itself(statement: Statement) -> bool:
    """Whether it reads from memory that it stores to."""
    written: set[str] = set()
    read: set[str] = set()
    for _, store in stores(statement):
        if store.buffer.scope is not Scope.REGISTER:
            written.add(store.buffer.name)
        read.update(load.buffer.name for part in store.parts for load in loads(part))
    return not written.isdisjoint(read)


def dtypes_together(statement: Statement) -> dict[str, set[str]]:
    """By the variable of each vectorized loop the dtypes of its buffers and of those of all loops that share
    registers with it: what one loop puts into vectors another reads in the same ones. Words of eight bytes do
    not count: their products have as many lanes as the sums.
    """
    loops = [item for item in statements(statement) if isinstance(item, For)]
    used = {loop.var: buffers(loop.body).values() for loop in loops if loop.kind is LoopKind.VECTORIZED}
    words = {load.buffer.name for _, store in stores(statement) for load in _words_of_eight(store.value)}
    held = {
        var: {buffer.dtype for buffer in found if buffer.name not in words} for var, found in used.items()
    }
    registers = {
        var: {buffer.name for buffer in found if buffer.scope is Scope.REGISTER}
        for var, found in used.items()
    }
    pairs = [(one, other) for one in used for other in used if registers[one] & registers[other]]
    while any(held[one] != held[other] for one, other in pairs):
        for one, other in pairs:
            held[one] = held[other] = held[one] | held[other]
    return held


def _words_of_eight(expr: Expr) -> list[Load]:
    products = [item for item in walk(expr) if isinstance(item, Call) and item.function in EIGHTS]
    return [load for product in products for load in loads(product)]


def free_variables(statement: Statement) -> set[str]:
    """Variables of loops around the statement that occur in it."""
    used = {name for _, store in stores(statement) for part in store.parts for name in variables(part)}
    return used - {item.var for item in statements(statement) if isinstance(item, For)}
