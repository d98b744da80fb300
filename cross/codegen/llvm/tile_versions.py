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

Of a row of four tiles two touch the border, of a row of two all do. A tile without loops that run, such as a
depthwise convolution's, gets two more versions, for the first and for the last tile of a row: there each
guard of a column is known, and what lies in the padding is left out. Where there are others between, these
two are in the function of the border. A tile as wide as the image needs none: at a border one loop runs, over
rows of the window.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from typing import Final

import msgspec
from msgspec.structs import replace

from cross.expression.language.terms import Binary, Const, Int, Lookup, Select, walk
from cross.loopnest.affine import Interval, affine, from_affine, interval, substitute
from cross.loopnest.nodes import (
    ZERO,
    Expr,
    For,
    Load,
    LoopKind,
    Scope,
    Statement,
    Store,
    Var,
    add,
    all_of,
    conjuncts,
    loads,
    statements,
    stores,
    variables,
    with_inner,
)

MOST_TILES: Final = 16  # of a row, by choice: of more, less than an eighth touch the border
LEAST_STEPS: Final = 24  # of a tile, by choice: in shorter ones LLVM spills addresses that versions share


Version = tuple[Expr, Statement]
"""A condition, and the statement as it may be where that holds."""


class Versions(msgspec.Struct, frozen=True):
    """A statement several times. Each of `interiors`, most tiles together, and of `edges` may run where its
    condition holds, `border` anywhere."""

    interiors: tuple[Version, ...]
    edges: tuple[Version, ...]
    border: Statement


def versions(statement: Statement, ranges: Mapping[str, Interval]) -> Versions | None:
    """The versions of a statement; None where no guard in it can be asked once for all.

    Args:
        statement: bound, all its integer variables bound by loops in it or around it.
        ranges: inclusive bounds of the loops around it.
    """
    inner = _inner(statement)
    asked, interior = _interior(statement, inner, ranges)
    if not asked:
        return None
    undecided: set[str] = set()  # variables of guards that depend on the place of the tile
    for guard in _guards(statement):
        if not variables(guard) <= inner.keys():
            undecided |= variables(guard) & inner.keys()
    border = _running(statement, undecided)
    interiors: tuple[Version, ...] = ((_all_hold(asked), interior),)
    edges: tuple[Version, ...] = ()
    running = sum(isinstance(item, For) and item.kind is LoopKind.SERIAL for item in statements(border))
    extents = {name: ranges[name][1] + 1 for outer in asked for name in variables(outer)}
    name = min(sorted(extents), key=extents.__getitem__)
    if running > 1 and 1 < extents[name] <= MOST_TILES and _straight_steps(statement) >= LEAST_STEPS:
        edges = _edges(statement, inner, ranges, name)
    if extents[name] == len(edges):
        interiors, edges = edges, ()  # there is no tile between the first and the last
    return Versions(interiors, edges, border)


def _edges(
    statement: Statement, inner: Mapping[str, Interval], ranges: Mapping[str, Interval], name: str
) -> tuple[Version, Version]:
    """Versions for the first and for the last value of a variable of a loop around a statement."""
    place, (first, last) = Var(name), ranges[name]

    def at(value: int, distance: Expr) -> Version:
        asked, interior = _interior(_with_value(statement, name, value), inner, ranges)
        return _all_hold([distance, *asked]), interior

    return at(first, Binary("-", Int(first), place)), at(last, Binary("-", place, Int(last)))


def _straight_steps(statement: Statement) -> int:
    """How often stores of vectors are written out; 0 where a loop runs, and for linear maps, such as those of
    Winograd's algorithm, which are long and gain nothing.
    """
    total = 0
    for around, store in stores(statement):
        kinds = {loop.kind for loop in around}
        if LoopKind.SERIAL in kinds or any(isinstance(item, Lookup) for item in walk(store.value)):
            return 0
        if LoopKind.VECTORIZED in kinds:
            unrolled = [loop.extent for loop in around if loop.kind is LoopKind.UNROLLED]
            total += math.prod(extent.value for extent in unrolled if isinstance(extent, Int))
    return total


def _inner(statement: Statement) -> dict[str, Interval]:
    """Inclusive bounds of the loops in a statement."""
    loops = [item for item in statements(statement) if isinstance(item, For)]
    return {loop.var: (0, loop.extent.value - 1) for loop in loops if isinstance(loop.extent, Int)}


def _interior(
    statement: Statement, inner: Mapping[str, Interval], ranges: Mapping[str, Interval]
) -> tuple[list[Expr], Statement]:
    """What must not be negative so that guards hold for the whole tile, and the statement without them."""
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
    return list(asked), _without(statement, assumed)


def _all_hold(asked: Sequence[Expr]) -> Expr:
    """Whether none of the expressions, of which there are some, is negative."""
    condition = all_of(Binary("<=", ZERO, outer) for outer in asked)
    assert condition is not None
    return condition


def _with_value(statement: Statement, name: str, value: int) -> Statement:
    """The statement with a variable of a loop around it known."""
    known: dict[Expr, Expr] = {Var(name): Int(value)}
    if isinstance(statement, Store):
        indices = tuple(substitute(index, known) for index in statement.indices)
        guard = None if statement.guard is None else substitute(statement.guard, known)
        return replace(statement, indices=indices, value=substitute(statement.value, known), guard=guard)
    return with_inner(statement, lambda item: _with_value(item, name, value))


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
    for _, store in stores(statement):
        for condition in _conditions(store.value):
            yield from _conjuncts(condition)


def _conditions(expr: Expr) -> Iterator[Expr]:
    if isinstance(expr, Select) and not loads(expr.otherwise):
        yield expr.condition
    for part in expr.parts:
        yield from _conditions(part)


def _conjuncts(condition: Expr) -> list[Expr]:
    """Those of the conditions that one joins by `and` that read nothing."""
    return [item for item in conjuncts(condition) if not loads(item)]


def idle_unless(body: Statement) -> tuple[Expr, Statement] | None:
    """A condition without which the body of a reduction loop adds only zeros, and the body where it holds.

    It is what the guards of all products in the body share and no loop in the body changes: that a row of
    the window lies in the image.
    """
    inside = {item.var for item in statements(body) if isinstance(item, For)}
    shared: list[Expr] | None = None
    for _, store in stores(body):
        found = [guard for guard in _factors(store) if not variables(guard) & inside]
        shared = found if shared is None else [guard for guard in shared if guard in found]
    condition = all_of(shared or ())
    return None if condition is None else (condition, _without(body, set(shared or ())))


def _factors(store: Store) -> list[Expr]:
    """The comparisons that a store's product is zero without; none of what is no sum of products."""
    match store:
        case Store(buffer, indices, Binary("+", Load(of, places), Binary("*", left, right)), None) if (
            buffer == of and indices == places
        ):
            selects = [
                part for part in (left, right) if isinstance(part, Select) and _is_zero(part.otherwise)
            ]
            return [guard for part in selects for guard in _conjuncts(part.condition)]
    return []


def _is_zero(expr: Expr) -> bool:
    return isinstance(expr, Const) and expr.value == 0


# --------------------------------------------------------------------------------------------- versions


def _without(statement: Statement, assumed: Set[Expr]) -> Statement:
    """The statement with guards that hold left out."""
    if isinstance(statement, Store):
        return replace(statement, value=_unguarded(statement.value, assumed))
    return with_inner(statement, lambda item: _without(item, assumed))


def _unguarded(expr: Expr, assumed: Set[Expr]) -> Expr:
    match expr:
        case Select(condition, then, otherwise):
            left = all_of(guard for guard in conjuncts(condition) if guard not in assumed)
            value = _unguarded(then, assumed)
            return value if left is None else Select(left, value, _unguarded(otherwise, assumed))
        case Load() | Lookup():
            return expr
        case _:
            return expr.mapped(lambda part: _unguarded(part, assumed))


def _running(statement: Statement, undecided: Set[str]) -> Statement:
    """The statement with loops that run where their variable need not be a known number: where guards ask for
    it and for the place of the tile. Other guards are decided where loops are written out."""
    run = undecided - _known_variables(statement)

    def changed(item: Statement) -> Statement:
        if isinstance(item, For) and item.kind is LoopKind.UNROLLED and item.var in run:
            item = replace(item, kind=LoopKind.SERIAL)
        return with_inner(item, changed)

    return changed(statement)


def _known_variables(statement: Statement) -> frozenset[str]:
    """The variables that name registers, and those that choose factors of a linear map."""
    found: frozenset[str] = frozenset()
    for _, store in stores(statement):
        places = list(store.indices) if store.buffer.scope is Scope.REGISTER else []
        for load in loads(store.value):
            places += load.indices if load.buffer.scope is Scope.REGISTER else ()
        for lookup in walk(store.value):
            places += lookup.parts if isinstance(lookup, Lookup) else ()
        found = found.union(*map(variables, places))
    return found
