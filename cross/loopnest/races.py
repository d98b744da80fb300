"""Whether the iterations of a loop may run at the same time.

`conflict(loop, ranges)` looks at every buffer that outlives an iteration and is written in it. Iterations do
not meet if the values of the loop variable can be told apart by what they access. Per dimension of the
buffer, an index is split into

    (part of the loop variable alone) + (part of the loops outside) + (rest: loops inside)

The outer part must be the same in all accesses, and is the same in all iterations. If any two different
values of the first part lie further apart than the rest can reach, or meet nowhere with any of the values
that the rest takes, iterations with different first parts touch different elements in that dimension. The
first parts of all such dimensions together must differ between any two iterations. Where that fails, as for
loops that were fused, the row-major position in several dimensions is looked at in the same way, then that
in the box of all indices, which is smaller where a part of a larger tensor is written.

One overlap is allowed: a shifted last tile, min(i * T, E - T) + rest, lies partly on the tile before it. Both
iterations then store the same value into a shared element, because lowering computes an element from its
own index alone, and an aligned store of one scalar is never seen half done; so the order of the two stores
changes nothing. That holds only for elements that are written and never read inside the loop (a sum kept in
such a buffer would be torn), which is checked.

Iterations in which guards let no store happen, as of more threads than a buffer has rows, are left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cross.expression.language.operations import OPERATIONS
from cross.expression.language.terms import Binary, Int
from cross.loopnest.bounds import UNKNOWN, Interval, Linear, Ranges, bounds, form_bounds, linear
from cross.loopnest.nodes import (
    ZERO,
    Allocate,
    Buffer,
    Expr,
    For,
    Statement,
    Var,
    loads,
    statements,
    stores,
    variables,
)

Values = NDArray[np.int64]
MOST_VALUES = 1 << 16  # of an index, that are told apart one by one


Clamps = dict[Expr, list[int]]
"""Bounds k of counters that a guard keeps below k, by counter."""


class Access(msgspec.Struct, frozen=True, gc=False):
    """A load or store of one buffer, with the ranges of all loops around it, and what keeps a store from
    happening (`_clamps_without_effect`)."""

    indices: tuple[Expr, ...]
    writes: bool
    ranges: dict[str, Interval]
    happens_below: Clamps


class SplitIndex(msgspec.Struct, frozen=True, gc=False):
    """One dimension of one access; see the head of this file. `shifted`: the loop part drops a min()."""

    values: Values
    outer: Linear
    rest: Interval
    shifted: bool
    inside: Linear
    ranges: dict[str, Interval]

    def reached(self) -> Values | None:
        """Every value that the rest takes, where its loops are few enough to tell; else None."""
        found = np.array([self.inside.constant], np.int64)
        for atom, coefficient in self.inside.terms:
            last = self.ranges.get(atom.name, UNKNOWN)[1] if isinstance(atom, Var) else math.inf
            if len(found) * (last + 1) > MOST_VALUES:
                return None
            steps = coefficient * np.arange(int(last) + 1, dtype=np.int64)
            found = np.unique(found[:, None] + steps)
        return found


def conflict(loop: For, ranges: Ranges) -> tuple[Buffer, str] | None:
    """A buffer over which two iterations of a bound loop may conflict and why, or None if there is none.

    Args:
        loop: a bound loop of at least one iteration.
        ranges: inclusive intervals of the variables of the loops outside.
    """
    shared: dict[str, tuple[Buffer, list[Access]]] = {}
    for buffer, access in _accesses(loop.body, dict(ranges)):
        shared.setdefault(buffer.name, (buffer, []))[1].append(access)
    for buffer, accesses in shared.values():
        if any(access.writes for access in accesses):
            reason = _meet(loop, buffer, accesses, frozenset(ranges))
            if reason:
                return buffer, reason
    return None


def _accesses(statement: Statement, ranges: dict[str, Interval]) -> Iterator[tuple[Buffer, Access]]:
    """All accesses to buffers that are not allocated within the statement."""
    private = {item.buffer.name for item in statements(statement) if isinstance(item, Allocate)}
    for loops, store in stores(statement):
        known = {} if store.guard is None else _clamps_without_effect(store.guard)
        inside = {
            loop.var: (0, loop.extent.value - 1 if isinstance(loop.extent, Int) else math.inf)
            for loop in loops
        }
        touched: list[tuple[Buffer, bool, tuple[Expr, ...]]] = [(store.buffer, True, store.indices)]
        for load in (item for part in (*store.indices, store.value) for item in loads(part)):
            touched.append((load.buffer, False, load.indices))
        for used, writes, places in touched:
            if used.name not in private:
                indices = tuple(_known(place, known) for place in places)
                yield used, Access(indices, writes, ranges | inside, known if writes else {})


def _clamps_without_effect(guard: Expr) -> Clamps:
    """What a store happens under: `counter < k and ...`.

    Lowering clamps the indices of a guarded store too, so that an address is in bounds whether or not the
    store happens; where it does, min(counter, k - 1) is the counter.
    """
    if isinstance(guard, Binary) and guard.op == "and":
        left, right = _clamps_without_effect(guard.left), _clamps_without_effect(guard.right)
        return left | {counter: left.get(counter, []) + ends for counter, ends in right.items()}
    if isinstance(guard, Binary) and guard.op == "<" and isinstance(guard.right, Int):
        return {guard.left: [guard.right.value]}
    return {}


def _known(index: Expr, clamps: Clamps) -> Expr:
    """The index without the clamps that the guard makes needless."""
    if not isinstance(index, Binary):
        return index
    left, right = _known(index.left, clamps), _known(index.right, clamps)
    counter, scale = index.left, 1
    match index.left:
        case Binary("*", inner, Int(factor)) if factor > 0:
            counter, scale = inner, factor
    ends = [*clamps.get(index.left, []), *((end - 1) * scale + 1 for end in clamps.get(counter, []))]
    if index.op == "min" and isinstance(right, Int) and any(end <= right.value + 1 for end in ends):
        return left
    return Binary(index.op, left, right)


def _meet(loop: For, buffer: Buffer, accesses: list[Access], outside: frozenset[str]) -> str:
    """Why two iterations may touch one element, or "" if they cannot."""
    assert isinstance(loop.extent, Int)
    # Of a loop of more threads than there are elements the last iterations store nothing.
    own = Var(loop.var)
    last = max(min(access.happens_below.get(own, [loop.extent.value])) for access in accesses)
    count = min(loop.extent.value, last)
    if count <= 1:
        return ""
    loop = replace(loop, extent=Int(count))
    reason = _meet_in(loop, accesses, outside)
    # Loops that were fused are told apart by the place in several dimensions together, or in the box that the
    # indices reach, where the indices alone do not tell.
    whole = [(0, extent.value - 1) for extent in buffer.shape if isinstance(extent, Int)]
    rank = len(whole)
    for dimensions in (found for size in range(rank, 1, -1) for found in combinations(range(rank), size)):
        if not reason:
            return ""
        reason = _meet_in(loop, [_together(access, dimensions, whole) for access in accesses], outside)
    box = _box(accesses, {loop.var: (0, count - 1)}) if reason and rank > 1 else None
    if box is not None:
        reason = _meet_in(loop, [_together(access, range(rank), box) for access in accesses], outside)
    return reason


def _together(access: Access, dimensions: Sequence[int], box: Sequence[tuple[int, int]]) -> Access:
    """The access with the row-major position in some dimensions of a box in place of the indices there."""
    place = _offset([box[item] for item in dimensions], [access.indices[item] for item in dimensions])
    others = (index for item, index in enumerate(access.indices) if item not in dimensions)
    return replace(access, indices=(place, *others))


def _box(accesses: Sequence[Access], own: Ranges) -> list[tuple[int, int]] | None:
    """The first and last index in each dimension; None where they are not known."""
    found: list[tuple[int, int]] = []
    for dimension in zip(*(access.indices for access in accesses), strict=True):
        ends = [
            bounds(index, {**access.ranges, **own}) for index, access in zip(dimension, accesses, strict=True)
        ]
        low, high = min(low for low, _ in ends), max(high for _, high in ends)
        if math.isinf(low) or math.isinf(high):
            return None
        found.append((int(low), int(high)))
    return found


def _offset(box: Sequence[tuple[int, int]], indices: Sequence[Expr]) -> Expr:
    """The row-major position of an element in a box."""
    result: Expr = ZERO
    for index, (low, high) in zip(indices, box, strict=True):
        result = Binary("+", Binary("*", result, Int(high - low + 1)), Binary("-", index, Int(low)))
    return result


def _meet_in(loop: For, accesses: list[Access], outside: frozenset[str]) -> str:
    assert isinstance(loop.extent, Int)
    count = loop.extent.value
    columns: list[Values] = []
    shifted = False
    for position in range(len(accesses[0].indices)):
        splits = [_split(loop.var, count, access, position, outside) for access in accesses]
        column = _apart(splits)
        if column is not None:
            columns.append(column)
            shifted |= any(split is not None and split.shifted for split in splits)
    if not columns or len(np.unique(np.stack(columns, axis=1), axis=0)) < count:
        return "iterations are not known to touch different elements"
    if shifted and not all(access.writes for access in accesses):
        return "the shifted last tile overlaps the tile before it, and its elements are also read"
    return ""


def _apart(splits: list[SplitIndex | None]) -> Values | None:
    """The loop parts in a dimension in which different loop parts mean different elements, else None."""
    known = [split for split in splits if split is not None]
    first = known[0] if known else None
    if first is None or len(known) < len(splits):
        return None
    for split in known:
        if split.outer != first.outer or not np.array_equal(split.values, first.values):
            return None
    reach = max(split.rest[1] for split in known) - min(split.rest[0] for split in known)
    parts = np.unique(first.values)
    gaps = np.diff(parts)
    if len(gaps) == 0 or gaps.min() > reach:
        return first.values
    if _has_places(gaps, known):
        return first.values
    rests = [split.reached() for split in known]
    if any(rest is None for rest in rests):
        return None
    together = np.unique(np.concatenate([rest for rest in rests if rest is not None]))
    if len(parts) * len(together) > MOST_VALUES:
        return None
    distinct = len(np.unique(parts[:, None] + together)) == len(parts) * len(together)
    return first.values if distinct else None


def _has_places(gaps: Values, known: Sequence[SplitIndex]) -> bool:
    """Whether evenly spaced loop parts and the loops inside are like the digits of a number: each counts by
    more than all lower ones reach together."""
    first = known[0]
    terms: list[tuple[int, float]] = [(int(gaps[0]), len(gaps))]
    for atom, coefficient in first.inside.terms:
        last = first.ranges.get(atom.name, UNKNOWN)[1] if isinstance(atom, Var) else math.inf
        terms.append((abs(coefficient), last))
    if gaps.min() < gaps.max() or any(split.inside != first.inside for split in known):
        return False
    reach: float = 0
    for coefficient, last in sorted(terms):
        if coefficient <= reach:
            return False
        reach += coefficient * last
    return True


def _split(var: str, count: int, access: Access, position: int, outside: frozenset[str]) -> SplitIndex | None:
    form = linear(access.indices[position])
    values: Any = np.zeros(count, np.int64)
    outer, rest = Linear((), 0), Linear((), form.constant)
    shifted = False
    for atom, coefficient in form.terms:
        names = variables(atom)
        if var not in names:
            own = Linear(((atom, coefficient),), 0)
            if names <= outside and not loads(atom):
                outer = outer.plus(own)
            else:
                rest = rest.plus(own)
        elif names == {var}:
            unshifted = _without_shift(atom)
            shifted |= unshifted != atom
            part = _evaluate(unshifted, var, count)
            if part is None:
                return None
            values = values + coefficient * part
        else:
            return None
    ordered = Linear(tuple(sorted(outer.terms, key=repr)), 0)
    return SplitIndex(values, ordered, form_bounds(rest, access.ranges), shifted, rest, access.ranges)


def _without_shift(atom: Expr) -> Expr:
    """start of min(start, last start)."""
    if isinstance(atom, Binary) and atom.op == "min" and isinstance(atom.right, Int):
        return atom.left
    return atom


def _evaluate(expression: Expr, var: str, count: int) -> Values | None:
    """The values of an integer expression of one variable in 0 .. count - 1; None if it reads memory."""
    match expression:
        case Int(value):
            return np.full(count, value, np.int64)
        case Var():
            return np.arange(count, dtype=np.int64)
        case Binary(op, left, right) if OPERATIONS[op].integer is not None:
            a, b = _evaluate(left, var, count), _evaluate(right, var, count)
            return None if a is None or b is None else np.asarray(OPERATIONS[op].numpy(a, b), np.int64)
        case _:
            return None
