"""Sums of integers that begin with what is added to them later: a bias costs no addition of its own.

    s = 0                           s = bias[c]
    s = s + x[k] * w[k, c]   ->     s = s + x[k] * w[k, c]
    y[c] = f(s + bias[c])           y[c] = f(s)

Integers alone: floats would be rounded differently.
"""

from __future__ import annotations

from msgspec.structs import replace

from cross.expression.language.terms import Binary, Const, walk
from cross.loopnest.affine import substitute
from cross.loopnest.nodes import (
    Allocate,
    Block,
    Buffer,
    Expr,
    Load,
    LoopNest,
    Scope,
    Statement,
    Var,
    loads,
    statements,
    stores,
    variables,
    with_inner,
)


def with_begun_sums(nest: LoopNest) -> LoopNest:
    """The nest with sums of int32 in registers begun with what their one reader adds to them, an argument."""
    kept = [part.buffer for part in statements(nest.body) if isinstance(part, Allocate)]
    if not any(buffer.dtype == "int32" for buffer in kept):
        return nest
    written = {store.buffer.name for _, store in stores(nest.body)}

    def change(statement: Statement) -> Statement:
        if isinstance(statement, Allocate) and statement.buffer.dtype == "int32":
            statement = _begun(statement, written)
        return with_inner(statement, change)

    return replace(nest, body=Block(tuple(map(change, nest.body.statements))))


def _begun(allocate: Allocate, written: set[str]) -> Allocate:
    buffer, inside = allocate.buffer, list(stores(allocate.body))
    beginnings = [item for _, item in inside if item.buffer == buffer and item.value == Const(0, "int32")]
    readers = [
        (loops, item)
        for loops, item in inside
        if item.buffer != buffer and any(load.buffer == buffer for load in loads(item.value))
    ]
    if buffer.scope is not Scope.REGISTER or len(beginnings) != 1 or len(readers) != 1:
        return allocate
    (beginning,), ((loops, reader),) = beginnings, readers
    found = _added(reader.value, buffer)
    if found is None or found[1].buffer.name in written or reader.guard is not None:
        return allocate
    total, addend = found
    extents = {Var(loop.var): loop.extent for loop in loops}
    places: dict[Expr, Expr] = {  # where the reader takes all elements of a dimension, one by one
        index: place
        for index, place, extent in zip(total.indices, beginning.indices, buffer.shape, strict=True)
        if isinstance(index, Var) and extents.get(index) == extent
    }
    if not extents.keys() & set(map(Var, variables(addend))) <= places.keys():
        return allocate
    first = Load(addend.buffer, tuple(substitute(index, places) for index in addend.indices))
    changed = {
        id(beginning): replace(beginning, value=first),
        id(reader): replace(reader, value=_without_addend(reader.value, total, addend)),
    }

    def change(statement: Statement) -> Statement:
        return changed.get(id(statement)) or with_inner(statement, change)

    return replace(allocate, body=change(allocate.body))


def _added(expr: Expr, buffer: Buffer) -> tuple[Load, Load] | None:
    """The one read of a buffer in an expression, and the element that is added to it there."""
    reads = [item for item in walk(expr) if isinstance(item, Load) and item.buffer == buffer]
    for item in walk(expr):
        match item:
            case Binary("+", Load() as total, Load() as addend) if reads == [total]:
                return total, addend
    return None


def _without_addend(expr: Expr, total: Load, addend: Load) -> Expr:
    if expr == Binary("+", total, addend):
        return total
    return expr.mapped(lambda part: _without_addend(part, total, addend))
