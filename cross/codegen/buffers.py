"""A bound nest's buffers, for every code generator: sizes, places in the workspace, which are rounded."""

from __future__ import annotations

import math

from cross.errors import CompileError
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Call, Int, walk
from cross.loopnest.nodes import Allocate, Buffer, Expr, LoopNest, Scope, loads, statements, stores

BUFFER_ALIGNMENT = 64  # bytes: a cache line, and the widest vector of x86-64


def bound_extent(expr: Expr, where: str) -> int:
    """The number that an extent is. Raises CompileError when it is none."""
    if not isinstance(expr, Int):
        raise CompileError(f"{where}: expected a bound extent, found {expr}")
    return expr.value


def size_bytes(buffer: Buffer) -> int:
    """Bytes of a bound buffer."""
    return ITEM_BYTES[buffer.dtype] * math.prod(bound_extent(extent, buffer.name) for extent in buffer.shape)


def workspace_offsets(nest: LoopNest) -> dict[str, int]:
    """Where each intermediate buffer starts in the workspace, in bytes; the key "" holds the total."""
    offsets, total = {}, 0
    for buffer in nest.workspace:
        offsets[buffer.name] = total
        total += _room(buffer)
    offsets[""] = total
    return offsets


def local_bytes(nest: LoopNest) -> int:
    """What buffers take on the stack of a thread in the statement where they take most."""
    return max(
        (
            sum(
                _room(part.buffer)
                for part in statements(statement)
                if isinstance(part, Allocate) and part.buffer.scope in (Scope.LOCAL, Scope.TILE)
            )
            for statement in nest.body.statements
        ),
        default=0,
    )


def _room(buffer: Buffer) -> int:
    """Bytes of a bound buffer up to where the next may begin."""
    return -(-size_bytes(buffer) // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT


def rounded_buffers(nest: LoopNest) -> frozenset[str]:
    """Names of the buffers whose elements are rounded to integers later, as they are or in other elements.

    A fused multiply-add in such an element could choose another integer than the reference
    (reference/evaluator.py). Sums are left out: their order decides more than the fused steps do.
    """
    written = [(store.buffer.name, store.value) for _, store in stores(nest.body)]
    if not any(rounds(term) for _, value in written for term in walk(value)):
        return frozenset()
    sums = {name for name, value in written if any(load.buffer.name == name for load in loads(value))}
    found: set[str] = set()
    for name, value in reversed(written):  # what reads a buffer comes behind what writes it
        inside = [value] if name in found else [term for term in walk(value) if rounds(term)]
        found |= {load.buffer.name for term in inside for load in loads(term)} - sums
    return frozenset(found)


def rounds(term: Expr) -> bool:
    """Whether a term rounds its operand to an integer."""
    return isinstance(term, Call) and term.function == "round"
