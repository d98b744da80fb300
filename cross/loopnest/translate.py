"""Terms of an index expression as expressions of a loop nest."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from cross.errors import ExpressionError
from cross.expression.language.dtypes import INDEX, SMALLEST_NORMAL
from cross.expression.language.tensor import Axis, Read, Reduce
from cross.expression.language.terms import Binary, Call, Const, Int, Lookup, Term
from cross.loopnest import nodes
from cross.loopnest.affine import affine, divide, from_affine

AxisValues = Mapping[Axis, nodes.Expr]
ReadRule = Callable[[Read, tuple[nodes.Expr, ...]], nodes.Expr]
Extents = Mapping[str, nodes.Expr]
NO_EXTENTS: Extents = {}
SMOOTH = frozenset({"erf", "sigmoid", "tanh"})
"""Functions whose results differ by no more than their own errors where what they take was rounded once more.
Not exp: a relative error of x becomes one of e^x that is x times as large."""


def translate(term: Term, axes: AxisValues, read: ReadRule, extents: Extents = NO_EXTENTS) -> nodes.Expr:
    """The term with axes replaced by their values and reads resolved by a rule.

    Integer sums are brought into affine normal form, so that equal indices are equal expressions. Where a
    smooth function takes a quotient by a constant, as in GELU, it is given the product with the reciprocal: a
    vector's division takes a Zen 4 six cycles, Intel's cores 16. Elsewhere the quotient stays, for 49 times
    the nearest float32 to 1/49 is less than 1, and its floor is 0.

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
        case Call(function, arguments) if function in SMOOTH:
            return Call(function, tuple(_multiplied(inner(part)) for part in arguments))
        case Reduce():
            raise ExpressionError("a reduction has no value of its own; translate its body")
        case _:
            return term.mapped(inner)


def _multiplied(expr: nodes.Expr) -> nodes.Expr:
    """A quotient of float32 by a constant as a product, where the reciprocal is a normal number."""
    match expr:
        case Binary("/", dividend, Const(divisor, "float32")) if divisor:
            if SMALLEST_NORMAL <= abs(1.0 / divisor) <= 1.0 / SMALLEST_NORMAL:
                return Binary("*", dividend, Const(1.0 / divisor, "float32"))
    return expr


def _normal(expr: nodes.Expr) -> nodes.Expr:
    return from_affine(affine(expr)) if isinstance(expr, Binary) else expr
