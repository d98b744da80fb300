"""Sums of a number of steps that no vector divides, on cores that issue in program order.

    for k in 197:                                for k in 49:
      for i, j:                                    for step in 4 (unrolled):
        s[i, j] += a[i, k] * b[k, j]      ->       for i, j: s[i, j] += a[i, 4k + step] * b[4k + step, j]
                                                 for rest in 1 (unrolled):
                                                   for i, j: s[i, j] += a[i, 196 + rest] * b[196 + rest, j]

Tiles divide a sum, so such loops have their steps alone. Four together have the elements of a row in one
vector and are put in order (codegen/scheduling/in_order.py): a step of 20 multiply-adds takes 28 cycles of a
Cortex-A53, alone 50. Terms are added in the same order.
"""

from __future__ import annotations

from msgspec.structs import replace

from cross.expression.language.terms import Binary, Int
from cross.loopnest.affine import affine
from cross.loopnest.nodes import (
    ONE,
    Block,
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
    statements,
    with_inner,
)
from cross.loopnest.windows import with_values
from cross.schedule.in_order_tiles import LANE_STEPS


def with_steps_together(nest: LoopNest) -> LoopNest:
    """The nest with four steps together wherever a loop that runs has them alone."""

    def change(statement: Statement) -> Statement:
        if isinstance(statement, For) and _is_lone(statement):
            return _together(statement)
        return with_inner(statement, change)

    return replace(nest, body=Block(tuple(map(change, nest.body.statements))))


def _is_lone(loop: For) -> bool:
    """Whether a loop adds products to sums in registers, a step at a time, of rows of elements."""
    if loop.kind is not LoopKind.SERIAL or not isinstance(loop.extent, Int):
        return False
    if loop.extent.value % LANE_STEPS == 0 or loop.extent.value < 2 * LANE_STEPS:
        return False
    inside = list(statements(loop.body))
    adds = [item for item in inside if isinstance(item, Store)]
    others = all(isinstance(item, Block | Store) or _is_straight(item) for item in inside)
    return others and bool(adds) and all(_adds_product(item, loop.var) for item in adds)


def _is_straight(statement: Statement) -> bool:
    return isinstance(statement, For) and statement.kind is not LoopKind.SERIAL


def _adds_product(store: Store, var: str) -> bool:
    """Whether a product of floats is added, of which one factor lies side by side for the steps of a loop."""
    match store.value:
        case Binary("+", Load(buffer, indices), Binary("*", dtype="float32") as product):
            same = (buffer, indices, buffer.scope) == (store.buffer, store.indices, Scope.REGISTER)
            places = [affine(load.indices[-1])[0].get(Var(var)) for load in loads(product)]
            return same and store.guard is None and ONE in places
    return False


def _together(loop: For) -> Block:
    assert isinstance(loop.extent, Int)
    whole, rest = divmod(loop.extent.value, LANE_STEPS)
    step, last = Var(f"{loop.var}.step"), Var(f"{loop.var}.rest")
    first = with_values(loop.body, {Var(loop.var): add(mul(Var(loop.var), Int(LANE_STEPS)), step)}, {})
    values: dict[Var, Expr] = {Var(loop.var): add(last, Int(whole * LANE_STEPS))}
    for item in statements(loop.body):
        if isinstance(item, For):
            values[Var(item.var)] = Var(f"{item.var}.rest")
    then = with_values(loop.body, values, {})
    steps = For(step.name, Int(LANE_STEPS), LoopKind.UNROLLED, first)
    return Block(
        (
            For(loop.var, Int(whole), LoopKind.SERIAL, steps),
            For(last.name, Int(rest), LoopKind.UNROLLED, then),
        )
    )
