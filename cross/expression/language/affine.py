"""Indices as sums over axes."""

from __future__ import annotations

from collections.abc import Mapping

from cross.expression.language.tensor import Axis
from cross.expression.language.terms import Binary, Cast, Const, Int, Term

Affine = tuple[Mapping[Axis, int], int]


def affine(term: Term) -> Affine | None:
    """An index as coefficients by axis and a constant; None when it is no such sum."""
    match term:
        case Axis():
            return {term: 1}, 0
        case Int(value) | Const(value, _):
            return {}, int(value)
        case Cast("int64" | "int32", value):
            return affine(value)
        case Binary("+", left, right):
            return _sum(affine(left), affine(right), 1)
        case Binary("-", left, right):
            return _sum(affine(left), affine(right), -1)
        case Binary("*", left, right):
            one, other = affine(left), affine(right)
            if one is not None and other is not None and not (one[0] and other[0]):
                return _sum(({}, 0), one, other[1]) if one[0] else _sum(({}, 0), other, one[1])
    return None


def _sum(left: Affine | None, right: Affine | None, factor: int) -> Affine | None:
    """left + factor * right."""
    if left is None or right is None:
        return None
    coefficients = dict(left[0])
    for axis, coefficient in right[0].items():
        coefficients[axis] = coefficients.get(axis, 0) + factor * coefficient
    return coefficients, left[1] + factor * right[1]
