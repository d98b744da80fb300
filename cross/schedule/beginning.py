"""What an untuned program begins with: the tiles of a plan's reductions, and how many cores."""

from __future__ import annotations

import math
from collections.abc import Mapping

from boards.target import Target
from cross.expression.language.operator import Operator
from cross.schedule.cycles import Machine
from cross.schedule.plan import Group, Plan, operand_axes, wide_axes
from cross.schedule.reads import nest_of, repeats_lanes
from cross.schedule.tiles import vector_tiles
from cross.schedule.untuned import Core, Tile, best_register_tile, core_of, fastest_tile

ONE_CORE_PREFERRED_FLOPS = 200_000
ONE_CORE_PREFERRED_CYCLES = 7_000  # estimated, on one core; waking another takes half of that


def untuned_tiles(plan: Plan, target: Target) -> dict[str, Tile]:
    """For every reduction with space axes, by the name of its group's owner, the tile to begin with."""
    tiles = {}
    for group in plan.groups:
        wide = wide_axes(group.owner.axes)
        if group.reduction is None or not wide:
            continue
        core = core_of(target, group.owner.dtype)
        vectors = vector_sizes(plan, group, core)
        if core.in_order:
            sizes = best_register_tile(wide, core, vectors, operand_axes(plan, group))
            tiles[group.owner.name] = Tile(sizes, False, 0.0)
        else:
            nest, machine = nest_of(plan, group, core.lanes), Machine.of(target, core.lanes)
            tiles[group.owner.name] = fastest_tile(wide, core, vectors, nest, machine)
    return tiles


def vector_sizes(plan: Plan, group: Group, core: Core) -> list[int]:
    """What the vectorized loop of a reduction may be long; all of the axis where an operand fills lanes."""
    axis = wide_axes(group.owner.axes)[-1]
    if repeats_lanes(plan, group):
        return [axis.extent]
    return vector_tiles(axis.extent, core.lanes, masked=core.masks)


def one_core_is_enough(operator: Operator, plan: Plan, target: Target, tiles: Mapping[str, Tile]) -> bool:
    """Whether waking other cores would take longer than they save."""
    if operator.flops < ONE_CORE_PREFERRED_FLOPS:
        return True
    cycles = [tiles[group.owner.name].cycles for group in plan.groups if group.owner.name in tiles]
    if len(cycles) < len(plan.groups) or 0.0 in cycles:
        return False
    return target.threads * math.fsum(cycles) < ONE_CORE_PREFERRED_CYCLES
