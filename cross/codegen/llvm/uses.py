"""What a statement holds: other statements, buffers that it stores to and loads from, and their dtypes."""

from __future__ import annotations

from cross.loopnest.nodes import (
    Buffer,
    For,
    Statement,
    loads,
    statements,
    stores,
    variables,
)


def stored(statement: Statement) -> list[str]:
    """Names of the buffers that a statement stores to, in order, each once."""
    return list(dict.fromkeys(store.buffer.name for _, store in stores(statement)))


def buffers(statement: Statement) -> dict[str, Buffer]:
    """The buffers that a statement stores to or loads from, by name."""
    found = {}
    for _, store in stores(statement):
        for buffer in (store.buffer, *(load.buffer for load in loads(store.value))):
            found[buffer.name] = buffer
    return found


def dtypes(statement: Statement) -> set[str]:
    """The dtypes of these buffers."""
    return {buffer.dtype for buffer in buffers(statement).values()}


def free_variables(statement: Statement) -> set[str]:
    """Variables of loops around the statement that occur in it."""
    used = {name for _, store in stores(statement) for part in store.parts for name in variables(part)}
    return used - {item.var for item in statements(statement) if isinstance(item, For)}
