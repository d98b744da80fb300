"""Elementwise functions and reductions: what a body is written with beside Python's operators.

sum(exp(data[i, k]) * weight[k, j], k)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cross.errors import ExpressionError
from cross.expression.language.terms import (
    FLOATS,
    Axis,
    AxisKind,
    Binary,
    Call,
    Const,
    Operand,
    Reduce,
    Term,
    binary,
    constant,
)


def _function(name: str, floats_only: bool = True) -> Callable[[Term], Term]:
    def build(value: Term) -> Term:
        if floats_only and value.dtype not in FLOATS:
            raise ExpressionError(f"{name}() works on floats, found {value.dtype}; use cast()")
        return Call(name, (value,))

    build.__name__ = name
    build.__doc__ = f"Elementwise {name}."
    return build


exp = _function("exp")
log = _function("log")
sqrt = _function("sqrt")
tanh = _function("tanh")
sigmoid = _function("sigmoid")
erf = _function("erf")
floor = _function("floor")
ceil = _function("ceil")
absolute = _function("abs", floats_only=False)


def power(base: Term, exponent: Operand) -> Term:
    """base ** exponent on floats."""
    return Call("pow", (base, constant(exponent, base.dtype)))


def minimum(left: Operand, right: Operand) -> Term:
    """The smaller of two terms, elementwise."""
    return binary("min", left, right)


def maximum(left: Operand, right: Operand) -> Term:
    """The larger of two terms, elementwise."""
    return binary("max", left, right)


def equal(left: Operand, right: Operand) -> Term:
    """left == right as a bool term."""
    return binary("==", left, right)


def logical_and(*conditions: Term) -> Term:
    """All conditions hold."""
    return _chain("and", conditions)


def logical_or(*conditions: Term) -> Term:
    """At least one condition holds."""
    return _chain("or", conditions)


def logical_not(condition: Term) -> Term:
    """The condition does not hold."""
    return Call("not", (condition,))


def _chain(op: str, conditions: Sequence[Term]) -> Term:
    if not conditions:
        return Const(op == "and", "bool")
    result = conditions[0]
    for condition in conditions[1:]:
        result = Binary(op, result, condition)
    return result


def reduce_axis(extent: int, name: str = "k") -> Axis:
    """An axis to reduce over, 0 <= name < extent.

    Raises:
        ExpressionError: extent is not positive.
    """
    if extent < 1:
        raise ExpressionError(f"reduce axis {name}: expected an extent of at least 1, found {extent}")
    return Axis(name, extent, AxisKind.REDUCE)


def _reduction(combiner: str) -> Callable[[Term, Axis | Sequence[Axis]], Term]:
    def build(body: Term, axis: Axis | Sequence[Axis]) -> Term:
        axes = (axis,) if isinstance(axis, Axis) else tuple(axis)
        for item in axes:
            if item.kind is not AxisKind.REDUCE:
                raise ExpressionError(
                    f"{combiner}() reduces over reduce_axis(), found space axis {item.name}"
                )
        return Reduce(combiner, body, axes)

    build.__name__ = combiner
    build.__doc__ = f"{combiner} of the body over one or several reduce axes."
    return build


sum = _reduction("sum")
max = _reduction("max")
min = _reduction("min")
