"""Figures of a whole nest as integer expressions over knobs: arithmetic of every dtype, and memory."""

from __future__ import annotations

from collections import Counter
from typing import Final

from cross.expression.terms import ARITHMETIC, DTYPES, ITEM_BYTES
from cross.loopnest.nodes import (
    ZERO,
    Allocate,
    Barrier,
    Binary,
    Block,
    Buffer,
    Call,
    Cast,
    Expr,
    For,
    Int,
    Literal,
    Load,
    Lookup,
    LoopNest,
    Scope,
    Select,
    Statement,
    Store,
    add,
    mul,
    product,
)
from toolkit.features.chain import stores

COUNTED: Final = tuple(dtype for dtype in DTYPES if dtype != "bool")
INDEX: Final = "int64"  # dtype of a loop variable that is used as a value


def arithmetic(nest: LoopNest) -> dict[str, Expr]:
    """Operations of a whole run for each dtype of COUNTED: what is computed twice counts twice.

    Every + - * / // % min max and every elementwise function counts one; index arithmetic is not counted.
    """
    result: dict[str, Expr] = dict.fromkeys(COUNTED, ZERO)
    for loops, store in stores(nest.body):
        for dtype, count in operations(store).items():
            runs = product([loop.extent for loop in loops])
            result[dtype] = add(result[dtype], mul(Int(count), runs))
    return result


def operations(store: Store) -> Counter[str]:
    """Operations of one run of a statement by dtype."""
    counts: Counter[str] = Counter()
    _count(store.value, counts)
    return counts


def _count(expr: Expr, counts: Counter[str]) -> str:
    """Adds the operations of a value; returns its dtype."""
    match expr:
        case Load(buffer, _):
            return buffer.dtype
        case Literal(_, dtype) | Lookup(_, _, _, dtype):
            return dtype
        case Cast(dtype, value, _):
            _count(value, counts)
            return dtype
        case Select(_, then, otherwise):
            _count(otherwise, counts)
            return _count(then, counts)
        case Call(_, arguments):
            dtype, *_ = [_count(argument, counts) for argument in arguments]
        case Binary(_, left, right):
            dtype = _count(left, counts)
            _count(right, counts)
            if expr.op not in ARITHMETIC:
                return "bool"
        case _:
            return INDEX
    if dtype != "bool":
        counts[dtype] += 1
    return dtype


def workspace_bytes(nest: LoopNest) -> Expr:
    """Bytes of the buffers that the caller lends to a kernel."""
    return _bytes(nest.workspace)


def local_bytes(nest: LoopNest) -> Expr:
    """Bytes of the buffers on the stack of a thread, as if all lived at once."""
    return _bytes(_locals(nest.body))


def _bytes(buffers: tuple[Buffer, ...]) -> Expr:
    total: Expr = ZERO
    for buffer in buffers:
        total = add(total, mul(Int(ITEM_BYTES[buffer.dtype]), product(buffer.shape)))
    return total


def _locals(statement: Statement) -> tuple[Buffer, ...]:
    match statement:
        case For(_, _, _, body):
            return _locals(body)
        case Block(statements):
            return tuple(buffer for item in statements for buffer in _locals(item))
        case Allocate(buffer, body):
            return ((buffer,) if buffer.scope is Scope.LOCAL else ()) + _locals(body)
        case Store() | Barrier():
            return ()
