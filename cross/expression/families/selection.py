"""Choosing some of many: the places of true elements, different elements, and boxes that do not overlap.

How many there are depends on the data. Tensors have room for all; what is behind the last one is 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from cross.expression.families.indexed import nearest
from cross.expression.language import functions
from cross.expression.language.dtypes import FLOATS, INDEX
from cross.expression.language.functions import (
    equal,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    reduce_axis,
)
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Term, cast, constant, select


def true_places(within: Tensor, across: Tensor, count: int) -> Tensor:
    """The places of the first `count` ones of a list of zeros and ones, in order (int64).

    The list is cut into rows: `within` [rows, length] has its running sums in each row, `across` [rows] those
    over the whole rows. A place is found by counting the rows, then the elements that end before it.
    """
    rows, length = within.shape
    row, element = reduce_axis(rows, "row"), reduce_axis(length, "element")

    def counted(condition: Term) -> Term:
        return select(condition, constant(1, INDEX), constant(0, INDEX))

    line = compute((count,), lambda place: functions.sum(counted(across[row] <= place), row), "line")

    def inside(place: Term) -> Term:
        own = nearest(line[place], rows)
        before = across[own] - within[own, length - 1]
        return functions.sum(counted(within[own, element] + before <= place), element)

    column = compute((count,), inside, "column")

    def found(place: Term) -> Term:
        return select(place < across[rows - 1], line[place] * length + column[place], constant(0, INDEX))

    return compute((count,), found, "true_places")


def _comes_before(one: Term, other: Term) -> Term:
    """Whether one is smaller; NaN is larger than all numbers, as numpy sorts it."""
    if one.dtype not in FLOATS:
        return logical_and(logical_not(one), other) if one.dtype == "bool" else one < other
    return logical_or(one < other, logical_and(equal(one, one), logical_not(equal(other, other))))


def _is_same(one: Term, other: Term) -> Term:
    """Whether two are equal; all NaN are."""
    if one.dtype not in FLOATS:
        return equal(one, other) if one.dtype != "bool" else equal(cast("int32", one), cast("int32", other))
    nan = logical_and(logical_not(equal(one, one)), logical_not(equal(other, other)))
    return logical_or(equal(one, other), nan)


def first_difference(rows: Tensor) -> Tensor:
    """The first column in which two of the rows [n, width] differ: int64 [n, n]; the width if in none."""
    count, width = rows.shape
    column = reduce_axis(width, "column")

    def body(one: Term, other: Term) -> Term:
        same = _is_same(rows[one, column], rows[other, column])
        return functions.min(select(same, constant(width, INDEX), column + 0), column)

    return compute((count, count), body, "first_difference")


def _compared(rows: Tensor, difference: Tensor | None) -> tuple[Callable[..., Term], Callable[..., Term]]:
    """Functions of two places: whether their rows are equal, and whether the first one comes before."""
    width = rows.shape[1]
    if difference is None:
        return (
            lambda one, other: _is_same(rows[one, 0], rows[other, 0]),
            lambda one, other: _comes_before(rows[one, 0], rows[other, 0]),
        )

    def before(one: Term, other: Term) -> Term:
        column = nearest(difference[one, other], width)  # of equal rows any: none is before the other
        return _comes_before(rows[one, column], rows[other, column])

    return lambda one, other: equal(difference[one, other], width), before


def first_equal(rows: Tensor, difference: Tensor | None) -> Tensor:
    """For each of the rows [n, width] the place of the first one that is equal to it: int64 [n].

    `difference` is that of `first_difference`, None for rows of one element.
    """
    count, other = rows.shape[0], reduce_axis(rows.shape[0], "other")
    same, _ = _compared(rows, difference)

    def body(own: Term) -> Term:
        return functions.min(select(same(other, own), other + 0, constant(count - 1, INDEX)), other)

    return compute((count,), body, "first_equal")


def rank_of_kind(rows: Tensor, first: Tensor, difference: Tensor | None, ordered: bool) -> Tensor:
    """How many different rows come before each: int64 [n], by size if `ordered`, else by where they begin."""
    other = reduce_axis(rows.shape[0], "other")
    _, before = _compared(rows, difference)

    def body(own: Term) -> Term:
        earlier = before(other, own) if ordered else other < first[own]
        counts = logical_and(equal(first[other], other), earlier)
        return functions.sum(select(counts, constant(1, INDEX), constant(0, INDEX)), other)

    return compute(first.shape, body, "rank_of_kind")


def places_of_kinds(rank: Tensor, first: Tensor) -> Tensor:
    """Where the first row of each rank is: int64 [n]."""
    element = reduce_axis(rank.shape[0], "element")

    def body(kind: Term) -> Term:
        found = logical_and(equal(rank[element], kind), equal(first[element], element))
        return functions.sum(select(found, element + 0, constant(0, INDEX)), element)

    return compute(rank.shape, body, "places_of_kinds")


def sizes_of_kinds(rank: Tensor) -> Tensor:
    """How many rows have each rank: int64 [n]."""
    element = reduce_axis(rank.shape[0], "element")

    def body(kind: Term) -> Term:
        return functions.sum(
            select(equal(rank[element], kind), constant(1, INDEX), constant(0, INDEX)), element
        )

    return compute(rank.shape, body, "sizes_of_kinds")


def without_overlaps(
    scores: Tensor, boxes: Tensor, chosen: Tensor, threshold: Tensor, centers: bool
) -> Tensor:
    """`scores` [n, c, boxes] with minus infinity at the `chosen` [n, c, 1] and at boxes that overlap one.

    `boxes` [n, boxes, 4] are two corners (y, x, y, x), or with `centers` (x, y, width, height). They overlap
    where their intersection is more than `threshold` [1] of their union.
    """

    def side(batch: Term, box: Term, dimension: int) -> tuple[Term, Term]:
        """The lower and the upper end of a box."""
        one, other = boxes[batch, box, dimension], boxes[batch, box, dimension + 2]
        if centers:
            return one - other * 0.5, one + other * 0.5
        return minimum(one, other), maximum(one, other)

    def body(batch: Term, kind: Term, box: Term) -> Term:
        best = nearest(chosen[batch, kind, 0], boxes.shape[1])
        common: list[Term] = []
        areas: list[list[Term]] = [[], []]
        for dimension in range(2):
            low, high = side(batch, box, dimension)
            best_low, best_high = side(batch, best, dimension)
            common.append(minimum(high, best_high) - maximum(low, best_low))
            areas[0].append(high - low)
            areas[1].append(best_high - best_low)
        meet = logical_and(common[0] > 0.0, common[1] > 0.0)
        shared = common[0] * common[1]
        own, other = (sides[0] * sides[1] for sides in areas)
        union = own + other - shared
        real = logical_and(meet, own > 0.0, other > 0.0, union > 0.0)
        overlap = logical_and(real, shared / union > threshold[0])
        lost = logical_or(equal(box, best), overlap)
        return select(lost, constant(-math.inf, scores.dtype), scores[batch, kind, box])

    return compute(scores.shape, body, "without_overlaps")
