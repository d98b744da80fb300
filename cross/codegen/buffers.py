"""Sizes of a bound nest's buffers and their places in the workspace: the same for every code generator."""

from __future__ import annotations

import math

from cross.errors import CompileError
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Int
from cross.loopnest.nodes import Buffer, Expr, LoopNest

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
        total += -(-size_bytes(buffer) // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
    offsets[""] = total
    return offsets
