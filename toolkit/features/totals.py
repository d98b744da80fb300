"""Figures of a whole nest as integer expressions over knobs: arithmetic of every dtype, and memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Final

from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Binary, Call, Int, Lookup, Select
from cross.loopnest.nodes import (
    ZERO,
    Allocate,
    Barrier,
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
    loads,
    mul,
    product,
)
from toolkit.features.chain import stores

# The columns of stored cost models, in their order: one more here makes every stored model useless.
COUNTED: Final = ("float16", "float32", "float64", "int8", "int32", "int64", "uint8")
# Other dtypes count as the one whose instructions they share most nearly; truth values cost nothing.
_COUNTS_AS: Final = {
    **{dtype: dtype for dtype in COUNTED},
    "bfloat16": "float16",
    "int16": "int32",
    "uint16": "int32",
    "uint32": "int32",
    "uint64": "int64",
}


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


def _count(expr: Expr, counts: Counter[str]) -> None:
    """Adds the operations of a value; conditions and indices count nothing."""
    match expr:
        case Load() | Lookup():
            return
        case Binary(name) | Call(name) if expr.dtype in _COUNTS_AS:
            counts[_COUNTS_AS[expr.dtype]] += OPERATIONS[name].cost
    for part in expr.parts[isinstance(expr, Select) :]:
        _count(part, counts)


def workspace_bytes(nest: LoopNest) -> Expr:
    """Bytes of the buffers that the caller lends to a kernel."""
    return _bytes(nest.workspace)


def local_bytes(nest: LoopNest) -> Expr:
    """Bytes of the buffers on the stack of a thread, as if all lived at once."""
    return scope_bytes(nest, Scope.LOCAL)


def scope_bytes(nest: LoopNest, scope: Scope) -> Expr:
    """Bytes of the buffers of a scope that are allocated within the nest, as if all lived at once."""
    return _bytes(_allocated(nest.body, scope))


def register_bytes(nest: LoopNest) -> Expr:
    """Bytes of the register buffers of one thread, as if all lived at once."""
    total: Expr = ZERO
    seen = set()
    for loops, store in stores(nest.body):
        buffer = store.buffer
        if buffer.scope is not Scope.REGISTER or buffer.name in seen:
            continue
        seen.add(buffer.name)
        threads = {Var(loop.var) for loop in loops if loop.kind is LoopKind.THREAD}
        own = [
            extent for extent, index in zip(buffer.shape, store.indices, strict=True) if index not in threads
        ]
        total = add(total, mul(Int(ITEM_BYTES[buffer.dtype]), product(own)))
    return total


def traffic_bytes(nest: LoopNest, scopes: Collection[Scope]) -> Expr:
    """Bytes that all loads from and stores to buffers of some scopes move, those under guards included."""
    total: Expr = ZERO
    for loops, store in stores(nest.body):
        moved = sum(ITEM_BYTES[buffer.dtype] for buffer in _touched(store, scopes))
        total = add(total, mul(Int(moved), product([loop.extent for loop in loops])))
    return total


def accesses(nest: LoopNest, scopes: Collection[Scope]) -> Expr:
    """Loads from and stores to buffers of some scopes, a vector of elements counting once."""
    total: Expr = ZERO
    for loops, store in stores(nest.body):
        runs = product([loop.extent for loop in loops if loop.kind is not LoopKind.VECTORIZED])
        total = add(total, mul(Int(len(_touched(store, scopes))), runs))
    return total


def _touched(store: Store, scopes: Collection[Scope]) -> list[Buffer]:
    found = [load.buffer for load in loads(store.value)] + [store.buffer]
    return [buffer for buffer in found if buffer.scope in scopes]


def barriers(nest: LoopNest) -> Expr:
    """Barriers that all blocks together come to."""
    return _barriers(nest.body)


def _barriers(statement: Statement) -> Expr:
    match statement:
        case For(_, extent, _, body):
            return mul(extent, _barriers(body))
        case Block(statements):
            total: Expr = ZERO
            for item in statements:
                total = add(total, _barriers(item))
            return total
        case Allocate(_, body):
            return _barriers(body)
        case Barrier():
            return Int(1)
        case Store():
            return ZERO


def _bytes(buffers: tuple[Buffer, ...]) -> Expr:
    total: Expr = ZERO
    for buffer in buffers:
        total = add(total, mul(Int(ITEM_BYTES[buffer.dtype]), product(buffer.shape)))
    return total


def _allocated(statement: Statement, scope: Scope) -> tuple[Buffer, ...]:
    match statement:
        case For(_, _, _, body):
            return _allocated(body, scope)
        case Block(statements):
            return tuple(buffer for item in statements for buffer in _allocated(item, scope))
        case Allocate(buffer, body):
            return ((buffer,) if buffer.scope is scope else ()) + _allocated(body, scope)
        case Store() | Barrier():
            return ()
