"""Random integer expressions over loop variables or knobs, and their values by Python's own operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hypothesis import strategies as st

from cross.expression.language.terms import Binary, Int
from cross.loopnest.nodes import Expr, Knob, Var


def integer_expressions(names: Sequence[Expr], most_leaves: int = 8) -> st.SearchStrategy[Expr]:
    """Sums, products, minima, maxima, and quotients and rests by constants, of `names` and small numbers."""
    leaves = st.sampled_from([*names, Int(0), Int(1), Int(3), Int(7), Int(-2)])
    return st.recursive(leaves, _grown, max_leaves=most_leaves)


def _grown(inner: st.SearchStrategy[Expr]) -> st.SearchStrategy[Expr]:
    both_sides = st.builds(Binary, st.sampled_from(["+", "-", "*", "min", "max"]), inner, inner)
    divisor = st.sampled_from([Int(1), Int(2), Int(3), Int(5)])
    return both_sides | st.builds(Binary, st.sampled_from(["//", "%", "ceildiv"]), inner, divisor)


def value_of(expression: Expr, values: Mapping[str, int]) -> int:
    """The value for given values of the variables and knobs by name."""
    match expression:
        case Int(value):
            return value
        case Var(name) | Knob(name):
            return values[name]
        case Binary(operation, left, right):
            a, b = value_of(left, values), value_of(right, values)
            return {
                "+": lambda: a + b,
                "-": lambda: a - b,
                "*": lambda: a * b,
                "min": lambda: min(a, b),
                "max": lambda: max(a, b),
                "//": lambda: a // b,
                "%": lambda: a % b,
                "ceildiv": lambda: -(-a // b),
                "<": lambda: a < b,
                "<=": lambda: a <= b,
                "==": lambda: a == b,
            }[operation]()
        case _:
            raise AssertionError(expression)
