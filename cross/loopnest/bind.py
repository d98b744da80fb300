"""Binding: a parametric nest and integers for its knobs give one concrete program."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec
from msgspec.structs import replace

from cross.errors import ScheduleError
from cross.expression.language.terms import Binary, Const, Int, Select
from cross.loopnest.affine import Interval, interval
from cross.loopnest.nodes import (
    ZERO,
    Allocate,
    Barrier,
    Block,
    Buffer,
    Expr,
    For,
    Knob,
    Load,
    LoopKind,
    LoopNest,
    Statement,
    Store,
    Var,
    fold,
)
from cross.schedule.packing import Maps, PackedLoop, Packing


class PackedDimension(msgspec.Struct, frozen=True):
    """A loop of a packed layout before binding; see cross.schedule.packing.PackedLoop."""

    source: int
    extent: Expr
    step: Expr
    last_start: Expr | None


class ParametricPacking(msgspec.Struct, frozen=True):
    """A packed layout before binding; see cross.schedule.packing.Packing."""

    shape: tuple[int, ...]
    dimensions: tuple[PackedDimension, ...]
    maps: Maps = ()


class ParametricNest(msgspec.Struct, frozen=True):
    """A nest whose extents and strides are expressions over knobs: lowered once, bound or evaluated often.

    `packings` gives, for the constant arguments that a schedule packs, their layout by buffer name.
    """

    nest: LoopNest
    packings: Mapping[str, ParametricPacking]


def bind(parametric: ParametricNest, knobs: Mapping[str, int], *, simplify: bool = True) -> LoopNest:
    """The concrete program of one configuration.

    Extents and indices become integers, loops of one iteration vanish, and guards that interval analysis
    decides are dropped.

    Args:
        parametric: the lowered sketch.
        knobs: the value of every knob that occurs in it.
        simplify: False keeps loops of one iteration and decided guards, so that every nest of a sketch has
            the same loops.

    Raises:
        ScheduleError: a knob has no value, or a loop would have no iteration.
    """
    return _Binder(parametric, dict(knobs), simplify).nest()


RUNNING_LOOP = 1 << 30


class _Binder:
    """State of one binding: ranges of the loop variables in scope, and buffers already bound."""

    def __init__(self, parametric: ParametricNest, knobs: dict[str, int], simplifies: bool) -> None:
        self.parametric = parametric
        self.knobs = knobs
        self.simplifies = simplifies
        self.ranges: dict[str, Interval] = {}
        self.buffers: dict[str, Buffer] = {}

    def nest(self) -> LoopNest:
        nest = self.parametric.nest
        return LoopNest(
            nest.name,
            tuple(self.buffer(item) for item in nest.arguments),
            tuple(self.buffer(item) for item in nest.workspace),
            Block(tuple(self.statement(item) for item in nest.body.statements)),
            nest.flops,
        )

    def buffer(self, buffer: Buffer) -> Buffer:
        if buffer.name not in self.buffers:
            shape = tuple(self.expr(extent) for extent in buffer.shape)
            self.buffers[buffer.name] = replace(buffer, shape=shape, packing=self.packing(buffer.name))
        return self.buffers[buffer.name]

    def packing(self, name: str) -> Packing | None:
        if name not in self.parametric.packings:
            return None
        packing = self.parametric.packings[name]
        loops = tuple(
            PackedLoop(
                item.source,
                self.integer(item.extent),
                self.integer(item.step),
                -1 if item.last_start is None else self.integer(item.last_start),
            )
            for item in packing.dimensions
        )
        return Packing(packing.shape, loops, packing.maps)

    def integer(self, expr: Expr) -> int:
        value = self.expr(expr)
        if not isinstance(value, Int):
            raise ScheduleError(
                f"{self.parametric.nest.name}: expected an integer after binding, found {value}"
            )
        return value.value

    def statement(self, statement: Statement) -> Statement:
        match statement:
            case For():
                return self.loop(statement)
            case Block(statements):
                return Block(tuple(self.statement(item) for item in statements))
            case Store(buffer, indices, value, guard):
                places = tuple(self.expr(index) for index in indices)
                decided = None if guard is None else self.expr(guard)
                if decided == Const(True, "bool"):
                    decided = None
                return Store(self.buffer(buffer), places, self.expr(value), decided)
            case Allocate(buffer, body):
                return Allocate(self.buffer(buffer), self.statement(body))
            case Barrier():
                return statement

    def loop(self, loop: For) -> Statement:
        extent = self.integer(loop.extent)
        if extent < 1:
            raise ScheduleError(f"{self.parametric.nest.name}: loop {loop.var} has extent {extent}")
        self.ranges[loop.var] = (0, extent - 1)
        body = self.statement(loop.body)
        if extent == 1 and self.simplifies:
            return body
        kind = loop.kind
        if loop.unroll_limit is not None:
            limit = self.integer(loop.unroll_limit)
            kind = LoopKind.UNROLLED if count_statements(body) * extent <= limit else LoopKind.SERIAL
        return For(loop.var, Int(extent), kind, body)

    def expr(self, expr: Expr) -> Expr:
        match expr:
            case Knob(name):
                if name not in self.knobs:
                    raise ScheduleError(f"{self.parametric.nest.name}: no value for knob {name}")
                return Int(self.knobs[name])
            case Var(name):
                return ZERO if self.simplifies and self.ranges.get(name) == (0, 0) else expr
            case Binary(op, left, right):
                return self.simplify(op, self.expr(left), self.expr(right))
            case Load(buffer, indices):
                return Load(self.buffer(buffer), tuple(self.expr(index) for index in indices))
            case Select(condition, then, otherwise):
                decided = self.expr(condition)
                if isinstance(decided, Const):
                    return self.expr(then if decided.value else otherwise)
                return Select(decided, self.expr(then), self.expr(otherwise))
            case _:
                return expr.mapped(self.expr)

    def simplify(self, op: str, left: Expr, right: Expr) -> Expr:
        """Folds literals, and minima and comparisons that the ranges of the loop variables decide."""
        if op in ("and", "or"):
            return fold_logic(op, left, right)
        result = fold(op, left, right)
        if (
            not self.simplifies
            or not isinstance(result, Binary)
            or op not in ("min", "max", "<", "<=", "==", "//", "%")
        ):
            return result
        a, b = interval(left, self.ranges), interval(right, self.ranges)
        if a is None or b is None:
            return result
        return _decide(result, a, b)


def fold_logic(op: str, left: Expr, right: Expr) -> Expr:
    """left and right, or left or right, with literals folded."""
    for one, other in ((left, right), (right, left)):
        if isinstance(one, Const):
            return other if bool(one.value) == (op == "and") else one
    return Binary(op, left, right)


def _decide(expr: Binary, a: Interval, b: Interval) -> Expr:
    match expr.op:
        case "min" | "max":
            if a[1] <= b[0]:
                return expr.left if expr.op == "min" else expr.right
            if b[1] <= a[0]:
                return expr.right if expr.op == "min" else expr.left
        case "<":
            if a[1] < b[0] or a[0] >= b[1]:
                return Const(a[1] < b[0], "bool")
        case "<=":
            if a[1] <= b[0] or a[0] > b[1]:
                return Const(a[1] <= b[0], "bool")
        case "==":
            if a[1] < b[0] or b[1] < a[0]:
                return Const(False, "bool")
        case "//":
            if b[0] == b[1] and 0 <= a[0] and a[1] < b[0]:
                return ZERO
        case "%":
            if b[0] == b[1] and 0 <= a[0] and a[1] < b[0]:
                return expr.left
    return expr


def count_statements(statement: Statement) -> int:
    """Innermost statements that a bound statement writes out: unrolled loops count by their extents.

    A loop that runs counts as very many, so that nothing around it is unrolled automatically.
    """
    match statement:
        case Store():
            return 1
        case Barrier():
            return RUNNING_LOOP
        case Block(statements):
            return sum(count_statements(item) for item in statements)
        case Allocate(_, body):
            return count_statements(body)
        case For(_, Int(1), _, body) | For(_, _, LoopKind.VECTORIZED, body):
            return count_statements(body)
        case For(_, Int(extent), LoopKind.UNROLLED, body):
            return extent * count_statements(body)
        case For():
            return RUNNING_LOOP
