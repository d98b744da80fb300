"""Expressions of a loop nest as closures over numpy arrays.

An expression is compiled once into `closure(environment, chosen)`. The environment is a list of the values
of the loop variables that run one iteration at a time; loops that run as lanes have their values laid out
beforehand, one entry a lane. `chosen` is None for all lanes, or the numbers of the lanes that a Select
still evaluates. A closure gives a scalar, or an array with one entry for each chosen lane.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.dtypes import INDEX
from cross.expression.language.operations import OPERATIONS, converted
from cross.expression.language.terms import Binary, Call, Cast, Const, Int, Lookup, Select
from cross.loopnest.nodes import Buffer, Expr, Knob, Load, Var, fold, variables
from cross.loopnest.printer import expression_text

Array = NDArray[Any]
Indices = NDArray[np.int64]
Environment = list[int]
Chosen = Indices | None
Closure = Callable[[Environment, Chosen], Any]


class InterpreterError(Exception):
    """The interpreter met an access out of bounds or a buffer that does not fit; the message names it."""


def lane_values(lanes: tuple[tuple[str, int], ...]) -> dict[str, Indices]:
    """The value of each lane variable in every lane, outermost varying slowest; int64[product of extents]."""
    shape = tuple(extent for _, extent in lanes)
    grids = np.indices(shape, dtype=np.int64).reshape(len(lanes), -1) if lanes else ()
    return {name: np.ascontiguousarray(grid) for (name, _), grid in zip(lanes, grids, strict=True)}


@dataclass
class Scope:
    """What names mean at one place of the nest: buffers (flat arrays), environment slots, lanes; and the
    extents of the loops around it that run one iteration at a time."""

    arrays: dict[str, Array]
    slots: dict[str, int] = field(default_factory=dict)
    lanes: dict[str, Indices] = field(default_factory=dict)
    extents: dict[str, int] = field(default_factory=dict)

    def with_array(self, name: str, array: Array) -> Scope:
        """The scope within an allocation."""
        return replace(self, arrays=self.arrays | {name: array})

    def with_lanes(self, lanes: tuple[tuple[str, int], ...]) -> Scope:
        """The scope within loops that run as lanes."""
        return replace(self, lanes=lane_values(lanes))

    def with_loop(self, name: str, extent: int) -> Scope:
        """The scope within a loop that runs one iteration at a time."""
        return replace(self, extents=self.extents | {name: extent})

    def slot(self, name: str) -> int:
        """The place of a loop variable in the environment; shared by all scopes of a nest."""
        return self.slots.setdefault(name, len(self.slots))

    def environment(self) -> Environment:
        """An environment with room for every loop variable."""
        return [0] * len(self.slots)

    def varies(self, expression: Expr) -> bool:
        """Whether the expression may differ between lanes."""
        return not self.lanes.keys().isdisjoint(variables(expression))


def separate(expression: Expr, lanes: Mapping[str, Indices]) -> tuple[Expr, Indices | None] | None:
    """An index as a part that is equal in all lanes plus a part that depends on lanes only.

    Returns:
        (equal part, lane part or None), or None if the index does not come apart so.
    """
    names = variables(expression)
    if names.isdisjoint(lanes):
        return expression, None
    if names <= lanes.keys():
        fixed = _fixed(expression, lanes)
        return None if fixed is None else (Int(0), fixed)
    if not isinstance(expression, Binary):
        return None
    op, left, right = expression.op, separate(expression.left, lanes), separate(expression.right, lanes)
    if left is None or right is None:
        return None
    if op in ("+", "-"):
        return fold(op, left[0], right[0]), _add_lanes(left[1], right[1], 1 if op == "+" else -1)
    if op == "*" and isinstance(expression.right, Int) and left[1] is not None:
        return fold("*", left[0], expression.right), left[1] * expression.right.value
    return None


def _add_lanes(left: Indices | None, right: Indices | None, sign: int) -> Indices | None:
    if right is None:
        return left
    return right * sign if left is None else left + right * sign


def _fixed(expression: Expr, lanes: Mapping[str, Indices]) -> Indices | None:
    """The values of an integer expression of lane variables alone; None if it reads memory."""
    match expression:
        case Int(value):
            return np.full((), value, np.int64)
        case Var(name):
            return lanes[name]
        case Binary(op, left, right) if OPERATIONS[op].integer is not None:
            a, b = _fixed(left, lanes), _fixed(right, lanes)
            return None if a is None or b is None else np.asarray(OPERATIONS[op].numpy(a, b), np.int64)
        case _:
            return None


def affine(expression: Expr) -> tuple[dict[str, int], int] | None:
    """An index as a sum of multiples of loop variables, and a constant; None if it is none."""
    match expression:
        case Int(value):
            return {}, value
        case Var(name):
            return {name: 1}, 0
        case Binary("*", inner, Int(factor)):
            scaled = affine(inner)
            if scaled is None:
                return None
            return {name: times * factor for name, times in scaled[0].items()}, scaled[1] * factor
        case Binary("+" | "-" as op, left, right):
            one, other, sign = affine(left), affine(right), 1 if op == "+" else -1
            if one is None or other is None:
                return None
            names = one[0].keys() | other[0].keys()
            times = {name: one[0].get(name, 0) + sign * other[0].get(name, 0) for name in names}
            return times, one[1] + sign * other[1]
        case _:
            return None


class Accessor:
    """One access to a buffer: checks bounds, then reads or writes all lanes."""

    def __init__(self, buffer: Buffer, indices: tuple[Expr, ...], scope: Scope) -> None:
        if buffer.name not in scope.arrays:
            raise InterpreterError(f"buffer {buffer.name} is not defined where it is accessed")
        if len(indices) != len(buffer.shape):
            raise InterpreterError(
                f"buffer {buffer.name} has {len(buffer.shape)} dimensions, found {len(indices)} indices"
            )
        self.text = f"{buffer.name}[{', '.join(map(expression_text, indices))}]"
        self.flat = scope.arrays[buffer.name]
        self.shape = tuple(extent.value for extent in buffer.shape if isinstance(extent, Int))
        strides = [math.prod(self.shape[position + 1 :]) for position in range(len(self.shape))]
        self.offset: Closure = self._dynamic(indices, scope, strides)
        self.fast: Callable[[Environment], Any] | None = self._separated(indices, scope, strides)

    def get(self, environment: Environment, chosen: Chosen = None) -> Any:
        """The elements that the (chosen) lanes read."""
        if chosen is None and self.fast is not None:
            return self.flat[self.fast(environment)]
        return self.flat[self.offset(environment, chosen)]

    def put(self, environment: Environment, value: Any, chosen: Chosen = None) -> None:
        """Writes the elements of the (chosen) lanes."""
        fast = self.fast if chosen is None else None
        offset = self.offset(environment, chosen) if fast is None else fast(environment)
        self.flat[offset] = value

    def _separated(
        self, indices: tuple[Expr, ...], scope: Scope, strides: list[int]
    ) -> Callable[[Environment], Any] | None:
        """The offset of all lanes when every index comes apart into an equal and a lane part.

        An index whose equal part stays within bounds in every iteration of the loops around is not looked at
        again when these run. Lanes at equal distances are a slice.
        """
        plain = replace(scope, lanes={})
        rows: list[tuple[int, Closure, int, int, int]] = []
        multiples: dict[str, int] = {}
        total: Any = 0
        for position, index in enumerate(indices):
            separated = separate(index, scope.lanes)
            if separated is None:
                return None
            equal, lane = separated
            low, high = (0, 0) if lane is None else (int(lane.min()), int(lane.max()))
            limit, stride = self.shape[position] - 1 - high, strides[position]
            total = total + (0 if lane is None else lane * stride)
            form = _within(equal, scope.extents, -low, limit)
            if form is None:
                rows.append((position, compile_expression(equal, plain), -low, limit, stride))
                continue
            total = total + form[1] * stride
            for name, times in form[0].items():
                multiples[name] = multiples.get(name, 0) + times * stride
        terms = [(scope.slots[name], times) for name, times in multiples.items()]
        step = _step(total)
        start, stop = (0, 0) if step == 0 else (int(total[0]), int(total[-1]) + 1)

        def offset(environment: Environment) -> Any:
            base = 0
            for slot, times in terms:
                base += environment[slot] * times
            for position, index, low, high, stride in rows:
                value = index(environment, None)
                if not low <= value <= high:
                    shift = -low if value < low else self.shape[position] - 1 - high
                    self._refuse(position, value + shift)
                base += value * stride
            return slice(start + base, stop + base, step) if step else total + base

        return offset

    def _dynamic(self, indices: tuple[Expr, ...], scope: Scope, strides: list[int]) -> Closure:
        closures = [compile_expression(index, scope) for index in indices]

        def offset(environment: Environment, chosen: Chosen) -> Any:
            total: Any = 0
            for position, index in enumerate(closures):
                value = index(environment, chosen)
                low, high = (value.min(), value.max()) if isinstance(value, np.ndarray) else (value, value)
                if low < 0 or high >= self.shape[position]:
                    self._refuse(position, low if low < 0 else high)
                total = total + value * strides[position]
            return total

        return offset

    def _refuse(self, position: int, value: int) -> None:
        raise InterpreterError(
            f"access {self.text} is out of bounds: index {value} in dimension {position}, "
            f"expected 0 <= index < {self.shape[position]} (shape {self.shape})"
        )


def _within(
    expression: Expr, extents: Mapping[str, int], low: int, high: int
) -> tuple[dict[str, int], int] | None:
    """The affine form of an index that is between `low` and `high` whatever loop variables are; else None."""
    form = affine(expression)
    if form is None or not form[0].keys() <= extents.keys():
        return None
    ends = [times * (extents[name] - 1) for name, times in form[0].items()]
    least, most = (form[1] + sum(pick(0, end) for end in ends) for pick in (min, max))
    return form if low <= least and most <= high else None


def _step(offsets: Any) -> int:
    """The distance of lanes that ascend by equal ones, else 0."""
    if np.ndim(offsets) == 0 or len(offsets) < 2:
        return 0
    steps = np.diff(offsets)
    return int(steps[0]) if steps[0] > 0 and (steps == steps[0]).all() else 0


def compile_expression(expression: Expr, scope: Scope) -> Closure:
    """The closure that evaluates an expression at a place of the nest.

    Raises:
        InterpreterError: the nest is not bound, or a buffer or variable is not defined here.
    """
    match expression:
        case Int(value):
            return lambda environment, chosen: value
        case Const(value, dtype):
            scalar = np.dtype(dtype).type(value)
            return lambda environment, chosen: scalar
        case Knob(name):
            raise InterpreterError(f"knob {name} has no value; bind the nest before running it")
        case Var(name):
            return _variable(name, scope)
        case Load(buffer, indices):
            return Accessor(buffer, indices, scope).get
        case Lookup(matrix, row, column, dtype):
            table = np.array(matrix, dtype)
            line, place = compile_expression(row, scope), compile_expression(column, scope)
            return lambda environment, chosen: table[line(environment, chosen), place(environment, chosen)]
        case Binary() | Call():
            return _operation(expression, scope)
        case Select():
            return _select(expression, scope)
        case Cast(dtype, inner):
            source = compile_expression(inner, scope)
            return lambda environment, chosen: converted(source(environment, chosen), dtype)[()]
        case _:
            raise InterpreterError(f"no expression of a loop nest: {expression!r}")


def _variable(name: str, scope: Scope) -> Closure:
    if name in scope.lanes:
        lane = scope.lanes[name]
        return lambda environment, chosen: lane if chosen is None else lane[chosen]
    if name not in scope.slots:
        raise InterpreterError(f"loop variable {name} is not defined where it is used")
    slot = scope.slots[name]
    return lambda environment, chosen: environment[slot]


def _operation(expression: Binary | Call, scope: Scope) -> Closure:
    """Index arithmetic that is equal in all lanes runs on Python integers, everything else in numpy."""
    operation = OPERATIONS[expression.op if isinstance(expression, Binary) else expression.function]
    apply = operation.numpy
    if operation.integer is not None and expression.parts[0].dtype == INDEX and not scope.varies(expression):
        apply = operation.integer
    operands = [compile_expression(part, scope) for part in expression.parts]
    if len(operands) == 1:
        (argument,) = operands
        return lambda environment, chosen: apply(argument(environment, chosen))
    if len(operands) == 2:
        left, right = operands
        if isinstance(expression.parts[1], Int):
            constant = expression.parts[1].value
            return lambda environment, chosen: apply(left(environment, chosen), constant)
        return lambda environment, chosen: apply(left(environment, chosen), right(environment, chosen))
    return lambda environment, chosen: apply(*(operand(environment, chosen) for operand in operands))


def _select(expression: Select, scope: Scope) -> Closure:
    condition = compile_expression(expression.condition, scope)
    then = compile_expression(expression.then, scope)
    otherwise = compile_expression(expression.otherwise, scope)
    dtype = np.dtype(expression.dtype)

    def select(environment: Environment, chosen: Chosen) -> Any:
        holds = condition(environment, chosen)
        if not isinstance(holds, np.ndarray) or holds.all():
            taken = then if np.all(holds) else otherwise
            return taken(environment, chosen)
        if not holds.any():
            return otherwise(environment, chosen)
        result = np.empty(len(holds), dtype)
        for branch, lanes in ((then, np.flatnonzero(holds)), (otherwise, np.flatnonzero(~holds))):
            result[lanes] = branch(environment, lanes if chosen is None else chosen[lanes])
        return result

    return select
