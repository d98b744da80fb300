"""Sums of integers that start with what is added to them, instead of with 0.

    for c: sum[c] = 0                            for c: sum[c] = bias[block * 16 + c]
    for k, c: sum[c] = sum[c] + ...              for k, c: sum[c] = sum[c] + ...
    for c: y[..., c] = f(sum[c] + bias[...])     for c: y[..., c] = f(sum[c])

Integers wrap, so that the order of a sum does not matter. Registers are loaded where they would be made 0,
and each vector of results takes one addition less.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from cross.expression.language.terms import Binary, Const, Int, walk
from cross.loopnest.affine import substitute
from cross.loopnest.nodes import (
    Allocate,
    Block,
    Expr,
    Load,
    LoopNest,
    Scope,
    Statement,
    Store,
    Var,
    loads,
    statements,
    stores,
    variables,
    with_inner,
)


def with_started_sums(nest: LoopNest) -> LoopNest:
    """The bound nest with every sum of int32 in registers that can begin with what its only reader adds."""
    changes: dict[int, Expr] = {}
    for item in statements(nest.body):
        if isinstance(item, Allocate) and (item.buffer.dtype, item.buffer.scope) == ("int32", Scope.REGISTER):
            changes |= _started(nest, item.buffer.name)
    if not changes:
        return nest
    body = _changed(nest.body, changes)
    assert isinstance(body, Block)
    return replace(nest, body=body)


def _started(nest: LoopNest, name: str) -> dict[int, Expr]:
    """New values of the store that makes the register 0 and of the one that reads it, by their ids."""
    found = list(stores(nest.body))
    first = [
        (loops, store)
        for loops, store in found
        if store.buffer.name == name and store.value == Const(0, "int32") and store.guard is None
    ]
    readers = [
        store
        for _, store in found
        if store.buffer.name != name and any(load.buffer.name == name for load in loads(store.value))
    ]
    if len(first) != 1 or len(readers) != 1 or readers[0].guard is not None:
        return {}
    ((loops, start), reader) = first[0], readers[0]
    sums = [term for term in walk(reader.value) if isinstance(term, Binary) and _adds(term, name)]
    if len(sums) != 1 or sum(load.buffer.name == name for load in loads(reader.value)) != 1:
        return {}
    total, added = sums[0].left, sums[0].right
    assert isinstance(total, Load) and isinstance(added, Load)
    places: dict[Expr, Expr] = {}
    for there, here in zip(total.indices, start.indices, strict=True):
        if places.setdefault(there, here) != here or not isinstance(there, Var | Int):
            return {}
    if any(isinstance(there, Int) and there != here for there, here in places.items()):
        return {}
    value = substitute(added, places)
    known = {loop.var for loop in loops}
    if added.buffer.name in {store.buffer.name for _, store in found} or not variables(value) <= known:
        return {}
    return {id(start): value, id(reader): _without(reader.value, sums[0])}


def _adds(term: Binary, name: str) -> bool:
    """Whether it adds something in memory to an element of the buffer."""
    left, right = term.left, term.right
    if term.op != "+" or not isinstance(left, Load) or not isinstance(right, Load):
        return False
    return left.buffer.name == name and right.buffer.dtype == "int32"


def _without(expr: Expr, total: Binary) -> Expr:
    if expr is total:
        return total.left
    return expr.mapped(lambda part: _without(part, total)) if expr.parts else expr


def _changed(statement: Statement, changes: Mapping[int, Expr]) -> Statement:
    if isinstance(statement, Store):
        return replace(statement, value=changes.get(id(statement), statement.value))
    return with_inner(statement, lambda item: _changed(item, changes))
