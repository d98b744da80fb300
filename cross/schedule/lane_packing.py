"""Which reductions run several of their steps in one vector, because their outputs alone do not fill it.

In C[i, j] = sum_k A[i, k] * B[k, j] with few j, the elements B[k, j] of some steps k lie next to each other
in memory. With f steps side by side a vector holds f times as many products:

    P[i, v] = sum_k0 A[i, f * k0 + v // n] * B[f * k0 + v // n, v % n]          0 <= v < f * n
    C[i, j] = sum_g P[i, g * n + j]  +  the products of the steps that f does not divide

An element of A is repeated over n lanes: one load and one shuffle a vector.
"""

from __future__ import annotations

import functools
import math

import msgspec
from msgspec.structs import replace

from boards.target import Target
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.expression.language.naming import replace_reads
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Read, Reduce, Tensor
from cross.expression.language.terms import Binary, Int, Term, substitute, walk

MOST_VECTORS = 3  # of partial results side by side
GAIN = 1.7
"""What packing must save to be chosen, in steps of a vector as `packed_steps` counts them. It stands for the
shuffles, which the count leaves out; an estimate, raised from 1.25 when masked vectors made the plain form
cheaper. Too low, products that one masked vector serves well become slower; too high, lanes stay empty."""
COMBINING = 3.0  # steps of a vector that adding up one vector of partial results is worth


class PackedSteps(msgspec.Struct, frozen=True):
    """So many steps of the reduction over `axis` side by side."""

    axis: Axis
    steps: int


def with_packed_lanes(operator: Operator, target: Target) -> Operator:
    """The operator with the steps side by side of every reduction for which `packed_steps` finds some."""
    renewed: dict[Tensor, Tensor] = {}
    for tensor in operator.stages:
        assert tensor.body is not None
        found = packed_steps(tensor, target)
        body = replace_reads(
            tensor.body, lambda read: replace(read, tensor=renewed.get(read.tensor, read.tensor))
        )
        current = replace(tensor, body=body)
        renewed[tensor] = current if found is None else _combined(current, found)
    return replace(operator, output=renewed[operator.output]) if operator.stages else operator


def packed_steps(stage: Tensor, target: Target) -> PackedSteps | None:
    """How many steps of which reduction axis to run side by side; None where that does not pay.

    It takes cheap vectors of which a part is used, and cheap shuffles.
    """
    if not target.masks_lanes or stage.dtype not in FLOATS or not stage.axes:
        return None
    axis = _contiguous_steps(stage)
    if axis is None:
        return None
    if stage.axes[-1].extent == 1:
        return None  # the partial results of a single column are vectors by themselves: vector_axis.py
    lanes, columns = target.vector_lanes(ITEM_BYTES[stage.dtype]), stage.axes[-1].extent
    others = math.prod(item.extent for item in stage.reduce_axes if item is not axis)
    best, fewest = None, others * axis.extent * -(-columns // lanes) / GAIN
    for steps in range(2, min(lanes, axis.extent) + 1):
        vectors = -(-steps * columns // lanes)
        rest = axis.extent % steps
        if vectors > MOST_VECTORS or (rest and others > 1):
            continue
        work = others * (axis.extent // steps) * vectors + COMBINING * vectors + steps + rest
        if work < fewest:
            best, fewest = PackedSteps(axis, steps), work
    return best


def _contiguous_steps(stage: Tensor) -> Axis | None:
    """The reduction axis whose steps lie next to each other: second to last of the operand that is contiguous
    along the innermost space axis, last of the other."""
    match stage.body:
        case Reduce("sum", Binary("*", Read() as left, Read() as right), _):
            pass
        case _:
            return None
    column = stage.axes[-1]
    for narrow, wide in ((right, left), (left, right)):
        if len(narrow.indices) < 2 or narrow.indices[-1] is not column or not wide.indices:
            continue
        axis = narrow.indices[-2]
        if not isinstance(axis, Axis) or axis not in stage.reduce_axes or wide.indices[-1] is not axis:
            continue
        fits = narrow.tensor.shape[-2:] == (axis.extent, column.extent)
        used = [*map(_axes, narrow.indices[:-2]), *map(_axes, wide.indices[:-1])]
        if fits and not any(axis in item or column in item for item in used):
            return axis
    return None


def _axes(term: Term) -> set[Axis]:
    return {item for item in walk(term) if isinstance(item, Axis)}


def _combined(stage: Tensor, found: PackedSteps) -> Tensor:
    body, steps = stage.body, found.steps
    assert isinstance(body, Reduce)
    columns = stage.axes[-1]
    partial = _partial(stage, found)
    outer = stage.axes[:-1]
    terms: list[Term] = [partial[(*outer, columns + group * columns.extent)] for group in range(steps)]
    first = dict.fromkeys(body.axes, Int(0))  # where steps are left over, the only one
    whole = found.axis.extent // steps * steps
    for step in range(whole, found.axis.extent):
        terms.append(substitute(body.body, {**first, found.axis: Int(step)}))
    return replace(stage, body=functools.reduce(lambda left, right: left + right, terms))


def _partial(stage: Tensor, found: PackedSteps) -> Tensor:
    body = stage.body
    assert isinstance(body, Reduce)
    columns = stage.axes[-1].extent
    outer = tuple(replace(item) for item in stage.axes[:-1])
    lane = Axis(f"{found.axis.name}_{stage.axes[-1].name}", found.steps * columns)
    reduced = {item: replace(item) for item in body.axes}
    reduced[found.axis] = replace(found.axis, extent=found.axis.extent // found.steps)
    values: dict[Axis, Term] = {
        **dict(zip(stage.axes[:-1], outer, strict=True)),
        **reduced,
        stage.axes[-1]: lane % columns,
        found.axis: reduced[found.axis] * found.steps + lane // columns,
    }
    summed = Reduce("sum", substitute(body.body, values), tuple(reduced[item] for item in body.axes))
    return Tensor(f"{stage.name}.part", (*stage.shape[:-1], lane.extent), stage.dtype, (*outer, lane), summed)
