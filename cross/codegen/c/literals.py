"""Matrices of literals in C: launches that hold some are written out, so that every element is a number.

C may not leave out a product with 0.0, nor an addition to it. So unrolled loops become statements here,
products with 0 go, those with 1 and -1 become additions and subtractions, and the first addition to a sum
stores it. The transforms of Winograd convolution become the additions that a person would write (as
llvm/lookup.py does for CPUs). Elements that a running loop chooses stay where they are: in a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from msgspec.structs import replace

from cross.expression.language.dtypes import FLOATS
from cross.expression.language.terms import Binary, Call, Const, Int, Lookup, Select, walk
from cross.loopnest.bind import fold_logic
from cross.loopnest.nodes import (
    Allocate,
    Barrier,
    Block,
    Expr,
    For,
    Load,
    LoopKind,
    LoopNest,
    Statement,
    Store,
    Var,
    fold,
    loads,
    stores,
)

Known = Mapping[str, int]
Place = tuple[str, tuple[Expr, ...]]


def without_matrices(nest: LoopNest) -> LoopNest:
    """A bound nest whose launches have numbers for the elements of matrices that unrolled loops choose."""
    roots = tuple(
        _block(_written_out(item, {})) if _looks_up(item) else item for item in nest.body.statements
    )
    return replace(nest, body=Block(roots))


def _looks_up(statement: Statement) -> bool:
    return any(isinstance(item, Lookup) for _, store in stores(statement) for item in walk(store.value))


def _block(statements: Sequence[Statement]) -> Statement:
    return statements[0] if len(statements) == 1 else Block(tuple(statements))


# ------------------------------------------------------------------------------------------- statements


def _written_out(statement: Statement, known: Known) -> list[Statement]:
    """What a statement comes to once the variables of unrolled loops are numbers; empty: nothing."""
    match statement:
        case For(var, Int(extent), LoopKind.UNROLLED, body):
            return [item for value in range(extent) for item in _written_out(body, {**known, var: value})]
        case For(_, _, _, body) | Allocate(_, body):
            inner = _written_out(body, known)
            return [replace(statement, body=_block(inner))] if inner else []
        case Block(statements):
            return _begun([found for item in statements for found in _written_out(item, known)])
        case Store():
            found = _store(statement, known)
            return [] if found is None else [found]
        case Barrier():
            return [statement]


def _store(store: Store, known: Known) -> Store | None:
    """A store; None for one that adds 0, or whose guard never holds."""
    guard = None if store.guard is None else _expression(store.guard, known)
    if isinstance(guard, Const):
        if not guard.value:
            return None
        guard = None
    indices = tuple(_expression(index, known) for index in store.indices)
    value = _expression(store.value, known)
    if isinstance(value, Binary) and value.op == "+":
        factor, rest = _factor(value.right)
        if factor == 0:
            return None if value.left == Load(store.buffer, indices) else replace(store, value=value.left)
        if factor in (1, -1):
            value = Binary("+" if factor == 1 else "-", value.left, rest)
    return Store(store.buffer, indices, value, guard)


def _factor(term: Expr) -> tuple[float | None, Expr]:
    """A product as (the literal factor, the other one); None where there is none."""
    if isinstance(term, Binary) and term.op == "*":
        for one, other in ((term.left, term.right), (term.right, term.left)):
            if isinstance(one, Const) and one.dtype in FLOATS:
                return float(one.value), other
    return None, term


def _begun(statements: list[Statement]) -> list[Statement]:
    """Statements without the zeros that the next one to touch them adds something to."""
    zeros: dict[Place, Statement] = {}
    needless: set[int] = set()
    first: dict[int, Expr] = {}
    for statement in _in_order(statements):
        store, place = _of_vector(statement)
        added = None if store is None else _added(store)
        if added is not None and place in zeros:
            needless.add(id(zeros.pop(place)))
            first[id(statement)] = added
        elif store is not None and store.guard is None and _is_zero(store.value):
            zeros[place] = statement
        for name in _touched(statement):
            if store is None or name != place[0]:
                zeros = {item: zero for item, zero in zeros.items() if item[0] != name}
    return [item for statement in statements for item in _changed(statement, needless, first)]


def _in_order(statements: Iterable[Statement]) -> Iterator[Statement]:
    """What runs one after the other, in blocks and allocations too; loops are one statement."""
    for statement in statements:
        match statement:
            case Block(inside):
                yield from _in_order(inside)
            case Allocate(_, body):
                yield from _in_order([body])
            case _:
                yield statement


def _changed(statement: Statement, needless: set[int], first: Mapping[int, Expr]) -> list[Statement]:
    """The statement with the first addition to a sum as a store; empty for a needless one."""
    match statement:
        case Block(inside):
            return [Block(tuple(found for item in inside for found in _changed(item, needless, first)))]
        case Allocate(_, body):
            return [replace(statement, body=_block(_changed(body, needless, first)))]
    if id(statement) in needless:
        return []
    return [_with_value(statement, first[id(statement)]) if id(statement) in first else statement]


def _of_vector(statement: Statement) -> tuple[Store | None, Place]:
    """The store of a statement that is one, or a vector of them, with a name for what it stores to."""
    store = statement.body if isinstance(statement, For) else statement
    if not isinstance(store, Store) or (
        isinstance(statement, For) and statement.kind is not LoopKind.VECTORIZED
    ):
        return None, ("", ())
    lane: dict[Expr, Expr] = {Var(statement.var): Var("")} if isinstance(statement, For) else {}
    return store, (store.buffer.name, tuple(lane.get(index, index) for index in store.indices))


def _with_value(statement: Statement, value: Expr) -> Statement:
    if isinstance(statement, For):
        return replace(statement, body=_with_value(statement.body, value))
    assert isinstance(statement, Store)
    return replace(statement, value=value)


def _added(store: Store) -> Expr | None:
    """What a store adds to its own element; None where it does something else, or under a guard."""
    own = Load(store.buffer, store.indices)
    match store.value:
        case Binary("+" | "-" as op, left, right) if left == own and store.guard is None:
            if any(load.buffer.name == store.buffer.name for load in loads(right)):
                return None
            return right if op == "+" else Call("neg", (right,))
    return None


def _is_zero(value: Expr) -> bool:
    return isinstance(value, Const) and value.dtype in FLOATS and value.value == 0


def _touched(statement: Statement) -> set[str]:
    """The buffers that a statement accesses."""
    found = set()
    for _, store in stores(statement):
        found |= {store.buffer.name, *(load.buffer.name for part in store.parts for load in loads(part))}
    return found


# ------------------------------------------------------------------------------------------ expressions


def _expression(expression: Expr, known: Known) -> Expr:
    """An expression with numbers for known variables and for the elements of matrices that they choose."""

    def inner(part: Expr) -> Expr:
        return _expression(part, known)

    match expression:
        case Var(name):
            return Int(known[name]) if name in known else expression
        case Binary("and" | "or" as op, left, right):
            return fold_logic(op, inner(left), inner(right))
        case Binary(op, left, right):
            return fold(op, inner(left), inner(right))
        case Lookup(matrix, row, column, dtype):
            row, column = inner(row), inner(column)
            if isinstance(row, Int) and isinstance(column, Int):
                return Const(matrix[row.value][column.value], dtype)
            return Lookup(matrix, row, column, dtype)
        case Select(condition, then, otherwise):
            decided = inner(condition)
            if isinstance(decided, Const):
                return inner(then if decided.value else otherwise)
            return Select(decided, inner(then), inner(otherwise))
        case _:
            return expression.mapped(inner)
