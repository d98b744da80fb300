"""The tiles of a contraction's untuned program on a GPU that gpu_cycles.py knows.

They are the best by its estimate of some thousand shapes without virtual threads; nothing is measured for it,
and a search has all tiles of the space. Start at `untuned_knobs`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.target import GpuLimits, Target
from cross.expression.language.tensor import Axis
from cross.schedule.gpu_cycles import WARP, BlockShapes, cycles
from cross.schedule.gpu_multi_level import (
    LEVELS,
    Contraction,
    block_sizes,
    contraction_knobs,
    predicted_registers,
    written_out,
)
from cross.schedule.gpu_operands import count, product
from cross.schedule.gpu_tiles import LARGEST_OUTER, USUAL_UNROLL
from cross.schedule.knobs import Knob
from cross.schedule.space import Constraint, Values

MOST_THREADS = 32  # of a block along an axis: a warp
FEWEST_THREADS = WARP  # of a block
SPARE_REGISTERS = 16  # of a thread: with them the programs for C2 and C6 on a Jetson Nano do not spill
STEPS = (4, 8, 16, 32, 64)  # of the reduction's longest axis between two barriers
WRITTEN_OUT = 1024  # multiply-adds at most: longer code was not measured
UNROLL = 512  # statements: the loops over a step's terms are written out in nearly all of these shapes

Choices = list[tuple[int, ...]]


def knows(item: Contraction, target: Target) -> bool:
    """Whether gpu_cycles.py is made for such a device and contraction: warps, shared memory, and arithmetic
    in float32, whatever stores the operands."""
    assert target.gpu is not None
    floats = all(operand.dtype in ("float32", "float16") for operand in item.operands)
    return bool(item.operands) and floats and target.gpu.warp_size == WARP


def untuned_knobs(
    item: Contraction, target: Target, limits: GpuLimits
) -> tuple[list[Knob], list[Constraint], int]:
    """The knobs of a contraction and their rules, and the unroll limit of its untuned program."""
    knobs, rules = contraction_knobs(item, limits)
    if not knows(item, target):
        return knobs, rules, USUAL_UNROLL
    return likely_tiles(item, target, knobs, rules), rules, UNROLL


def likely_tiles(
    item: Contraction, target: Target, knobs: Sequence[Knob], constraints: Sequence[Constraint]
) -> list[Knob]:
    """The knobs of a contraction, those of its tiles with the likely best ones as preferred ones."""
    usual = {knob.name: [knob.choices[knob.nearest(knob.preferred)]] for knob in knobs}
    weighed = {knob.name: _choices(item, knob) or usual[knob.name] for knob in knobs}
    values = _combined([(knob.fields, weighed[knob.name]) for knob in knobs])
    values |= {name: np.full(count(values), value) for name, value in (("shared", 0), ("unroll", UNROLL))}
    valid = np.all([constraint.holds(values) for constraint in constraints], axis=0)
    valid &= product(values, item.threads) >= FEWEST_THREADS
    valid &= _fits_with_spare(item, target, values)
    unbounded = np.full(count(values), np.iinfo(np.int64).max)
    valid &= written_out(item, values, 1, unbounded) <= WRITTEN_OUT
    if not valid.any():
        return list(knobs)
    best = int(np.where(valid, cycles(block_shapes(item, values), target), np.inf).argmin())
    return [replace(knob, preferred=tuple(int(values[name][best]) for name in knob.fields)) for knob in knobs]


def _choices(item: Contraction, knob: Knob) -> Choices:
    """What is weighed of a knob; nothing where the usual choice stays."""
    owner, others = item.group.owner.name, sorted(item.space[:-1], key=lambda axis: axis.extent)
    for axis in (item.space[-1], *others[-2:]):
        if knob.name == f"{owner}.{axis.name}":
            is_last = axis is item.space[-1]
            vector = max(choice[3] for choice in knob.choices) if is_last else 1
            rows = LARGEST_OUTER if others and axis is others[-1] else 1
            return [
                choice
                for choice in knob.choices
                if choice[0] == 1 and choice[1] <= MOST_THREADS and choice[2] <= rows and choice[3] == vector
            ]
    deepest = max(item.reduce, key=lambda axis: axis.extent, default=None)
    if deepest is not None and knob.name == f"{item.group.reduction_name}.{deepest.name}":
        return [choice for choice in knob.choices if choice[1] == 1 and choice[0] in STEPS]
    return []


def _fits_with_spare(item: Contraction, target: Target, values: Values) -> NDArray[np.bool_]:
    assert target.gpu is not None
    most = target.gpu.registers_of_a_launch
    needed = product(values, item.threads) * (predicted_registers(item, values) + SPARE_REGISTERS)
    return needed <= most if most else np.ones(len(needed), np.bool_)


def _combined(options: Sequence[tuple[tuple[str, ...], Choices]]) -> dict[str, NDArray[np.int64]]:
    """Every combination of the choices of some knobs, by field."""
    places = np.indices([len(choices) for _, choices in options]).reshape(len(options), -1)
    return {
        name: column[place]
        for (fields, choices), place in zip(options, places, strict=True)
        for name, column in zip(fields, np.array(choices, np.int64).T, strict=True)
    }


def block_shapes(item: Contraction, values: Values) -> BlockShapes:
    """What the cycles of N configurations depend on."""

    def tile(axis: Axis, levels: Sequence[int]) -> NDArray[np.int64]:
        return product(values, [item.field(axis, level) for level in levels])

    of_thread, last, one = (1, 3, 4), item.space[-1], np.ones(count(values), np.int64)
    sizes, outside = (
        block_sizes(item, values),
        [axis for axis in item.group.owner.axes if axis not in item.space],
    )
    along = [-(-axis.extent // tile(axis, range(1, LEVELS + 1))) for axis in item.space]
    steps = {axis: product(values, [item.step(axis, level) for level in (1, 2)]) for axis in item.reduce}
    return BlockShapes(
        rows=math.prod((tile(axis, of_thread) for axis in item.space[:-1]), start=one),
        columns=tile(last, of_thread),
        vector=values[item.field(last, LEVELS)],
        threads=product(values, item.threads),
        threads_along=values[item.field(last, 2)],
        depth=math.prod(steps.values(), start=one),
        steps=math.prod((-(-axis.extent // step) for axis, step in steps.items()), start=one),
        bytes=np.asarray(sum(operand.region_bytes(sizes) for operand in item.operands)),
        fetched_bytes=np.asarray(
            sum(operand.region_bytes(sizes) * item.reads.get(operand.name, 1) for operand in item.operands)
        ),
        registers=predicted_registers(item, values),
        blocks=math.prod(along, start=one * math.prod(axis.extent for axis in outside)),
    )
