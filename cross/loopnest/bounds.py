"""What values an index can take: linear forms, intervals, and facts that a condition guarantees.

The verifier rests on this file alone. It is written apart from affine.py, which lowering and binding use,
so that a mistake in one of them does not hide the same mistake in the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import msgspec

from cross.expression.language.terms import Binary, Call, Int, Select
from cross.loopnest.nodes import Expr, Var

Interval = tuple[float, float]
Ranges = Mapping[str, Interval]
UNKNOWN: Interval = (-math.inf, math.inf)


class Linear(msgspec.Struct, frozen=True, gc=False):
    """constant + sum of coefficient * atom; an atom is a variable or a sub-expression that is not linear."""

    terms: tuple[tuple[Expr, int], ...]
    constant: int

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """self + factor * other."""
        terms = dict(self.terms)
        for atom, coefficient in other.terms:
            terms[atom] = terms.get(atom, 0) + factor * coefficient
        kept = tuple((atom, coefficient) for atom, coefficient in terms.items() if coefficient)
        return Linear(kept, self.constant + factor * other.constant)

    def scaled(self, factor: int) -> Linear:
        """factor * self."""
        return Linear((), 0).plus(self, factor)


Facts = tuple[Linear, ...]
"""Forms that are known to be at least 0."""


def linear(expression: Expr) -> Linear:
    """The linear form of an integer expression; quotient and remainder of one value are put together."""
    return _joined(_linear(expression))


def _joined(form: Linear) -> Linear:
    for atom, coefficient in form.terms:
        if isinstance(atom, Binary) and atom.op == "%" and isinstance(atom.right, Int):
            quotient: Expr = Binary("//", atom.left, atom.right)
            if (quotient, coefficient * atom.right.value) in form.terms:
                rest = tuple(term for term in form.terms if term[0] not in (atom, quotient))
                return _joined(Linear(rest, form.constant).plus(linear(atom.left), coefficient))
    return form


def _linear(expression: Expr) -> Linear:
    match expression:
        case Int(value):
            return Linear((), value)
        case Binary("+", left, right):
            return _linear(left).plus(_linear(right))
        case Binary("-", left, right):
            return _linear(left).plus(_linear(right), -1)
        case Binary("*", left, right):
            a, b = _linear(left), _linear(right)
            if not b.terms:
                return a.scaled(b.constant)
            if not a.terms:
                return b.scaled(a.constant)
    return Linear(((expression, 1),), 0)


def is_index(expression: Expr) -> bool:
    """Whether the expression is made of integers and loop variables alone."""
    if isinstance(expression, Binary):
        return is_index(expression.left) and is_index(expression.right)
    return isinstance(expression, Int | Var)


def assume(condition: Expr, holds: bool) -> Facts:
    """The facts that follow from a condition that holds (or does not); none where that says nothing."""
    match condition:
        case Binary("and", left, right) if holds:
            return assume(left, True) + assume(right, True)
        case Binary("or", left, right) if not holds:
            return assume(left, False) + assume(right, False)
        case Call("not", (inner,)):
            return assume(inner, not holds)
        case Binary("<" | "<=" | "==" as op, left, right) if is_index(left) and is_index(right):
            return _compare(op, linear(right).plus(linear(left), -1), holds)
    return ()


def _compare(op: str, difference: Linear, holds: bool) -> Facts:
    """Facts of a comparison by difference = right - left."""
    negated = difference.scaled(-1)
    one = Linear((), -1)
    if op == "==":
        return (difference, negated) if holds else ()
    if op == "<":
        return (difference.plus(one),) if holds else (negated,)
    return (difference,) if holds else (negated.plus(one),)


def bounds(expression: Expr, ranges: Ranges, facts: Facts = ()) -> Interval:
    """An inclusive interval that holds every value of an integer expression.

    Args:
        expression: a bound index expression; what is read from memory has no bounds.
        ranges: inclusive interval of every loop variable.
        facts: what is known besides the ranges.
    """
    return form_bounds(linear(expression), ranges, facts)


def form_bounds(form: Linear, ranges: Ranges, facts: Facts = ()) -> Interval:
    """An inclusive interval that holds every value of a linear form."""
    low, high = _plain_bounds(form, ranges, facts)
    for fact, factor in _related(form, facts):
        low = max(low, _without(form, fact, factor, ranges, facts))
    negated = form.scaled(-1)
    for fact, factor in _related(negated, facts):
        high = min(high, -_without(negated, fact, factor, ranges, facts))
    return low, high


def _related(form: Linear, facts: Facts) -> Sequence[tuple[Linear, int]]:
    """Facts with the positive factors that cancel an atom they share with the form."""
    coefficients = dict(form.terms)
    found: dict[tuple[Linear, int], None] = {}
    for fact in facts:
        for atom, coefficient in fact.terms:
            factor, remainder = divmod(coefficients.get(atom, 0), coefficient)
            if factor > 0 and not remainder:
                found[fact, factor] = None
    return tuple(found)


def _without(form: Linear, fact: Linear, factor: int, ranges: Ranges, facts: Facts) -> float:
    """A lower bound of the form by one fact: fact >= 0, so form >= form - factor * fact for factor > 0.

    The fact is used up, so that this ends where a fact's own atoms hold the form.
    """
    left = tuple(other for other in facts if other != fact)
    return _plain_bounds(form.plus(fact, -factor), ranges, left)[0]


def _plain_bounds(form: Linear, ranges: Ranges, facts: Facts) -> Interval:
    low = high = float(form.constant)
    for atom, coefficient in form.terms:
        ends = _atom_bounds(atom, ranges, facts)
        products = (ends[0] * coefficient, ends[1] * coefficient)
        low, high = low + min(products), high + max(products)
    return low, high


def _atom_bounds(atom: Expr, ranges: Ranges, facts: Facts) -> Interval:
    match atom:
        case Var(name):
            return ranges.get(name, UNKNOWN)
        case Binary(op, left, right) if op in _COMBINE:
            return _COMBINE[op](bounds(left, ranges, facts), bounds(right, ranges, facts))
        case Select(condition, then, otherwise):
            a = bounds(then, ranges, facts + assume(condition, True))
            b = bounds(otherwise, ranges, facts + assume(condition, False))
            return min(a[0], b[0]), max(a[1], b[1])
        case _:
            return UNKNOWN


def _times(a: Interval, b: Interval) -> Interval:
    if any(map(math.isinf, (*a, *b))):
        return UNKNOWN
    corners = [x * y for x in a for y in b]
    return min(corners), max(corners)


def _floordiv(a: Interval, b: Interval) -> Interval:
    if b[0] != b[1] or b[0] <= 0:
        return UNKNOWN
    return _floor(a[0], b[0]), _floor(a[1], b[0])


def _ceildiv(a: Interval, b: Interval) -> Interval:
    low, high = _floordiv((-a[1], -a[0]), b)
    return -high, -low


def _remainder(a: Interval, b: Interval) -> Interval:
    if b[0] != b[1] or b[0] <= 0:
        return UNKNOWN
    divisor = b[0]
    if not math.isinf(a[0]) and not math.isinf(a[1]) and a[0] // divisor == a[1] // divisor:
        return a[0] % divisor, a[1] % divisor
    return 0.0, divisor - 1


def _floor(value: float, divisor: float) -> float:
    return value if math.isinf(value) else value // divisor


_COMBINE: dict[str, Callable[[Interval, Interval], Interval]] = {
    "*": _times,
    "//": _floordiv,
    "%": _remainder,
    "ceildiv": _ceildiv,
    "min": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "max": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
