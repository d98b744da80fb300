"""Terms of an index expression as expressions of a loop nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cross.errors import ExpressionError
from cross.expression.language.dtypes import INDEX
from cross.expression.language.tensor import Axis, Read, Reduce
from cross.expression.language.terms import Binary, Int, Lookup, Term
from cross.loopnest import nodes
from cross.loopnest.affine import affine, divide, from_affine

AxisValues = Mapping[Axis, nodes.Expr]
ReadRule = Callable[[Read, tuple[nodes.Expr, ...]], nodes.Expr]
Extents = Mapping[str, nodes.Expr]
NO_EXTENTS: Extents = {}


def translate(term: Term, axes: AxisValues, read: ReadRule, extents: Extents = NO_EXTENTS) -> nodes.Expr:
    """The term with axes replaced by their values and reads resolved by a rule.

    Integer sums are brought into affine normal form, so that equal indices are equal expressions.

    Args:
        term: a term without a reduction.
        axes: the integer expression of every axis that occurs.
        read: what a read of a tensor at translated indices becomes.
        extents: of loop variables; what they decide is not divided when the program runs.
    """

    def inner(part: Term) -> nodes.Expr:
        return translate(part, axes, read, extents)

    match term:
        case Axis():
            return axes[term]
        case Read(_, indices):
            return read(term, tuple(_normal(inner(index)) for index in indices))
        case Lookup(matrix, row, column, dtype):
            return Lookup(matrix, _normal(inner(row)), _normal(inner(column)), dtype)
        case Binary(op, left, right) if left.dtype == INDEX:
            parts = inner(left), inner(right)
            if op in ("//", "%") and isinstance(parts[1], Int) and parts[1].value > 0:
                found = divide(parts[0], parts[1].value, extents)
                if found is not None:
                    return found[0 if op == "//" else 1]
            return nodes.fold(op, *parts)
        case Reduce():
            raise ExpressionError("a reduction has no value of its own; translate its body")
        case _:
            return term.mapped(inner)


def _normal(expr: nodes.Expr) -> nodes.Expr:
    return from_affine(affine(expr)) if isinstance(expr, Binary) else expr
