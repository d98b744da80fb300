"""Sketches for CPUs: from an expression to its schedule space, by rule.

The rules, in the order in which they are asked (Ansor's, for CPUs):

0. A 3x3 convolution has Winograd's algorithms beside the direct one (winograd/cpu.py, alternatives.py).
   A reduction that would leave vectors empty is cut in two along memory (vector_axis.py), or runs several of
   its steps side by side in one vector (lane_packing.py).
1. Elementwise stages are inlined into their consumers, but for long functions that several nests read. A
   stage that guards its reads (padding) before a reduction may also be materialized: a structural knob.
2. A reduction followed by an elementwise stage over the same elements is fused with it: that stage owns the
   outer loops. Otherwise the reduction gets a cache to write to, and its copy owns them.
3. Owner and reduction are tiled SSRSRS: two levels of space tiles (the outermost in parallel), outer
   reduction, space, inner reduction, and a tile of registers. Under "registers" the tile stays in
   registers over the whole reduction; under "local" it lives in a local buffer between outer reduction steps.
4. Constants that a reduction reads are packed in loop order.
5. Any other stage is split once: its innermost loop runs in vectors, its outer loops in parallel. An axis
   that crosses the vectors in memory, as in a transpose, is tiled with them.

Start at `cpu_space`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from boards.target import Target
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Tensor
from cross.schedule.alternatives import AlternativeSpaces
from cross.schedule.knobs import Knob, single, structural
from cross.schedule.lane_packing import with_packed_lanes
from cross.schedule.plan import Group, Plan, make_plan, operand_axes, packable, wide_axes
from cross.schedule.primitives import (
    CacheWrite,
    ComputeAt,
    HoldInRegisters,
    Inline,
    Pack,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from cross.schedule.reads import repeats_lanes
from cross.schedule.space import DIRECT, Constraint, ScheduleSpace, Values
from cross.schedule.tiles import MOST_FACTORS, divisors, factors, space_tiles, vector_tiles
from cross.schedule.tiling import StageKnobs
from cross.schedule.untuned import (
    IN_ORDER_CPUS,
    Core,
    Tile,
    core_of,
    fits_registers,
    inner_reduction,
    one_core_is_enough,
    untuned_tiles,
    vector_sizes,
)
from cross.schedule.vector_axis import crossed_axis, with_vector_axes
from cross.schedule.winograd.cpu import winograd_space, winograd_spaces

UNROLL_LIMITS = (0, 16, 64, 192)
LOCAL_TILE_BYTES = 128 * 1024
PARALLEL_ITERATIONS = 32  # per thread: enough to balance, few enough that starting one costs nothing
ONE_CORE_FLOPS = 4_000_000  # below, one core alone is a choice: waking others may cost more than they help
SHORT_REDUCTION = 32  # steps: of windows, such as 5 x 5 in a depthwise convolution


def cpu_space(operator: Operator, target: Target, *, winograd: bool = True) -> ScheduleSpace:
    """The schedule space of an operator for a CPU target.

    `winograd` allows algorithms that multiply less and round more: see docs/accuracy.md.
    """
    found = winograd_space(operator, target)
    if found is not None:
        return found
    direct = _direct_space(operator, target)
    others = winograd_spaces(operator, target) if winograd else {}
    return AlternativeSpaces(operator, target, {DIRECT: direct, **others}) if others else direct


def _direct_space(operator: Operator, target: Target) -> ScheduleSpace:
    program = with_packed_lanes(with_vector_axes(operator, target), target)
    plan = make_plan(program)
    constraints: list[Constraint] = []
    tiles = untuned_tiles(plan, target)
    knobs: list[Knob] = _structural_knobs(plan, target, tiles)
    if target.threads > 1 and operator.flops < ONE_CORE_FLOPS:
        knobs.append(
            structural("cores", ("all", "one"), int(one_core_is_enough(operator, plan, target, tiles)))
        )
    for group in plan.groups:
        knobs += _tile_knobs(plan, group, target, tiles)
        if group.reduction is not None:
            constraints += _constraints(plan, group, target)
    if any(group.reduction is not None for group in plan.groups):
        whole = target.cpu in IN_ORDER_CPUS or _reductions_are_short(plan)
        knobs.append(single("unroll", UNROLL_LIMITS, UNROLL_LIMITS[-1 if whole else 1]))
    build = partial(_schedule, plan, target)
    tiled = [_tiled(group) for group in plan.groups if group.reduction is not None]
    rules = tuple(constraints)
    return ScheduleSpace(operator, target, tuple(knobs), rules, build, program=program, tiled=tiled)


# ------------------------------------------------------------------------------------------------ knobs


def _structural_knobs(plan: Plan, target: Target, tiles: Mapping[str, Tile]) -> list[Knob]:
    knobs = []
    reductions = [group for group in plan.groups if group.reduction is not None]
    if plan.paddings:
        in_order = target.cpu in IN_ORDER_CPUS
        # words of bytes take a quarter of the time to copy, and tiles at borders more than their products
        words = any(group.byte_products for group in reductions)
        rows = not in_order and not words and _tiles_are_rows(tiles)
        inlined = int(rows or _reductions_are_short(plan))
        knobs.append(structural("padding", ("materialized", "inlined"), inlined))
    if any(wide_axes(group.owner.axes) for group in reductions):
        knobs.append(structural("tiling", ("registers", "local")))
    if any(len(wide_axes(group.owner.axes)) > 1 for group in reductions):
        slowest = max(tiles.values(), key=lambda tile: tile.cycles)
        order = int(slowest.vector_axis_first)
        knobs.append(structural("space_order", ("in order", "vector axis first"), order))
    if any(group.reduction and len(wide_axes(group.reduction.reduce_axes)) > 1 for group in reductions):
        knobs.append(structural("reduce_order", ("in order", "last axis first")))
    return knobs


def _reductions_are_short(plan: Plan) -> bool:
    """Whether every reduction sums up a window and little more, so that it may be written out whole.

    A short sum over one axis may not: with the registers full of accumulators, LLVM would spill them for the
    loads of later steps.
    """
    reductions = [group.reduction for group in plan.groups if group.reduction is not None]
    return all(
        len(wide_axes(reduction.reduce_axes)) > 1
        and math.prod(axis.extent for axis in reduction.reduce_axes) <= SHORT_REDUCTION
        for reduction in reductions
    )


def _tiles_are_rows(tiles: Mapping[str, Tile]) -> bool:
    """Whether the tiles lie in one row of an image: such ones skip the rows of a window that are padding.

    Tiles of several rows would ask for every element at the border, at every step of a long reduction.
    """
    return all(math.prod(tile.sizes[:-2]) == 1 for tile in tiles.values())


def _field(stage: str, axis: Axis, level: int) -> str:
    return f"{stage}.{axis.name}.{level}"


def _knob(stage: str, axis: Axis) -> str:
    return f"{stage}.{axis.name}"


def _tiled(group: Group) -> StageKnobs:
    """Which knobs tile which loop of a group with a reduction."""
    owner, reduction = group.owner, group.reduction
    assert reduction is not None
    return StageKnobs(
        owner,
        reduction,
        {axis: _knob(owner.name, axis) for axis in wide_axes(owner.axes)},
        {axis: _knob(group.reduction_name, axis) for axis in wide_axes(reduction.reduce_axes)},
    )


def _tile_knobs(plan: Plan, group: Group, target: Target, tiles: Mapping[str, Tile]) -> list[Knob]:
    owner = group.owner
    core = core_of(target, group.dtype, group.shared_steps)
    wide = wide_axes(owner.axes)
    if not wide:
        return _reduce_knobs(group, core)
    if group.reduction is None:
        return _elementwise_knobs(plan, owner, core.lanes)
    vectors = vector_sizes(plan, group, core)
    knobs = []
    for axis, size in zip(wide, tiles[owner.name].sizes, strict=True):
        inner = vectors if axis is wide[-1] else factors(axis.extent, MOST_FACTORS)
        fields = tuple(_field(owner.name, axis, level) for level in (1, 2, 3))
        choices = space_tiles(axis.extent, inner)
        knobs.append(Knob(_knob(owner.name, axis), fields, choices, preferred=(1, 1, size)))
    return knobs + _reduce_knobs(group, core)


def _elementwise_knobs(plan: Plan, owner: Tensor, lanes: int) -> list[Knob]:
    vector = wide_axes(owner.axes)[-1]
    crossed = crossed_axis(plan.body(owner), owner)
    knobs = []
    for axis, wanted in ((vector, 2 * lanes if crossed is None else lanes), (crossed, lanes)):
        if axis is None:
            continue
        sizes, field = vector_tiles(axis.extent, lanes), _field(owner.name, axis, 1)
        knobs.append(single(_knob(owner.name, axis), sizes, min(wanted, axis.extent), field))
    return knobs


def _reduce_knobs(group: Group, core: Core) -> list[Knob]:
    if group.reduction is None:
        return []
    knobs = []
    reduce = wide_axes(group.reduction.reduce_axes)
    for axis, wanted in zip(reduce, inner_reduction([axis.extent for axis in reduce], core), strict=True):
        name = group.reduction_name
        knobs.append(single(_knob(name, axis), divisors(axis.extent), wanted, _field(name, axis, 1)))
    return knobs


def _constraints(plan: Plan, group: Group, target: Target) -> list[Constraint]:
    owner = group.owner
    core = core_of(target, group.dtype, group.shared_steps)
    wide = wide_axes(owner.axes)
    if not wide:
        return []
    item_bytes = ITEM_BYTES[group.dtype]
    third = [_field(owner.name, axis, 3) for axis in wide]
    second = [_field(owner.name, axis, 2) for axis in wide]
    counts = np.array([core.vectors(size) for size in range(wide[-1].extent + 1)])
    operands, repeats = operand_axes(plan, group), repeats_lanes(plan, group)
    spare = np.array([core.spare(size, repeats) for size in range(wide[-1].extent + 1)])

    def fits_core(values: Values) -> NDArray[np.bool_]:
        sizes = [*(values[field] for field in third[:-1]), counts[values[third[-1]]]]
        return np.asarray(fits_registers(sizes, operands, core, spare[values[third[-1]]]))

    def fits_local(values: Values) -> NDArray[np.bool_]:
        size = item_bytes * np.prod([values[field] for field in (*second, *third)], axis=0)
        return np.asarray((values["tiling"] == 0) | (size <= LOCAL_TILE_BYTES))

    return [
        Constraint(
            f"{owner.name}.registers",
            f"accumulators and what feeds them fit in {target.vector_registers} registers",
            fits_core,
        ),
        Constraint(f"{owner.name}.local", f"a local tile takes at most {LOCAL_TILE_BYTES} bytes", fits_local),
    ]


# -------------------------------------------------------------------------------------------- schedules


def _schedule(plan: Plan, target: Target, structure: Mapping[str, int]) -> Schedule:
    padding_inlined = structure.get("padding", 0) == 1
    result: list[Primitive] = [Inline(name) for name in plan.inlined]
    result += [CacheWrite(group.owner.name) for group in plan.groups if group.cached]
    for padding in plan.paddings:
        if padding_inlined:
            result.append(Inline(padding.name))
        else:
            vector = 4 * target.vector_lanes(ITEM_BYTES[padding.dtype])
            result += _two_level(padding, target, vector, None)
    for group in plan.groups:
        if group.reduction is None:
            crossed = crossed_axis(plan.body(group.owner), group.owner)
            result += _two_level(group.owner, target, None, crossed)
        elif wide_axes(group.owner.axes):
            result += _multi_level(plan, group, structure, padding_inlined)
        else:
            result += _only_reduction(group)
    if structure.get("cores", 0) == 1:
        return tuple(primitive for primitive in result if not isinstance(primitive, Parallel))
    return tuple(result)


def _two_level(tensor: Tensor, target: Target, vector: int | None, crossed: Axis | None) -> list[Primitive]:
    """Rule 5: vectors innermost (a knob gives their size, where none is fixed), outer loops in parallel.

    An axis that crosses the vectors in memory is tiled with them.
    """
    wide = wide_axes(tensor.axes)
    if not wide:
        return []
    size = _field(tensor.name, wide[-1], 1) if vector is None else min(vector, wide[-1].extent)
    result: list[Primitive] = [Split(tensor.name, wide[-1].name, (size,))]
    if crossed is not None:
        result.append(Split(tensor.name, crossed.name, (_field(tensor.name, crossed, 1),)))
    loops = [f"{axis.name}.0" if axis in (wide[-1], crossed) else axis.name for axis in tensor.axes]
    if crossed is not None:
        result.append(Reorder(tensor.name, (*loops, f"{crossed.name}.1", f"{wide[-1].name}.1")))
    iterations = 1
    for axis, loop in zip(tensor.axes, loops, strict=True):
        if iterations >= PARALLEL_ITERATIONS * target.threads:
            break
        result.append(Parallel(tensor.name, loop))
        iterations *= axis.extent
    return [*result, Vectorize(tensor.name, f"{wide[-1].name}.1")]


def _only_reduction(group: Group) -> list[Primitive]:
    """A single element: nothing to tile but the reduction."""
    name = group.reduction_name
    assert group.reduction is not None
    result: list[Primitive] = []
    if group.owner.axes:
        result.append(ComputeAt(name, group.owner.name, group.owner.axes[-1].name, "register"))
    reduce = group.reduction.reduce_axes
    result += [Split(name, axis.name, (_field(name, axis, 1),)) for axis in wide_axes(reduce)]
    result += [Unroll(name, f"{axis.name}.1", "unroll") for axis in wide_axes(reduce)]
    loops = [*_levels(reduce, (0, 1)), *(axis.name for axis in group.reduction.axes)]
    return [*result, Reorder(name, tuple(loops))]


def _levels(axes: Sequence[Axis], levels: Sequence[int]) -> list[str]:
    """Loop names of split axes, level by level; an axis of extent 1 is not split and stands first."""
    narrow = [axis.name for axis in axes if axis.extent == 1 and 0 in levels]
    return narrow + [f"{axis.name}.{level}" for level in levels for axis in axes if axis.extent > 1]


def _multi_level(
    plan: Plan, group: Group, structure: Mapping[str, int], padding_inlined: bool
) -> list[Primitive]:
    """Rule 3: SSRSRS with the register tile innermost."""
    owner, name = group.owner, group.reduction_name
    reduction = group.reduction
    assert reduction is not None
    wide = wide_axes(owner.axes)
    ordered = [*wide[-1:], *wide[:-1]] if structure.get("space_order", 0) else wide
    narrow = [axis.name for axis in owner.axes if axis.extent == 1]
    result: list[Primitive] = [
        Split(owner.name, axis.name, tuple(_field(owner.name, axis, level) for level in (1, 2, 3)))
        for axis in wide
    ]
    loops = [*narrow, *_levels(ordered, (0, 1, 2)), *_levels(wide, (3,))]
    result.append(Reorder(owner.name, tuple(loops)))
    result += [Parallel(owner.name, loop) for loop in (*narrow, *_levels(ordered, (0,)))]
    result += [Unroll(owner.name, f"{axis.name}.3") for axis in wide[:-1]]
    result.append(Vectorize(owner.name, f"{wide[-1].name}.3"))
    local = structure.get("tiling", 0) == 1
    level = 1 if local else 2
    scope = "local" if local else "register"
    result.append(ComputeAt(name, owner.name, f"{ordered[-1].name}.{level}", scope))
    result += _reduction_loops(group, structure, local)
    body = plan.body(reduction, padding_inlined)
    return result + [Pack(tensor, name) for tensor in packable(plan, body)]


def _reduction_loops(group: Group, structure: Mapping[str, int], local: bool) -> list[Primitive]:
    reduction, name = group.reduction, group.reduction_name
    assert reduction is not None
    # The reduction has axes of its own; axis by axis they correspond to the owner's.
    space = list(zip(reduction.axes, group.owner.axes, strict=True))
    wide = [axis for axis, _ in space if axis.extent > 1]
    narrow = [axis.name for axis, _ in space if axis.extent == 1]
    reduce = list(reduction.reduce_axes)
    if structure.get("reduce_order", 0):
        reduce = [reduce[-1], *reduce[:-1]]
    result: list[Primitive] = [
        Split(name, axis.name, (_field(name, axis, 1),)) for axis in reduce if axis.extent > 1
    ]
    if local:
        result += [
            Split(name, axis.name, (_field(group.owner.name, owned, 3),))
            for axis, owned in space
            if axis.extent > 1
        ]
        outer = [f"{axis.name}.0" for axis in wide]
        tile = [f"{axis.name}.1" for axis in wide]
        result.append(Reorder(name, (*narrow, *_levels(reduce, (0,)), *outer, *_levels(reduce, (1,)), *tile)))
        result.append(HoldInRegisters(name, outer[-1]))
    else:
        tile = [axis.name for axis in wide]
        result.append(Reorder(name, (*narrow, *_levels(reduce, (0, 1)), *tile)))
    result += [Unroll(name, loop, "unroll") for loop in _levels(reduce, (1,))]
    result += [Unroll(name, loop) for loop in tile[:-1]]
    return [*result, Vectorize(name, tile[-1])]
