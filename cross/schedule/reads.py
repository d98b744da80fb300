"""What a reduction reads, as the estimate of its cycles sees it (cycles.py)."""

from __future__ import annotations

import math

from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.tensor import Axis, Read, reads_in
from cross.expression.language.terms import walk
from cross.schedule.cycles import Nest, Operand
from cross.schedule.plan import Group, Plan, operands, packable, repeats, wide_axes
from cross.schedule.vector_axis import stride


def nest_of(plan: Plan, group: Group, lanes: int) -> Nest:
    """The reduction of a group as a nest to tile; `lanes`: elements of a vector register."""
    reduction = group.reduction
    assert reduction is not None
    wide = wide_axes(reduction.axes)
    packed = set(packable(plan, plan.body(reduction)))
    read = operands(plan, group).items()
    return Nest(
        extents=tuple(axis.extent for axis in wide),
        steps=math.prod(axis.extent for axis in reduction.reduce_axes),
        operands=tuple(_operand(item, axes, wide, lanes, name in packed) for (name, axes), item in read),
        stores_straddle=wide[-1].extent % lanes != 0,
    )


def _operand(read: Read, axes: tuple[int, ...], wide: list[Axis], lanes: int, packed: bool) -> Operand:
    used = {axis for index in read.indices for axis in walk(index) if isinstance(axis, Axis)}
    elements = math.prod(read.tensor.shape) / math.prod(wide[position].extent for position in axes)
    steps = [stride(read, axis) for axis in used if axis is not wide[-1]]
    straddles = not packed and any(step is None or step % lanes != 0 for step in steps)
    item_bytes = ITEM_BYTES[read.dtype]
    strides = tuple((stride(read, wide[position]) or 0) * item_bytes for position in axes)
    return Operand(axes, elements * item_bytes, straddles, strides, repeats(read, wide[-1]))


def repeats_lanes(plan: Plan, group: Group) -> bool:
    """Whether an operand of a reduction repeats its elements along the vector axis."""
    reduction = group.reduction
    assert reduction is not None
    axis = wide_axes(reduction.axes)[-1]
    return any(repeats(read, axis) for read in reads_in(plan.body(reduction)))
