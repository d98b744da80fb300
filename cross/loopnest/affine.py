"""Integer expressions as sums: affine decomposition and interval bounds."""

from __future__ import annotations

import math
from collections.abc import Mapping

from cross.expression.language.terms import Binary, Int
from cross.loopnest.nodes import ONE, ZERO, Expr, Knob, Var, add, fold, mul

Affine = tuple[dict[Expr, Expr], Expr]
"""Coefficients by term, and the constant. A term is a Var or a non-affine sub-expression as a whole."""

Interval = tuple[int, int]


def has_variables(expr: Expr) -> bool:
    """Whether a loop variable occurs in an integer expression."""
    if isinstance(expr, Binary):
        return has_variables(expr.left) or has_variables(expr.right)
    return not isinstance(expr, Int | Knob)


def affine(expr: Expr) -> Affine:
    """The expression as sum(coefficient * term) + constant; coefficients hold no loop variable."""
    if not has_variables(expr):
        return {}, expr
    if isinstance(expr, Binary):
        if expr.op == "+":
            return _sum(affine(expr.left), affine(expr.right), ONE)
        if expr.op == "-":
            return _sum(affine(expr.left), affine(expr.right), Int(-1))
        if expr.op == "*":
            if not has_variables(expr.right):
                return _scale(affine(expr.left), expr.right)
            if not has_variables(expr.left):
                return _scale(affine(expr.right), expr.left)
    return {expr: ONE}, ZERO


def _sum(left: Affine, right: Affine, factor: Expr) -> Affine:
    terms = dict(left[0])
    for term, coefficient in right[0].items():
        total = add(terms.get(term, ZERO), mul(coefficient, factor))
        terms[term] = total
    kept = {term: coefficient for term, coefficient in terms.items() if coefficient != ZERO}
    return kept, add(left[1], mul(right[1], factor))


def _scale(value: Affine, factor: Expr) -> Affine:
    if factor == ZERO:
        return {}, ZERO
    return {term: mul(coefficient, factor) for term, coefficient in value[0].items()}, mul(value[1], factor)


def rejoined(value: Affine) -> Affine:
    """The sum with n * (x // n) + x % n put together to x again, times whatever both are multiplied by."""
    terms, constant = value
    for rest, coefficient in value[0].items():
        if not isinstance(rest, Binary) or rest.op != "%":
            continue
        quotient = Binary("//", rest.left, rest.right)
        if terms.get(quotient) != mul(coefficient, rest.right):
            continue
        others = {term: factor for term, factor in terms.items() if term not in (rest, quotient)}
        terms, constant = _sum((others, constant), affine(rest.left), coefficient)
    return terms, constant


def from_affine(value: Affine) -> Expr:
    """The decomposition put together again."""
    result: Expr = ZERO
    for term, coefficient in value[0].items():
        result = add(result, mul(term, coefficient))
    return add(result, value[1])


def substitute(expr: Expr, values: Mapping[Expr, Expr]) -> Expr:
    """The expression with leaves (variables, knobs) replaced, integers folded."""
    if isinstance(expr, Binary):
        return fold(expr.op, substitute(expr.left, values), substitute(expr.right, values))
    return expr.mapped(lambda part: substitute(part, values)) if expr.parts else values.get(expr, expr)


def divide(expr: Expr, divisor: int, extents: Mapping[str, Expr]) -> tuple[Expr, Expr] | None:
    """(quotient, remainder) of an index by a positive integer, None where that needs a division.

    The terms that the divisor divides make the quotient; the others must stay within 0 .. divisor - 1.

    Args:
        expr: an integer expression that is never negative.
        divisor: at least 1.
        extents: of the loop variables.
    """
    terms, constant = affine(expr)
    if not isinstance(constant, Int):
        return None
    quotient: Expr = Int(constant.value // divisor)
    rest: Affine = ({}, Int(constant.value % divisor))
    reach = constant.value % divisor
    for term, coefficient in terms.items():
        whole = _exact_quotient(mul(term, coefficient), divisor)
        if whole is not None:
            quotient = add(quotient, whole)
            continue
        extent = extents.get(term.name) if isinstance(term, Var) else None
        if not isinstance(extent, Int) or not isinstance(coefficient, Int) or coefficient.value < 0:
            return None
        reach += coefficient.value * (extent.value - 1)
        rest[0][term] = coefficient
    return (from_affine(affine(quotient)), from_affine(rest)) if reach < divisor else None


def _exact_quotient(expr: Expr, divisor: int) -> Expr | None:
    """expr // divisor for an expression that is a multiple of it at sight."""
    if isinstance(expr, Int):
        return Int(expr.value // divisor) if expr.value % divisor == 0 else None
    if not isinstance(expr, Binary):
        return None
    if expr.op == "*":
        left = _exact_quotient(expr.left, divisor)
        if left is not None:
            return mul(left, expr.right)
        right = _exact_quotient(expr.right, divisor)
        return None if right is None else mul(expr.left, right)
    left, right = _exact_quotient(expr.left, divisor), _exact_quotient(expr.right, divisor)
    if expr.op not in ("+", "-", "min", "max") or left is None or right is None:
        return None
    return fold(expr.op, left, right)


def multiple_of(expr: Expr, var: str = "") -> int:
    """A number that divides all values of an index; a variable that is given counts as 0."""
    match expr:
        case Int(value):
            return abs(value)
        case Var(name):
            return 0 if name == var else 1
        case Binary("+" | "-" | "min" | "max", left, right):
            return math.gcd(multiple_of(left, var), multiple_of(right, var))
        case Binary("*", left, right):
            return multiple_of(left, var) * multiple_of(right, var)
        case Binary("%", left, right):
            return math.gcd(multiple_of(left, var), multiple_of(right, var))
        case _:
            return 1


def sum_of_terms(expr: Expr) -> Expr:
    """An extent as a sum in which equal terms are put together: 64 - $t + $t is 64."""
    counts: dict[Expr, int] = {}
    _count_terms(expr, 1, counts)
    result: Expr = ZERO
    for term, count in counts.items():
        if term != ONE:
            result = add(result, mul(term, Int(count)))
    return add(result, Int(counts.get(ONE, 0)))


def _count_terms(expr: Expr, factor: int, counts: dict[Expr, int]) -> None:
    match expr:
        case Int(value):
            counts[ONE] = counts.get(ONE, 0) + factor * value
        case Binary("+" | "-", left, right):
            _count_terms(left, factor, counts)
            _count_terms(right, factor if expr.op == "+" else -factor, counts)
        case Binary("*", left, Int(value)) | Binary("*", Int(value), left):
            _count_terms(left, factor * value, counts)
        case _:
            counts[expr] = counts.get(expr, 0) + factor


def interval(expr: Expr, ranges: Mapping[str, Interval]) -> Interval | None:
    """Smallest and largest value of an integer expression, None where it cannot be told.

    Args:
        expr: an expression without knobs.
        ranges: inclusive bounds of every loop variable.
    """
    match expr:
        case Int(value):
            return value, value
        case Var(name):
            return ranges.get(name)
        case Binary("+" | "-"):
            return _affine_interval(expr, ranges)
        case Binary(op, left, right):
            a, b = interval(left, ranges), interval(right, ranges)
            if a is None or b is None:
                return None
            return _combine(op, a, b)
        case _:
            return None


def _affine_interval(expr: Expr, ranges: Mapping[str, Interval]) -> Interval | None:
    terms, constant = affine(expr)
    if not isinstance(constant, Int):
        return None
    low = high = constant.value
    for term, coefficient in terms.items():
        bounds = interval(term, ranges) if term != expr else None
        if bounds is None or not isinstance(coefficient, Int):
            return None
        products = (bounds[0] * coefficient.value, bounds[1] * coefficient.value)
        low, high = low + min(products), high + max(products)
    return low, high


def _combine(op: str, a: Interval, b: Interval) -> Interval | None:
    if op == "*":
        corners = [x * y for x in a for y in b]
        return min(corners), max(corners)
    if op == "min":
        return min(a[0], b[0]), min(a[1], b[1])
    if op == "max":
        return max(a[0], b[0]), max(a[1], b[1])
    if op == "//" and b[0] == b[1] and b[0] > 0:
        return a[0] // b[0], a[1] // b[0]
    if op == "%" and b[0] == b[1] and b[0] > 0:
        same = a[0] // b[0] == a[1] // b[0]
        return (a[0] % b[0], a[1] % b[0]) if same else (0, b[0] - 1)
    return None
