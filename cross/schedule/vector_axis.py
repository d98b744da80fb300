"""Which reductions run in vectors along the axis they reduce.

The innermost space axis is the one that runs in vectors. Where it is short, or where operands are strided
along it, but some reduction axis is contiguous in memory, the reduction is cut in two (rfactor): the
partial results of one element then lie side by side and fill the vector.
"""

from __future__ import annotations

import itertools
import math

from boards.target import Target
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.naming import inlined_body
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Read, Tensor, reads_in
from cross.expression.language.terms import Binary, Int, Term, walk
from cross.expression.rewrites.rfactor import rfactor
from cross.schedule.lane_packing import packed_steps
from cross.schedule.plan import guards_reads

MOST_PARTIAL_VECTORS = 2  # of partial sums side by side
GAIN = 1.5
"""How much better vectors must be filled for a reduction to be cut in two. It stands for what the count
leaves out, an estimate: too low, short reductions become slower; too high, long ones leave vectors empty."""


def with_vector_axes(operator: Operator, target: Target) -> Operator:
    """The operator with every reduction cut in two that would otherwise leave vectors empty."""
    for stage in operator.stages:
        choice = _choice(operator, stage, target)
        if choice is not None:
            axis, factor = choice
            changed = rfactor(operator, stage, axis, factor)
            # Stages are new tensors now; the partial stage has a full vector axis, so this ends.
            return with_vector_axes(changed, target)
    return operator


def _choice(operator: Operator, stage: Tensor, target: Target) -> tuple[Axis, int] | None:
    if stage.body is None or not stage.reduce_axes or packed_steps(stage, target) is not None:
        return None
    lanes = target.vector_lanes(ITEM_BYTES[stage.dtype])
    reads = _reads(operator, stage)
    constants = {operator.inputs[position] for position in operator.constants}
    length = math.prod(axis.extent for axis in stage.reduce_axes)
    free = [read for read in reads if not _is_packable(read, constants)]
    now = _filled_now(stage, free, lanes)
    best: tuple[Axis, int] | None = None
    best_filled = now * GAIN
    for axis, vectors in itertools.product(stage.reduce_axes, range(1, MOST_PARTIAL_VECTORS + 1)):
        factor = lanes * vectors
        # A constant can be packed along the partial results only where they divide its dimension.
        operands = reads if axis.extent % factor else free
        if axis.extent < factor or not _contiguous(operands, axis):
            continue
        steps = length / axis.extent * -(-axis.extent // factor) * vectors
        # One step a vector of partial results, and one a partial result to combine them.
        filled = length / (lanes * (steps + factor))
        if filled > best_filled:
            best, best_filled = (axis, factor), filled
    return best


def crossed_axis(body: Term, owner: Tensor) -> Axis | None:
    """The axis along which an operand is contiguous that is strided along the innermost one: a transpose.

    Elements next to each other there share cache lines, so it is tiled together with the innermost axis.
    """
    wide = [axis for axis in owner.axes if axis.extent > 1]
    reads = reads_in(body)
    for axis in wide[:-1]:
        for read in reads:
            if stride(read, axis) == 1 and stride(read, wide[-1]) not in (0, 1, None):
                return axis
    return None


def _filled_now(stage: Tensor, reads: list[Read], lanes: int) -> float:
    """Share of the lanes that the innermost space axis fills; one lane where operands are strided."""
    wide = [axis for axis in stage.axes if axis.extent > 1]
    if not wide or any(stride(read, wide[-1]) not in (0, 1) for read in reads):
        return 1.0 / lanes
    vectors = -(-wide[-1].extent // lanes)
    return wide[-1].extent / (vectors * lanes)


def _reads(operator: Operator, stage: Tensor) -> list[Read]:
    """Reads of the stage with elementwise producers inlined, as the sketch will see them."""
    inlined = {
        tensor: tensor
        for tensor in operator.stages
        if not tensor.reduce_axes and tensor is not operator.output and not guards_reads(tensor)
    }
    body = inlined_body(stage, inlined.get)
    return reads_in(body)


def _is_packable(read: Read, constants: set[Tensor]) -> bool:
    """Packed constants are contiguous along whatever axis runs innermost."""
    plain = all(isinstance(index, Axis) for index in read.indices)
    return read.tensor in constants and plain and len(set(read.indices)) == len(read.indices)


def _contiguous(reads: list[Read], axis: Axis) -> bool:
    strides = [stride(read, axis) for read in reads]
    return 1 in strides and all(stride in (0, 1) for stride in strides)


def stride(read: Read, axis: Axis) -> int | None:
    """Elements between the reads of two neighbouring values of an axis; None where they differ."""
    total, scale = 0, 1
    for index, extent in zip(reversed(read.indices), reversed(read.tensor.shape), strict=True):
        step = coefficient(index, axis)
        if step is None:
            return None
        total += step * scale
        scale *= extent
    return total


def coefficient(index: Term, axis: Axis) -> int | None:
    """Coefficient of an axis in an affine index; None where the index is not affine in it."""
    if index is axis:
        return 1
    if not any(term is axis for term in walk(index)):
        return 0
    if isinstance(index, Binary):
        left, right = coefficient(index.left, axis), coefficient(index.right, axis)
        if left is not None and right is not None and index.op in ("+", "-"):
            return left + (right if index.op == "+" else -right)
        if index.op == "*" and isinstance(index.right, Int) and left is not None:
            return left * int(index.right.value)
    return None
