"""The GPU sketch of chains: short sums are computed where the contraction behind them fetches them.

    for every block tile of a pointwise convolution
        for every step of its channels
            threads together: the depthwise convolution of the step's channels and the block's pixels, into
                shared memory, and the tile of the weights
            for every thread: registers += operand * operand

What the sums make so never reaches memory. Blocks that share pixels, each with channels of its own, compute
them again. Start at `fed_space`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace

from boards.target import GpuLimits, Target
from cross.expression.language.operator import Operator
from cross.schedule.chain import chain_of
from cross.schedule.gpu_cycles import FETCHED_BYTES, STEP_CYCLES, cycles
from cross.schedule.gpu_likely_tiles import block_shapes, knows, untuned_knobs
from cross.schedule.gpu_multi_level import (
    Contraction,
    contraction,
    contraction_tiles,
    is_contraction,
    multi_level,
)
from cross.schedule.gpu_tiles import unroll_knob
from cross.schedule.knobs import structural
from cross.schedule.plan import Group, Plan, make_plan
from cross.schedule.primitives import CacheWrite, Inline, Schedule
from cross.schedule.space import ScheduleSpace
from cross.schedule.winograd.stages import algorithms

LAUNCH_S = 3e-6  # between kernels: an estimate, measured on no GPU here
L2_SHARE = 0.5  # of the second cache, for what is handed over; the rest passes beside it: an estimate
LEAST_SAVED = 0.1
"""Of the time of separate launches: less is within the error of these estimates, a third on an H100 for one
contraction (tests/unit/cross/test_gpu_cycles.py)."""


class Fed(msgspec.Struct, frozen=True):
    """A contraction, and the groups whose results are operands of it and nothing else's."""

    plan: Plan
    item: Contraction
    producers: tuple[Group, ...]


def fed(operator: Operator, limits: GpuLimits) -> Fed | None:
    """The contraction of an operator that is fed by short sums; None for any other operator."""
    plan = make_plan(operator)
    *producers, last = plan.groups
    chain = chain_of(plan) if producers and is_contraction(plan, last) else None
    if chain is None or len(chain.links) < len(producers):
        return None
    item = contraction(plan, last, limits)
    operands = {operand.name for operand in item.operands}
    short = all(group.sums_window and group.owner.name in operands for group in producers)
    direct = all(link.reader is last for link in chain.links)
    if not short or not direct or item.is_padded:
        return None
    reads = {group.owner.name: _terms(group) for group in producers}
    return Fed(plan, replace(item, reads=reads), tuple(producers))


def _terms(group: Group) -> int:
    """Of a group's sums."""
    return math.prod(axis.extent for axis in group.reading.reduce_axes)


def fed_space(operator: Operator, target: Target, limits: GpuLimits) -> ScheduleSpace | None:
    """The space of one launch for a contraction that is fed by short sums; None for any other operator."""
    found = fed(operator, limits)
    if found is None:
        return None
    own, rules, unroll = untuned_knobs(found.item, target, limits)
    knobs = (structural("shared", ("operands",)), *own, unroll_knob(unroll))
    tiled = [contraction_tiles(found.item)]
    return ScheduleSpace(operator, target, knobs, tuple(rules), partial(_schedule, found), tiled=tiled)


def _schedule(found: Fed, _: Mapping[str, int]) -> Schedule:
    plan = found.plan
    inlined = (*plan.inlined, *(padding.name for padding in plan.paddings))
    cached = tuple(CacheWrite(group.owner.name) for group in plan.groups if group.cached)
    tiles = multi_level(plan, found.item, shared=True, producers=found.producers)
    return (*map(Inline, inlined), *cached, *tiles)


def saved_seconds(separate: Sequence[Operator], chain: Operator, target: Target) -> float:
    """What one launch for operators that feed one another is expected to save; 0.0: nothing, or not known to.

    By gpu_cycles.py, for whose devices alone it is known; nothing of chains was measured on a GPU.
    """
    found = None if target.gpu is None else fed(chain, target.gpu)
    if target.gpu is None or found is None or not knows(found.item, target):
        return 0.0
    if len(found.producers) + 1 < len(separate) or any(
        any(algorithms(item, target, flat=False)) for item in separate
    ):
        return 0.0
    handed_bytes = sum(group.owner.size_bytes for group in found.producers)
    apart_s = _seconds(replace(found.item, reads={}), target, target.gpu)
    for group in found.producers:
        read_bytes = _terms(group) * group.owner.size_bytes
        cycles_of_sums = STEP_CYCLES + read_bytes / (FETCHED_BYTES * target.gpu.compute_units)
        apart_s += LAUNCH_S + cycles_of_sums / target.clock_hz
    if target.memory_gbs is not None and handed_bytes > L2_SHARE * target.l2_bytes:
        apart_s += 2e-9 * handed_bytes / target.memory_gbs
    saved_s = apart_s - _seconds(found.item, target, target.gpu)
    return saved_s if saved_s > LEAST_SAVED * apart_s else 0.0


def _seconds(item: Contraction, target: Target, limits: GpuLimits) -> float:
    """What the untuned program of a contraction is estimated to take."""
    knobs, _, _ = untuned_knobs(item, target, limits)
    values = {
        name: np.array([value])
        for knob in knobs
        for name, value in zip(knob.fields, knob.choices[knob.nearest(knob.preferred)], strict=True)
    }
    return float(cycles(block_shapes(item, values), target)[0]) / target.clock_hz
