"""Which loops of a nest the interpreter may run as numpy lanes: all iterations of a store at once.

Looked at is a chain of loops around a single store. From the innermost loop outwards a loop becomes lanes

- as space, when the store's index depends on it and no two iterations write the same element, and the
  value reads the stored buffer at no other element than the one it writes, or
- as reduction, when the store's index does not depend on it and the store accumulates, x = x + value (or
  min, max), and the value does not read x.

Either way the iterations may run in any order. The first loop that is neither ends the chain: it and
everything outside it run one iteration at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cross.expression.language.operations import COMBINERS
from cross.expression.language.terms import Binary, Int
from cross.loopnest.nodes import Block, Expr, For, Load, Statement, Store, loads, variables
from tests.interpreter.evaluate import lane_values, separate

MAX_LANES = 1 << 15  # bounds the memory of a step and keeps its arrays in cache

Lanes = tuple[tuple[str, int], ...]
"""Loop variables with their extents, outermost first."""


@dataclass(frozen=True, slots=True)
class ChosenLanes:
    """A store and the loops that run as its lanes; `value` is what is combined in a reduction."""

    store: Store
    space: Lanes
    reduction: Lanes
    combiner: str
    value: Expr


def choose_lanes(statement: Statement) -> ChosenLanes | None:
    """The lanes of a loop chain if all of its loops may run as lanes, else None.

    A chain whose outer loops may not is taken apart by the caller one loop at a time.
    """
    chain: list[tuple[str, int]] = []
    while isinstance(statement, For):
        if not isinstance(statement.extent, Int):
            return None
        chain.append((statement.var, statement.extent.value))
        statement = statement.body
        if isinstance(statement, Block) and len(statement.statements) == 1:
            statement = statement.statements[0]
    if not isinstance(statement, Store):
        return None
    if not chain:
        return ChosenLanes(statement, (), (), "", statement.value)
    if np.prod([extent for _, extent in chain], dtype=np.float64) > MAX_LANES:
        return None
    target = Load(statement.buffer, statement.indices)
    written = frozenset().union(*map(variables, statement.indices))
    space = tuple(lane for lane in chain if lane[0] in written)
    reduction = tuple(lane for lane in chain if lane[0] not in written)
    combiner, value = _accumulation(statement.value, target) if reduction else ("", statement.value)
    if (reduction and (not combiner or statement.guard is not None)) or any(
        load.buffer.name == target.buffer.name and load != target for load in loads(value)
    ):
        return None
    if not _distinct(statement, space):
        return None
    return ChosenLanes(statement, space, reduction, combiner, value)


def _accumulation(value: Expr, target: Load) -> tuple[str, Expr]:
    """The combiner and what is combined if the value accumulates into target, else "" and the value."""
    if isinstance(value, Binary) and value.op in COMBINERS.values():
        for accumulated, rest in ((value.left, value.right), (value.right, value.left)):
            if accumulated == target and target not in loads(rest):
                return value.op, rest
    return "", value


def _distinct(store: Store, space: Lanes) -> bool:
    """Whether each lane writes an element of its own, whatever the loops outside do."""
    values = lane_values(space)
    count = len(next(iter(values.values()))) if values else 1
    columns = []
    for index in store.indices:
        separated = separate(index, values)
        if separated is None:
            return False
        if separated[1] is not None:
            columns.append(separated[1])
    if count == 1:
        return True
    if not columns:
        return False
    return len(np.unique(np.stack(columns, axis=1), axis=0)) == count
