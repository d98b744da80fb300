"""Tiles in the interior of an image and tiles at its border. Start at `versions`.

Where a padding is inlined, every tap of every pixel is guarded: comparisons, and a pointer that is chosen.
In an unrolled window they take more registers than the tile leaves, in all tiles, for the sake of the few at
the border. So a register tile gets two versions, and what decides between them is asked once a tile:

    for tiles                                 for tiles
      for ry, rx (unrolled):                    if 0 <= first row and last row < height:
        sum += (guard ? data : 0) * weight          for ry, rx (unrolled): sum += data * weight
                                                else:
                                                    for ry, rx (running): sum += (guard ? data : 0) * weight

A tile that always touches the border has guards that no tile fulfils; they stay in both versions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass, replace

from cross.codegen.uses import statements, stores
from cross.loopnest.affine import Interval, affine, from_affine, interval
from cross.loopnest.nodes import (
    ZERO,
    Allocate,
    Binary,
    Block,
    Call,
    Cast,
    Expr,
    For,
    Int,
    Lookup,
    LoopKind,
    Scope,
    Select,
    Statement,
    Store,
    add,
)
from cross.loopnest.traits import loads, parts, variables


@dataclass(frozen=True, slots=True)
class Versions:
    """A statement twice: `interior` may run where the condition holds, `border` anywhere."""

    condition: Expr
    interior: Statement
    border: Statement


def versions(statement: Statement, ranges: Mapping[str, Interval]) -> Versions | None:
    """The two versions of a statement; None where no guard in it can be asked once for all.

    Args:
        statement: bound, all its integer variables bound by loops in it or around it.
        ranges: inclusive bounds of the loops around it.
    """
    loops = [item for item in statements(statement) if isinstance(item, For)]
    inner = {loop.var: (0, loop.extent.value - 1) for loop in loops if isinstance(loop.extent, Int)}
    asked: dict[Expr, None] = {}
    assumed: set[Expr] = set()
    for guard in _guards(statement):
        outer = _for_all(guard, inner)
        bounds = None if outer is None else interval(outer, ranges)
        if outer is None or bounds is None or bounds[1] < 0:
            continue
        assumed.add(guard)
        if bounds[0] < 0:
            asked[outer] = None
    if not asked:
        return None
    holds: list[Expr] = [Binary("<=", ZERO, outer) for outer in asked]
    condition = functools.reduce(_both, holds)
    return Versions(condition, _without(statement, assumed), _running(statement))


def _for_all(guard: Expr, inner: Mapping[str, Interval]) -> Expr | None:
    """What is never negative where a comparison holds for all values of the inner variables."""
    if not isinstance(guard, Binary) or guard.op not in ("<", "<="):
        return None
    terms, constant = affine(Binary("-", guard.right, guard.left))
    least = add(constant, Int(-1 if guard.op == "<" else 0))
    outer: dict[Expr, Expr] = {}
    for term, coefficient in terms.items():
        bounds = interval(term, inner) if variables(term) <= inner.keys() else None
        if bounds is not None and isinstance(coefficient, Int):
            least = add(least, Int(min(bound * coefficient.value for bound in bounds)))
        elif variables(term) & inner.keys():
            return None
        else:
            outer[term] = coefficient
    return from_affine((outer, least)) if outer else None


def _guards(statement: Statement) -> Iterator[Expr]:
    """The comparisons of indices that choose whether something is read."""
    for store in stores(statement):
        for condition in _conditions(store.value):
            yield from _conjuncts(condition)


def _conditions(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Select):
        yield expr.condition
    for part in parts(expr):
        yield from _conditions(part)


def _conjuncts(condition: Expr) -> Iterator[Expr]:
    if isinstance(condition, Binary) and condition.op == "and":
        yield from _conjuncts(condition.left)
        yield from _conjuncts(condition.right)
    elif not loads(condition):
        yield condition


# --------------------------------------------------------------------------------------------- versions


def _without(statement: Statement, assumed: Set[Expr]) -> Statement:
    """The statement with guards that hold left out."""
    match statement:
        case For() | Allocate():
            return replace(statement, body=_without(statement.body, assumed))
        case Block(items):
            return Block(tuple(_without(item, assumed) for item in items))
        case Store():
            return replace(statement, value=_unguarded(statement.value, assumed))


def _unguarded(expr: Expr, assumed: Set[Expr]) -> Expr:
    match expr:
        case Select(condition, then, otherwise):
            left = [guard for guard in _conjuncts_of(condition) if guard not in assumed]
            value = _unguarded(then, assumed)
            if not left:
                return value
            return Select(functools.reduce(_both, left), value, _unguarded(otherwise, assumed))
        case Binary(op, a, b):
            return Binary(op, _unguarded(a, assumed), _unguarded(b, assumed))
        case Call(function, arguments):
            return Call(function, tuple(_unguarded(argument, assumed) for argument in arguments))
        case Cast():
            return replace(expr, value=_unguarded(expr.value, assumed))
        case _:
            return expr


def _conjuncts_of(condition: Expr) -> list[Expr]:
    if isinstance(condition, Binary) and condition.op == "and":
        return [*_conjuncts_of(condition.left), *_conjuncts_of(condition.right)]
    return [condition]


def _both(left: Expr, right: Expr) -> Expr:
    return Binary("and", left, right)


def _running(statement: Statement) -> Statement:
    """The statement with loops that run wherever their variable names no register and no literal."""
    known = _register_variables(statement) | _literal_variables(statement)

    def changed(item: Statement) -> Statement:
        match item:
            case For():
                unrolled = item.kind is LoopKind.UNROLLED and item.var not in known
                return replace(item, kind=LoopKind.SERIAL if unrolled else item.kind, body=changed(item.body))
            case Allocate():
                return replace(item, body=changed(item.body))
            case Block(items):
                return Block(tuple(changed(part) for part in items))
            case Store():
                return item

    return changed(statement)


def _register_variables(statement: Statement) -> frozenset[str]:
    """The variables that occur in places of register buffers, which must be known."""
    found: frozenset[str] = frozenset()
    for store in stores(statement):
        places = [store.indices] if store.buffer.scope is Scope.REGISTER else []
        places += [load.indices for load in loads(store.value) if load.buffer.scope is Scope.REGISTER]
        found = found.union(*(variables(index) for place in places for index in place))
    return found


def _literal_variables(statement: Statement) -> frozenset[str]:
    """The variables that occur in places of matrices of literals: most of those are 0, 1 or -1."""
    return frozenset().union(*(_looked_up(store.value) for store in stores(statement)))


def _looked_up(expr: Expr) -> frozenset[str]:
    here = variables(expr) if isinstance(expr, Lookup) else frozenset()
    return here.union(*map(_looked_up, parts(expr)))
