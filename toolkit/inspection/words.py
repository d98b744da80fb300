"""A schedule in words: the loops of a nest from the outside in, said as what they make the processor do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cross.expression.language.terms import Int
from cross.loopnest.nodes import (
    Allocate,
    Barrier,
    Block,
    Buffer,
    For,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    Store,
)
from cross.loopnest.printer import expression_text

KINDS: Final = {
    LoopKind.SERIAL: "one after the other",
    LoopKind.PARALLEL: "shared out between the threads of the pool",
    LoopKind.VECTORIZED: "in one vector",
    LoopKind.UNROLLED: "written out",
    LoopKind.BLOCK: "in blocks of threads",
    LoopKind.THREAD: "in the threads of a block",
    LoopKind.VIRTUAL_THREAD: "in pieces of one thread's work",
}
PLACES: Final = {
    Scope.ARGUMENT: "an argument",
    Scope.WORKSPACE: "the workspace",
    Scope.SHARED: "shared memory",
    Scope.LOCAL: "memory of the thread",
    Scope.REGISTER: "registers",
    Scope.TILE: "tile registers",
}


def schedule_words(nest: LoopNest) -> list[str]:
    """Lines, indented by depth: each a run of loops of one kind, a buffer that is kept, or what is computed.

    nest: bound; a parametric one names its knobs where extents would be.
    """
    return list(_lines(nest.body, 0))


def _lines(statement: Statement, depth: int) -> Iterator[str]:
    indent = "  " * depth
    match statement:
        case For(kind=kind):
            loops, body = [statement], statement.body
            while isinstance(body, For) and body.kind is kind:
                loops, body = [*loops, body], body.body
            steps = " x ".join(f"{expression_text(loop.extent)} along {loop.var}" for loop in loops)
            yield f"{indent}{steps}, {KINDS[kind]}:"
            yield from _lines(body, depth + 1)
        case Allocate(buffer, body):
            yield f"{indent}keep {buffer.name}, {_size(buffer)}, in {PLACES[buffer.scope]}"
            yield from _lines(body, depth)
        case Block(statements):
            for item in statements:
                yield from _lines(item, depth)
        case Store(buffer=buffer):
            yield f"{indent}compute {buffer.name}, which is in {PLACES[buffer.scope]}"
        case Barrier():
            yield f"{indent}wait for the other threads of the block"


def _size(buffer: Buffer) -> str:
    shape = "x".join(expression_text(extent) for extent in buffer.shape if extent != Int(1))
    return f"{shape or '1'} of {buffer.dtype}"
