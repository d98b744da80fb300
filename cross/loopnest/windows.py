"""Sliding windows: what an attached stage keeps from one iteration of its consumer's loop to the next.

See Slide. Lowering builds the loops of the stage once, with variables for where they begin, and puts their
values in: `begun` is what runs before the consumer's loop, `continued` what runs in each of its iterations.
Where a region would end behind the stage, what is computed of it is moved inside, as far as needed, and
some of what was kept is computed once more.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from cross.errors import ScheduleError
from cross.expression.language.terms import Int
from cross.loopnest.affine import affine, from_affine
from cross.loopnest.nodes import (
    ONE,
    ZERO,
    Allocate,
    Buffer,
    Expr,
    For,
    Load,
    Statement,
    Store,
    Var,
    add,
    fold,
    mul,
    statements,
    with_inner,
)
from cross.loopnest.stage import Stage, Stages, Window
from cross.schedule.primitives import Primitive, Slide

MINUS_ONE = Int(-1)


def slide(current: Stages, stage: Stage, primitive: Primitive) -> None:
    """See Slide."""
    assert isinstance(primitive, Slide)
    loop, attachment = stage.loop(primitive.axis), stage.attachment
    axis = loop.axis
    if attachment is None or axis.name in attachment.clamped or loop.step != ONE:
        raise ScheduleError(
            f"Slide of stage {stage.name}: expected it directly behind a ComputeAt that does not clamp "
            f"{primitive.axis}"
        )
    over = current[attachment.consumer].loop(attachment.loop)
    terms, constant = affine(stage.bases[axis])
    moves = terms.pop(over.var, None)
    if moves is None or over.last_start is not None or axis is stage.tensor.axes[-1]:
        raise ScheduleError(
            f"Slide of stage {stage.name}: what it computes along {primitive.axis} must move evenly with "
            f"loop {over.name} of {attachment.consumer}, and not along its last axis"
        )
    name = f"{stage.name}.{axis.name}"
    stage.window = Window(
        axis=axis,
        moves=moves,
        kept=add(stage.extents[axis], mul(moves, MINUS_ONE)),
        first=from_affine((terms, constant)),
        start=Var(f"{name}.start"),
        place=Var(f"{name}.place"),
    )
    loop.extent = moves


def begun(stage: Stage, statement: Statement) -> Statement:
    """What fills the first elements of the buffer, before the first iteration."""
    window = stage.window
    assert window is not None
    values: dict[Var, Expr] = {
        window.start: fold("max", window.first, ZERO),
        window.place: fold("max", mul(window.first, MINUS_ONE), ZERO),
    }
    for item in statements(statement):
        if isinstance(item, For):
            values[Var(item.var)] = Var(f"{item.var}.first")
    own = {item.buffer.name for item in statements(statement) if isinstance(item, Allocate)}
    return with_values(statement, values, {name: f"{name}.first" for name in own})


def continued(stage: Stage, statement: Statement) -> Statement:
    """What computes the elements behind those that are kept."""
    window = stage.window
    assert window is not None
    base = stage.bases[window.axis]
    before = add(base, mul(window.first, MINUS_ONE))
    last = add(Int(window.axis.extent), mul(window.moves, MINUS_ONE))
    values: dict[Var, Expr] = {
        window.start: fold("min", add(base, window.kept), last),
        window.place: from_affine(
            affine(add(before, fold("min", window.kept, add(last, mul(base, MINUS_ONE)))))
        ),
    }
    return with_values(statement, values, {})


def with_values(statement: Statement, values: Mapping[Var, Expr], buffers: Mapping[str, str]) -> Statement:
    """The statement with variables replaced, its own loops' too, and buffers of its own renamed."""

    def renamed(buffer: Buffer) -> Buffer:
        return replace(buffer, name=buffers.get(buffer.name, buffer.name))

    def expression(part: Expr) -> Expr:
        if isinstance(part, Var):
            return values.get(part, part)
        if isinstance(part, Load):
            return Load(renamed(part.buffer), tuple(map(expression, part.indices)))
        return part.mapped(expression)

    def changed(item: Statement) -> Statement:
        match item:
            case Store(buffer, indices, value, guard):
                places = tuple(map(expression, indices))
                condition = None if guard is None else expression(guard)
                return Store(renamed(buffer), places, expression(value), condition)
            case For(var):
                own = values.get(Var(var))
                inner = with_inner(item, changed)
                assert isinstance(inner, For)
                return replace(inner, var=own.name) if isinstance(own, Var) else inner
            case Allocate(buffer):
                inner = with_inner(item, changed)
                assert isinstance(inner, Allocate)
                return replace(inner, buffer=renamed(buffer))
        return with_inner(item, changed)

    return changed(statement)
