"""The specification of the features: one bound nest at a time, in plain arithmetic.

Slow and simple; the vectorized extractors must give the same numbers. Bind a nest without simplification, so
that all configurations of a structure have the same loops. Lengths, products, counts and strides are
log2(1 + x), reuse ratios log2.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Int
from cross.loopnest.nodes import Expr, For, LoopNest, stores
from toolkit.features.chain import Access, Chain, chain, main_chain, main_store
from toolkit.features.flattened import FLATTENED_LOOPS, row_features
from toolkit.features.nest import totals
from toolkit.features.relation import BETAS
from toolkit.features.slots import SLOTS, slot_of
from toolkit.features.totals import operations
from toolkit.features.vocabulary import Vocabulary, vocabulary_of


def plain_context(nest: LoopNest) -> list[float]:
    """The totals, then the loop features of every loop of the main chain, innermost first (paper, Table 2).

    Each loop's are followed by ACCESS_FEATURES of every buffer of the statement inside. The vectorized
    extractor puts the knobs at the end: `plain_configuration`.
    """
    described = main_chain(nest)
    result, words = plain_totals(nest), vocabulary_of(nest)
    for position in reversed(range(len(described.loops))):
        result += _loop(described, position, words)
        for access in described.accesses:
            result += _access(described, position, access)
    return result


def plain_totals(nest: LoopNest) -> list[float]:
    """The totals of the vocabulary."""
    return [_log(_value(total)) for total in totals(nest)]


def plain_configuration(values: Sequence[Sequence[int]]) -> list[float]:
    """The values of the fields of every knob, with their signs."""
    return [math.copysign(_log(abs(value)), value) for fields in values for value in fields]


def plain_flattened(nest: LoopNest) -> list[float]:
    """The totals, then `row_features` of the innermost FLATTENED_LOOPS loops; zeros for missing ones."""
    described = main_chain(nest)
    result, words = plain_totals(nest), vocabulary_of(nest)
    for row in range(FLATTENED_LOOPS):
        position = len(described.loops) - 1 - row
        result += _row(described, position, words) if position >= 0 else [0.0] * len(row_features(words))
    return result


def plain_relation(nest: LoopNest) -> list[float]:
    """See relation.py."""
    described = main_chain(nest)
    lengths = [_value(loop.extent) for loop in described.loops]
    result = plain_totals(nest)
    for kind in vocabulary_of(nest).kinds:
        these = [length for loop, length in zip(described.loops, lengths, strict=True) if loop.kind is kind]
        result += [_log(math.prod(these)), _log(max(these, default=1))]
    for slot in range(len(SLOTS)):
        mine = [item for place, item in enumerate(described.accesses) if slot_of(place) == slot]
        innermost = described.loops[-1:]
        strides = [abs(_value(item.stride.get(loop.var, Int(0)))) for item in mine for loop in innermost]
        result.append(_log(max((ITEM_BYTES[item.buffer.dtype] for item in mine), default=0)))
        result.append(_log(max((touch_count(item, described.loops) for item in mine), default=0)))
        result.append(_log(max(strides, default=0)))
    points = [_points(described, slot) for slot in range(len(SLOTS))]
    for given, what, choose in ((0, 1, max), (1, 0, max), (0, 2, min), (2, 0, min)):
        for bag in points:
            for beta in BETAS:
                below = [_logs(point)[what] for point in bag if point[given] < beta]
                result.append(choose(below, default=0.0))
    return result


def plain_tree(nest: LoopNest, variables: Mapping[str, int]) -> list[float]:
    """`channels` of tree.py for each loop whose variable has a number, depth first; no rows at the end."""
    result: list[float] = []
    rows: list[str] = []
    for outer, loop in _distinct_loops(nest):
        if loop.var not in variables:
            continue
        inner, store = main_store(loop)
        described = chain((*outer, *inner), store)
        around = [rows.index(item.var) for item in outer if item.var in rows]
        rows.append(loop.var)
        result += [1.0, max(around, default=-1), variables[loop.var], _log(sum(operations(store).values()))]
        result += _row(described, len(outer), vocabulary_of(nest))
    return result


def touch_count(access: Access, loops: Sequence[For]) -> int:
    """Elements of a buffer that the given loops touch."""
    count = 1
    inner = {loop.var: _value(loop.extent) for loop in loops}
    for dimension, extent in zip(access.dimensions, access.buffer.shape, strict=True):
        length = 1 + sum(
            abs(_value(coefficient)) * (inner[name] - 1)
            for name, coefficient in dimension.items()
            if name in inner
        )
        count *= min(length, _value(extent))
    return count


def _loop(described: Chain, position: int, words: Vocabulary) -> list[float]:
    """The loop features of the vocabulary."""
    lengths = [_value(loop.extent) for loop in described.loops]
    kinds = [1.0 if described.loops[position].kind is kind else 0.0 for kind in words.kinds]
    outer, inside = math.prod(lengths[:position]), math.prod(lengths[position:])
    return [_log(lengths[position]), *kinds, _log(outer), _log(inside)]


def _access(described: Chain, position: int, access: Access) -> list[float]:
    """ACCESS_FEATURES."""
    inner = described.loops[position:]
    touched = touch_count(access, inner)
    inside = math.prod(_value(loop.extent) for loop in inner)
    stride = abs(_value(access.stride.get(inner[0].var, Int(0))))
    return [_log(touched), math.log2(inside / touched), _log(stride)]


def _row(described: Chain, position: int, words: Vocabulary) -> list[float]:
    """`row_features` of flattened.py."""
    result = _loop(described, position, words)
    for slot in range(len(SLOTS)):
        mine = [
            _access(described, position, access)
            for place, access in enumerate(described.accesses)
            if slot_of(place) == slot
        ]
        result += [max(values) for values in zip(*mine, strict=True)] if mine else [0.0, 0.0, 0.0]
    return result


def _points(described: Chain, slot: int) -> list[tuple[float, float, float]]:
    """(touch, reuse, top-down) of the statement and of every loop, for the buffers of a place."""
    lengths = [_value(loop.extent) for loop in described.loops]
    points = []
    for place, access in enumerate(described.accesses):
        if slot_of(place) != slot:
            continue
        for position in range(len(lengths) + 1):
            touched = touch_count(access, described.loops[position:])
            inside = math.prod(lengths[position:])
            points.append((float(touched), inside / touched, float(math.prod(lengths[:position]))))
    return points


def _logs(point: tuple[float, float, float]) -> tuple[float, float, float]:
    return _log(point[0]), math.log2(point[1]), _log(point[2])


def _distinct_loops(nest: LoopNest) -> list[tuple[tuple[For, ...], For]]:
    """Every loop with those around it, depth first, each once."""
    found: dict[str, tuple[tuple[For, ...], For]] = {}
    for loops, _ in stores(nest.body):
        for position, loop in enumerate(loops):
            found.setdefault(loop.var, (loops[:position], loop))
    return list(found.values())


def _log(value: float) -> float:
    return math.log2(1.0 + value)


def _value(expr: Expr) -> int:
    assert isinstance(expr, Int)
    return expr.value
