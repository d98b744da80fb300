"""What a statement holds: other statements, buffers that it stores to and loads from, and their dtypes."""

from __future__ import annotations

from collections.abc import Iterator

from cross.loopnest.nodes import Allocate, Block, Buffer, For, Statement, Store, loads, variables


def statements(statement: Statement) -> Iterator[Statement]:
    """The statement and all that it holds, outermost first."""
    yield statement
    match statement:
        case Block(parts):
            for item in parts:
                yield from statements(item)
        case For(_, _, _, body) | Allocate(_, body):
            yield from statements(body)


def stores(statement: Statement) -> Iterator[Store]:
    """The stores in a statement, in order."""
    return (item for item in statements(statement) if isinstance(item, Store))


def stored(statement: Statement) -> list[str]:
    """Names of the buffers that a statement stores to, in order, each once."""
    return list(dict.fromkeys(store.buffer.name for store in stores(statement)))


def buffers(statement: Statement) -> dict[str, Buffer]:
    """The buffers that a statement stores to or loads from, by name."""
    found = {}
    for store in stores(statement):
        for buffer in (store.buffer, *(load.buffer for load in loads(store.value))):
            found[buffer.name] = buffer
    return found


def dtypes(statement: Statement) -> set[str]:
    """The dtypes of these buffers."""
    return {buffer.dtype for buffer in buffers(statement).values()}


def free_variables(statement: Statement) -> set[str]:
    """Variables of loops around the statement that occur in it."""
    used: set[str] = set()
    for store in stores(statement):
        guards = () if store.guard is None else (store.guard,)
        for part in (*store.indices, store.value, *guards):
            used |= variables(part)
    return used - {item.var for item in statements(statement) if isinstance(item, For)}
