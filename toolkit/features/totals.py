"""Figures of a whole nest as integer expressions over knobs: arithmetic of every dtype, and memory."""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Binary, Call, Int, Lookup, Select
from cross.loopnest.nodes import (
    ZERO,
    Allocate,
    Barrier,
    Buffer,
    Expr,
    For,
    Load,
    LoopKind,
    LoopNest,
    Scope,
    Store,
    Var,
    add,
    loads,
    mul,
    nested,
    product,
    statements,
    stores,
)

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
            result[dtype] = add(result[dtype], mul(Int(count), _runs(loops)))
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


def buffer_bytes(buffers: Iterable[Buffer]) -> Expr:
    """Bytes of some buffers, as if all lived at once."""
    return _sum(mul(Int(ITEM_BYTES[buffer.dtype]), product(buffer.shape)) for buffer in buffers)


def scope_bytes(nest: LoopNest, scope: Scope) -> Expr:
    """Bytes of the buffers of a scope that are allocated within the nest, as if all lived at once."""
    allocated = (item.buffer for item in statements(nest.body) if isinstance(item, Allocate))
    return buffer_bytes(buffer for buffer in allocated if buffer.scope is scope)


def register_bytes(nest: LoopNest) -> Expr:
    """Bytes of the register buffers of one thread, as if all lived at once."""
    own: dict[str, Expr] = {}
    for loops, store in stores(nest.body):
        buffer = store.buffer
        if buffer.scope is Scope.REGISTER and buffer.name not in own:
            threads = {Var(loop.var) for loop in loops if loop.kind is LoopKind.THREAD}
            dimensions = zip(buffer.shape, store.indices, strict=True)
            elements = product([extent for extent, index in dimensions if index not in threads])
            own[buffer.name] = mul(Int(ITEM_BYTES[buffer.dtype]), elements)
    return _sum(own.values())


def traffic_bytes(nest: LoopNest, scopes: Collection[Scope]) -> Expr:
    """Bytes that all loads from and stores to buffers of some scopes move, those under guards included."""
    return _sum(
        mul(Int(sum(ITEM_BYTES[buffer.dtype] for buffer in _touched(store, scopes))), _runs(loops))
        for loops, store in stores(nest.body)
    )


def accesses(nest: LoopNest, scopes: Collection[Scope]) -> Expr:
    """Loads from and stores to buffers of some scopes, a vector of elements counting once."""
    return _sum(
        mul(
            Int(len(_touched(store, scopes))),
            _runs([loop for loop in loops if loop.kind is not LoopKind.VECTORIZED]),
        )
        for loops, store in stores(nest.body)
    )


def barriers(nest: LoopNest) -> Expr:
    """Barriers that all blocks together come to."""
    return _sum(_runs(loops) for loops, item in nested(nest.body) if isinstance(item, Barrier))


def _touched(store: Store, scopes: Collection[Scope]) -> list[Buffer]:
    found = [load.buffer for load in loads(store.value)] + [store.buffer]
    return [buffer for buffer in found if buffer.scope in scopes]


def _runs(loops: Sequence[For]) -> Expr:
    """How often the statement inside runs."""
    return product([loop.extent for loop in loops])


def _sum(terms: Iterable[Expr]) -> Expr:
    start: Expr = ZERO
    return functools.reduce(add, terms, start)
