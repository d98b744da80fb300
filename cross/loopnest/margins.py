"""Margins of zeros around what is kept in memory: a padded window then reads them, where it asked before.

An operator of a chain that pads reads what the one before it left in a buffer, each element under a guard:

    keep a[5, 14, 64]                              keep a[5, 16, 64]
      ...                                            a[0:5, 0, :] = a[0:5, 15, :] = 0
      a[y % 5, x, c] = ...                           a[y % 5, x + 1, c] = ...
      s += (0 <= x + kx - 1 < 14 ?            ->     s += a[(y + ky) % 5, x + kx, c] * w
            a[(y + ky) % 5, x + kx - 1, c] : 0) * w

Guards that say nothing but that an index lies within the buffer are left out, and the buffer is as much wider
as the index goes outside. Others stay: in the ring above, those that a row lies in the image.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from msgspec.structs import replace

from cross.expression.language.terms import Binary, Const, Int, Select
from cross.loopnest.affine import Affine, Interval, affine, from_affine, interval
from cross.loopnest.nodes import (
    ZERO,
    Allocate,
    Block,
    Buffer,
    Expr,
    For,
    Load,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    Store,
    Var,
    add,
    all_of,
    conjuncts,
    mul,
    statements,
    with_inner,
)

MOST: Final = 2.5  # times its size that a buffer may become: 7x7 elements with a margin of 2 take 2.47
LANES: Final = 16  # of the widest vectors


def with_margins(nest: LoopNest) -> LoopNest:
    """The nest with margins around the buffers that threads keep in memory, where they save guards."""
    if not any(_is_kept(part) for part in statements(nest.body)):
        return nest

    def change(statement: Statement, ranges: Mapping[str, Interval]) -> Statement:
        if isinstance(statement, Allocate) and _is_kept(statement):
            statement = _widened(statement, ranges)
        inside = {**ranges, **_ranges([statement])}
        return with_inner(statement, lambda inner: change(inner, inside))

    return replace(nest, body=Block(tuple(change(item, {}) for item in nest.body.statements)))


def _is_kept(statement: Statement) -> bool:
    return isinstance(statement, Allocate) and statement.buffer.scope is Scope.LOCAL


def _ranges(around: Iterable[Statement]) -> dict[str, Interval]:
    loops = [item for item in around if isinstance(item, For)]
    return {loop.var: (0, loop.extent.value - 1) for loop in loops if isinstance(loop.extent, Int)}


def _widened(allocate: Allocate, around: Mapping[str, Interval]) -> Allocate:
    buffer, body = allocate.buffer, allocate.body
    reads = {read: needless for read in _guarded(body, buffer) if (needless := _needless(read))}
    sizes = [extent.value for extent in buffer.shape if isinstance(extent, Int)]
    if len({read.otherwise for read in reads}) != 1 or len(sizes) < len(buffer.shape):
        return allocate
    ranges = {**around, **_ranges(statements(body))}
    before, behind = [0] * len(sizes), [0] * len(sizes)
    for read, needless in reads.items():
        for axis in needless:
            reach = interval(_place(read, axis), ranges)
            if reach is None:
                return allocate
            before[axis] = max(before[axis], -reach[0])
            behind[axis] = max(behind[axis], reach[1] - (sizes[axis] - 1))
    shape = [sum(parts) for parts in zip(before, sizes, behind, strict=True)]
    if math.prod(shape) > MOST * math.prod(sizes):
        return allocate
    wide = replace(buffer, shape=tuple(map(Int, shape)))
    value = next(iter(reads)).otherwise
    parts = [(axis, 0, count) for axis, count in enumerate(before)]
    parts += [(axis, shape[axis] - count, count) for axis, count in enumerate(behind)]
    filled = (_filled(wide, value, *part) for part in parts if part[2])
    return Allocate(wide, Block((*filled, _moved(body, buffer, wide, before))))


def _filled(buffer: Buffer, value: Expr, axis: int, start: int, count: int) -> Statement:
    """Stores of a value in `count` elements along an axis, from one on, and all along the others."""
    shape = [extent.value for extent in buffer.shape if isinstance(extent, Int)]
    shape[axis] = count
    lanes = max(lanes for lanes in range(1, LANES + 1) if shape[-1] % lanes == 0)
    name = f"{buffer.name}.margin{axis}.{start}"
    places: list[Expr] = [ZERO] * len(shape)
    loops = []
    for number, extent in enumerate([*shape[:-1], shape[-1] // lanes]):
        if extent > 1:
            loops.append((f"{name}.{number}", extent, LoopKind.SERIAL))
            places[number] = Var(loops[-1][0])
    places[axis] = add(places[axis], Int(start))
    loops.append((f"{name}.lanes", lanes, LoopKind.VECTORIZED))
    places[-1] = add(mul(places[-1], Int(lanes)), Var(loops[-1][0]))
    statement: Statement = Store(buffer, tuple(places), value)
    for var, extent, kind in reversed(loops):
        statement = For(var, Int(extent), kind, statement)
    return statement


# --------------------------------------------------------------------------------------------------- guards


def _guarded(statement: Statement, buffer: Buffer) -> Iterator[Select]:
    """The reads of a buffer that are a constant where a guard does not hold."""
    waiting = [item.value for item in statements(statement) if isinstance(item, Store)]
    while waiting:
        expr = waiting.pop()
        match expr:
            case Select(_, Load(of), Const()) if of == buffer:
                yield expr
        waiting += expr.parts


def _place(read: Select, axis: int) -> Expr:
    assert isinstance(read.then, Load)
    return read.then.indices[axis]


def _needless(read: Select) -> dict[int, list[Expr]]:
    """By axis: the guards that only say that an index is not before its start, or not behind its end. No
    padding is along the last axis, that of vectors."""
    assert isinstance(read.then, Load)
    found: dict[int, list[Expr]] = {}
    guards = [(guard, _not_negative(guard)) for guard in conjuncts(read.condition)]
    for axis, extent in enumerate(read.then.buffer.shape[:-1]):
        index = _place(read, axis)
        inside = affine(index), affine(Binary("-", add(extent, Int(-1)), index))
        needless = [guard for guard, form in guards if form in inside]
        if needless:
            found[axis] = needless
    return found


def _not_negative(guard: Expr) -> Affine | None:
    """What is not negative where a comparison holds."""
    match guard:
        case Binary("<=", left, right):
            return affine(Binary("-", right, left))
        case Binary("<", left, right):
            return affine(add(Binary("-", right, left), Int(-1)))
    return None


def _moved(statement: Statement, buffer: Buffer, wide: Buffer, before: Sequence[int]) -> Statement:
    """The statement with the wide buffer in place of the other, and no needless guards."""

    def places(indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        moved = (add(expression(index), Int(count)) for index, count in zip(indices, before, strict=True))
        return tuple(from_affine(affine(index)) for index in moved)

    def expression(expr: Expr) -> Expr:
        match expr:
            case Load(of, indices) if of == buffer:
                return Load(wide, places(indices))
            case Load(of, indices):
                return Load(of, tuple(map(expression, indices)))
            case Select(condition, Load(of) as load, Const() as otherwise) if of == buffer:
                needless = [guard for guards in _needless(expr).values() for guard in guards]
                left = all_of(guard for guard in conjuncts(condition) if guard not in needless)
                read = expression(load)
                return read if left is None else Select(expression(left), read, otherwise)
        return expr.mapped(expression)

    def change(item: Statement) -> Statement:
        if not isinstance(item, Store):
            return with_inner(item, change)
        into = item.buffer == buffer
        indices = places(item.indices) if into else tuple(map(expression, item.indices))
        guard = None if item.guard is None else expression(item.guard)
        return Store(wide if into else item.buffer, indices, expression(item.value), guard)

    return change(statement)
