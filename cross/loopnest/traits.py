"""What can be read off an expression: its dtype (nodes carry none), parts, variables and loads."""

from __future__ import annotations

from cross.expression.language.terms import ARITHMETIC
from cross.loopnest.nodes import Binary, Call, Cast, Expr, Int, Knob, Literal, Load, Lookup, Select, Var

INDEX = "int64"  # of integer literals, knobs and loop variables


def dtype_of(expression: Expr) -> str:
    """The dtype that the expression evaluates to; arithmetic has the dtype of its left side."""
    match expression:
        case Int() | Knob() | Var():
            return INDEX
        case Literal(_, dtype) | Cast(dtype, _, _) | Lookup(_, _, _, dtype):
            return dtype
        case Load(buffer, _):
            return buffer.dtype
        case Binary(op, left, _):
            return dtype_of(left) if op in ARITHMETIC or op == "ceildiv" else "bool"
        case Call(_, arguments):
            return dtype_of(arguments[0])
        case Select(_, then, _):
            return dtype_of(then)


def parts(expression: Expr) -> tuple[Expr, ...]:
    """The direct sub-expressions, in order of evaluation."""
    match expression:
        case Load(_, indices):
            return indices
        case Lookup(_, row, column, _):
            return (row, column)
        case Binary(_, left, right):
            return (left, right)
        case Call(_, arguments):
            return arguments
        case Select(condition, then, otherwise):
            return (condition, then, otherwise)
        case Cast(_, value, _):
            return (value,)
        case _:
            return ()


def variables(expression: Expr) -> frozenset[str]:
    """Names of the loop variables that occur in an expression, also inside the indices of its loads."""
    if isinstance(expression, Var):
        return frozenset((expression.name,))
    return frozenset().union(*map(variables, parts(expression)))


def loads(expression: Expr) -> tuple[Load, ...]:
    """All loads in an expression, also inside the indices of other loads."""
    inner = tuple(load for part in parts(expression) for load in loads(part))
    return (expression, *inner) if isinstance(expression, Load) else inner
