"""Terms of an index expression as expressions of a loop nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cross.errors import ExpressionError
from cross.expression.terms import Axis, Binary, Call, Cast, Const, Lookup, Read, Reduce, Select, Term
from cross.loopnest import nodes
from cross.loopnest.affine import affine, from_affine

AxisValues = Mapping[Axis, nodes.Expr]
ReadRule = Callable[[Read, tuple[nodes.Expr, ...]], nodes.Expr]


def translate(term: Term, axes: AxisValues, read: ReadRule) -> nodes.Expr:
    """The term with axes replaced by their values and reads resolved by a rule.

    Integer sums are brought into affine normal form, so that equal indices are equal expressions.

    Args:
        term: a term without a reduction.
        axes: the integer expression of every axis that occurs.
        read: what a read of a tensor at translated indices becomes.
    """
    match term:
        case Const(value, dtype):
            return nodes.Int(int(value)) if dtype == "int64" else nodes.Literal(value, dtype)
        case Axis():
            return axes[term]
        case Read(_, indices):
            return read(term, tuple(_normal(translate(index, axes, read)) for index in indices))
        case Lookup(matrix, row, column, dtype):
            place = (_normal(translate(index, axes, read)) for index in (row, column))
            return nodes.Lookup(matrix, *place, dtype)
        case Binary(op, left, right):
            parts = translate(left, axes, read), translate(right, axes, read)
            return nodes.fold(op, *parts) if left.dtype == "int64" else nodes.Binary(op, *parts)
        case Call(function, arguments):
            return nodes.Call(function, tuple(translate(item, axes, read) for item in arguments))
        case Select(condition, then, otherwise):
            return nodes.Select(
                translate(condition, axes, read),
                translate(then, axes, read),
                translate(otherwise, axes, read),
            )
        case Cast(dtype, value):
            return nodes.Cast(dtype, translate(value, axes, read), value.dtype)
        case Reduce():
            raise ExpressionError("a reduction has no value of its own; translate its body")
        case _:
            raise ExpressionError(f"unknown term {type(term).__name__}")


def _normal(expr: nodes.Expr) -> nodes.Expr:
    return from_affine(affine(expr)) if isinstance(expr, nodes.Binary) else expr
