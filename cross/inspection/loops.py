"""The natural loops of a function. Start at `loops`.

A loop is a back edge (from a block to one that dominates it) and every block that reaches that edge without
passing the header; back edges to one header are one loop.
"""

from __future__ import annotations

import msgspec

from cross.inspection.listing import Function


class Loop(msgspec.Struct, frozen=True):
    """Positions of blocks in the function; `own` are those that are in no inner loop."""

    header: int
    blocks: frozenset[int]
    own: frozenset[int]
    depth: int  # 1: outermost


def loops(function: Function) -> list[Loop]:
    """All loops, outermost first."""
    bodies: dict[int, set[int]] = {}
    predecessors = _predecessors(function)
    dominators = _dominators(function, predecessors)
    for position, block in enumerate(function.blocks):
        for successor in block.successors:
            if successor in dominators[position]:
                bodies.setdefault(successor, set()).update(_body(successor, position, predecessors))
    found = []
    for header, body in bodies.items():
        inner = [other for key, other in bodies.items() if key != header and other < body]
        depth = 1 + sum(1 for key, other in bodies.items() if key != header and body < other)
        own = body.difference(*inner)
        found.append(Loop(header, frozenset(body), frozenset(own), depth))
    return sorted(found, key=lambda loop: (loop.depth, loop.header))


def _predecessors(function: Function) -> list[list[int]]:
    result: list[list[int]] = [[] for _ in function.blocks]
    for position, block in enumerate(function.blocks):
        for successor in block.successors:
            result[successor].append(position)
    return result


def _dominators(function: Function, predecessors: list[list[int]]) -> list[set[int]]:
    """For every block the blocks that all ways to it pass."""
    everything = set(range(len(function.blocks)))
    dominators = [{0}] + [set(everything) for _ in function.blocks[1:]]
    changed = True
    while changed:
        changed = False
        for position in range(1, len(function.blocks)):
            incoming = [dominators[source] for source in predecessors[position]]
            new = (set.intersection(*incoming) if incoming else set()) | {position}
            if new != dominators[position]:
                dominators[position], changed = new, True
    return dominators


def _body(header: int, latch: int, predecessors: list[list[int]]) -> set[int]:
    body, waiting = {header}, [latch]
    while waiting:
        position = waiting.pop()
        if position not in body:
            body.add(position)
            waiting += predecessors[position]
    return body
