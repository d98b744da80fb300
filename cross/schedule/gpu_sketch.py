"""Sketches for GPUs: from an expression to its schedule space, by rule.

The rules, in the order in which they are asked (Ansor's, for GPUs):

1. Stages are inlined and grouped as for CPUs (plan.py): a reduction and the elementwise stage that follows it
   are one kernel; every group of stages is a launch of its own.
2. A reduction that combines tensors and reads elements again is tiled SSSRRSRS (gpu_multi_level.py). Where
   the board has shared memory on its chip, blocks fetch its operands' tiles, padding included, or read them
   where they are: a structural knob. Otherwise (on a Mali) constants are packed in loop order.
3. Any other stage is split over blocks and threads (gpu_two_level.py), each thread a vector of elements.
4. Other algorithms: stages that work row by row, as a softmax's, are one launch (gpu_rows.py), in which the
   threads of a block share a sum of many terms. Without shared memory on the chip such a sum is cut in two: a
   first launch makes partial sums and a second adds them up.
5. A convolution has Winograd's algorithms beside the direct one (winograd/gpu.py).

What no launch may exceed (boards.target.GpuLimits) is a constraint of the space. Start at `gpu_space`.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping

import msgspec

from boards.target import GpuLimits, Target
from cross.errors import ScheduleError
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read, Tensor
from cross.expression.language.terms import walk
from cross.expression.rewrites.rfactor import rfactor
from cross.schedule.alternatives import AlternativeSpaces
from cross.schedule.gpu_chain import fed_space
from cross.schedule.gpu_likely_tiles import untuned_knobs
from cross.schedule.gpu_multi_level import (
    Contraction,
    contraction,
    contraction_tiles,
    is_contraction,
    multi_level,
)
from cross.schedule.gpu_rows import rows_knobs, rows_of, rows_schedule, without_kept
from cross.schedule.gpu_tiles import USUAL_UNROLL, unroll_knob
from cross.schedule.gpu_two_level import (
    PREFERRED_THREADS,
    THREADS_OF_A_SUM,
    launch,
    partial_results,
    reduction_in_threads,
    two_level,
    two_level_knobs,
)
from cross.schedule.knobs import Knob, structural
from cross.schedule.plan import Group, Plan, make_plan
from cross.schedule.primitives import CacheWrite, Inline, Primitive, Schedule
from cross.schedule.space import DIRECT, Constraint, ScheduleSpace
from cross.schedule.tiling import StageKnobs
from cross.schedule.winograd.gpu import gpu_winograd_spaces

SHORTEST_SHARED_SUM = 32  # terms, below which one thread does not take long


def gpu_space(operator: Operator, target: Target, *, winograd: bool = True) -> ScheduleSpace:
    """The schedule space of an operator for an OpenCL or CUDA target.

    `winograd` allows algorithms that multiply less and round more: see docs/accuracy.md.

    Raises:
        ScheduleError: the target is no GPU.
    """
    if target.gpu is None:
        raise ScheduleError(f"target {target.name} is of kind {target.kind!r}, expected one with GPU limits")
    first = _rows_spaces(operator, target, target.gpu)
    if (chain := fed_space(operator, target, target.gpu)) is not None:
        first = {"in one launch": chain}
    others = {} if target.gpu.shared_memory_on_chip else _in_two_launches(operator, target, target.gpu)
    if winograd:
        others |= gpu_winograd_spaces(operator, target, target.gpu)
    direct = _space(operator, operator, target, target.gpu)
    found = {**first, DIRECT: direct, **others}
    return AlternativeSpaces(operator, target, found) if len(found) > 1 else direct


def _rows_spaces(operator: Operator, target: Target, limits: GpuLimits) -> dict[str, ScheduleSpace]:
    """The spaces in which all stages are one launch, by algorithm: one for each number of threads that share
    a row. First that with about as many threads as each of them has terms of a sum.
    """
    found: dict[int, ScheduleSpace] = {}
    whole = make_plan(operator)
    if not limits.shared_memory_on_chip or any(is_contraction(whole, group) for group in whole.groups):
        return {}
    for threads in THREADS_OF_A_SUM:
        program, lanes = _with_partial_sums(operator, limits, threads)
        plan = make_plan(program)
        if not lanes and len(plan.groups) == 1:
            continue  # one launch as it is
        for way in (plan, without_kept(plan)):
            rows = rows_of(way, max(lanes, 1))
            knobs, constraints = ([], []) if rows is None else rows_knobs(rows, limits)
            if rows is not None and knobs:
                every = (*knobs, unroll_knob())
                build = functools.partial(rows_schedule, rows)
                found[lanes] = ScheduleSpace(
                    operator, target, every, tuple(constraints), build, program=program
                )
                break
    longest = max((axis.extent for stage in operator.stages for axis in stage.reduce_axes), default=0)
    order = sorted(found, key=lambda lanes: abs(math.log2(max(lanes, 1) ** 2 / max(longest, 1))))
    return {f"across {lanes} threads" if lanes else "in one launch": found[lanes] for lanes in order}


def _in_two_launches(operator: Operator, target: Target, limits: GpuLimits) -> dict[str, ScheduleSpace]:
    """The space with long sums cut in two, each part a launch of its own."""
    program, parts = _with_partial_sums(operator, limits, PREFERRED_THREADS)
    return {"in two launches": _space(operator, program, target, limits)} if parts else {}


def _with_partial_sums(operator: Operator, limits: GpuLimits, threads: int) -> tuple[Operator, int]:
    """The operator with its long sums cut in two, and the most partial results of one; 0: it has none."""
    found, most = operator, 0
    plan = make_plan(operator)
    sums = {
        group.reduction.name
        for group in plan.groups
        if group.reduction is not None and not is_contraction(plan, group)
    }
    for name, stage in zip(plan.stages, operator.stages, strict=True):
        longest = max(stage.reduce_axes, key=lambda axis: axis.extent, default=None)
        if name not in sums or longest is None or longest.extent < SHORTEST_SHARED_SUM:
            continue
        # rfactor renews the stages behind the one it cuts, not their axes.
        current = next(item for item in found.stages if longest in item.reduce_axes)
        count = partial_results(longest.extent, limits, threads)
        found, most = rfactor(found, current, longest, count), max(most, count)
    return found, most


class _Sketch(msgspec.Struct, frozen=True):
    """The rule that applies to every group of a plan."""

    plan: Plan
    contractions: Mapping[str, Contraction]  # by owner

    def fetched(self) -> set[str]:
        """The paddings that one contraction alone reads, which can compute them in shared memory."""
        found = set()
        for padding in self.plan.paddings:
            readers = [group for group in self.plan.groups if self._reads(group, padding.name)]
            item = self.contractions.get(readers[0].owner.name) if len(readers) == 1 else None
            if item is not None and padding.name in {operand.name for operand in item.operands}:
                found.add(padding.name)
        return found

    def _reads(self, group: Group, name: str) -> bool:
        stages = [stage for stage in (group.owner, group.reduction) if stage is not None]
        return any(
            isinstance(term, Read) and term.tensor.name == name
            for stage in stages
            for term in walk(self.plan.body(stage))
        )


def _sketch(plan: Plan, limits: GpuLimits) -> _Sketch:
    contractions = {
        group.owner.name: contraction(plan, group, limits)
        for group in plan.groups
        if is_contraction(plan, group)
    }
    return _Sketch(plan, contractions)


def _space(operator: Operator, program: Operator, target: Target, limits: GpuLimits) -> ScheduleSpace:
    plan = make_plan(program)
    sketch = _sketch(plan, limits)
    knobs = _structural_knobs(sketch)
    constraints: list[Constraint] = []
    tiled: list[StageKnobs] = []
    unroll = USUAL_UNROLL

    def add(more: tuple[list[Knob], list[Constraint]]) -> None:
        knobs.extend(more[0])
        constraints.extend(more[1])

    def add_two_level(owner: Tensor, reduction: Tensor | None, is_padding: bool = False) -> None:
        add(two_level_knobs(owner, limits))
        if owner.axes:
            tiled.append(StageKnobs(owner, reduction, launch=launch(owner), is_padding=is_padding))

    for padding in plan.paddings:
        add_two_level(padding, None, is_padding=True)
    for group in plan.groups:
        item = sketch.contractions.get(group.owner.name)
        if item is not None:
            own, rules, unroll = untuned_knobs(item, target, limits)
            add((own, rules))
            tiled.append(contraction_tiles(item))
        else:
            add_two_level(group.owner, group.reduction)
    if any(group.reduction is not None for group in plan.groups):
        knobs.append(unroll_knob(unroll))
    build = functools.partial(_schedule, sketch)
    return ScheduleSpace(
        operator, target, tuple(knobs), tuple(constraints), build, program=program, tiled=tiled
    )


def _structural_knobs(sketch: _Sketch) -> list[Knob]:
    knobs = []
    fetches = any(item.operands for item in sketch.contractions.values())
    if fetches:
        knobs.append(structural("shared", ("operands", "nothing")))
    if sketch.plan.paddings:
        # Where every thread reads the data again and again, checking edges each time costs more than a copy.
        inlined = int(fetches or not sketch.contractions)
        knobs.append(structural("padding", ("materialized", "inlined"), inlined))
    return knobs


def _schedule(sketch: _Sketch, structure: Mapping[str, int]) -> Schedule:
    plan = sketch.plan
    shared = structure.get("shared", 1) == 0
    padded_within = structure.get("padding", 0) == 1
    fetched = sketch.fetched() if shared and padded_within else set()
    inlined = {padding.name for padding in plan.paddings if padded_within} - fetched
    result: list[Primitive] = [Inline(name) for name in (*plan.inlined, *sorted(inlined))]
    result += [CacheWrite(group.owner.name) for group in plan.groups if group.cached]
    for padding in plan.paddings:
        if not padded_within:
            result += two_level(padding)
    for group in plan.groups:
        name = group.owner.name
        if name in sketch.contractions:
            result += multi_level(plan, sketch.contractions[name], shared, inlined, fetched)
        elif group.reduction is None:
            result += two_level(group.owner)
        else:
            result += reduction_in_threads(group)
    return tuple(result)
