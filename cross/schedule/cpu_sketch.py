"""Sketches for CPUs: from an expression to its schedule space, by rule.

The rules, in the order in which they are asked (Ansor's, for CPUs):

0. A convolution has Winograd's algorithms beside the direct one (winograd/cpu.py, alternatives.py), and
   products of bytes have sums in tile registers beside those in vectors (matrix_tiles.py).
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
5. Reductions one behind the other may be computed block by block of the last one, by a knob (chain.py);
   also step by step in such blocks, where a window slides over what the first one computes. So may reductions
   of rows and what is computed of these element by element.
6. Any other stage is split once: its innermost loop runs in vectors, its outer loops in parallel. An axis
   that crosses the vectors in memory, as in a transpose, is tiled with them.

Start at `cpu_space`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.target import IN_ORDER_CPUS, Target
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Tensor, reads_in
from cross.schedule import matrix_tiles
from cross.schedule.alternatives import AlternativeSpaces
from cross.schedule.chain import Chain, chain_of
from cross.schedule.chain_cost import Block, best_block, block_sizes
from cross.schedule.core import FEW_REGISTERS, Core, core_of, fits_registers
from cross.schedule.cpu_schedule import BLOCKS, NESTS, SLIDING, cpu_schedule, tile_field, unroll_knob
from cross.schedule.cycles import Machine
from cross.schedule.in_order_tiles import overlap_of
from cross.schedule.knobs import Knob, single, structural
from cross.schedule.lane_packing import with_packed_lanes
from cross.schedule.matrix_tiles import tiled_groups
from cross.schedule.plan import Group, Plan, calls_long_function, make_plan, operand_axes, wide_axes
from cross.schedule.reads import repeats_lanes
from cross.schedule.reduction_steps import (
    SHORT_STEPS_WRITTEN_OUT,
    USUALLY_WRITTEN_OUT,
    inner_reduction,
    usually_written_out,
    written_out,
)
from cross.schedule.space import DIRECT, Constraint, ScheduleSpace, Values
from cross.schedule.tiles import MOST_FACTORS, divisors, factors, space_tiles, vector_tiles
from cross.schedule.tiling import StageKnobs
from cross.schedule.untuned import (
    Tile,
    combines_lanes,
    is_worth_a_copy,
    one_core_is_enough,
    program_cycles,
    untuned_tiles,
    vector_sizes,
)
from cross.schedule.vector_axis import crossed_axis, with_vector_axes
from cross.schedule.winograd.cpu import winograd_space, winograd_spaces

UNROLL_LIMITS = (0, USUALLY_WRITTEN_OUT, SHORT_STEPS_WRITTEN_OUT)  # and what the core takes at most
LOCAL_TILE_BYTES = 128 * 1024
BLOCK_BYTES = 1 << 20  # of what a chain hands over: it is on the stack of a thread, which has a few MiB
ONE_CORE_FLOPS = 4_000_000  # below, one core alone is a choice: waking others may cost more than they help
MOST_TOGETHER = 4
"""Vectors in the body of a loop without a sum, as many as the knob has: where a core in order would wait for
each instruction, and of long functions where few registers hold no constants (scheduling/side_by_side.py). In
place of 2, a ViT's attention over 197 tokens takes 7.00 and not 7.45 million cycles by the issue model of a
Cortex-A53, and is 1.02 times as fast with AVX2 on a Zen 3."""
TILES = "tiles"  # the algorithm that sums in tile registers


def cpu_space(operator: Operator, target: Target, *, winograd: bool = True) -> ScheduleSpace:
    """The schedule space of an operator for a CPU target.

    `winograd` allows algorithms that multiply less and round more: see docs/accuracy.md.
    """
    found = winograd_space(operator, target)
    if found is not None:
        return found
    direct = _direct_space(operator, target, with_packed_lanes(with_vector_axes(operator, target), target))
    others = winograd_spaces(operator, target) if winograd else {}
    in_tiles = tiled_groups(make_plan(operator), target)
    if in_tiles:
        others[TILES] = _direct_space(operator, target, operator, in_tiles)
    return AlternativeSpaces(operator, target, {DIRECT: direct, **others}) if others else direct


def _direct_space(
    operator: Operator, target: Target, program: Operator, in_tiles: frozenset[str] = frozenset()
) -> ScheduleSpace:
    """The space of the sums as the program has them, those of the owners `in_tiles` in tile registers."""
    plan = make_plan(program)
    constraints: list[Constraint] = []
    tiles = untuned_tiles(plan, target)
    for group in plan.groups:
        if group.owner.name in in_tiles:
            tiles[group.owner.name] = matrix_tiles.fastest_tile(plan, group, target)
    chain = None if in_tiles else chain_of(plan)
    block = None if chain is None else best_block(plan, chain, target, tiles)
    knobs: list[Knob] = _structural_knobs(plan, target, tiles, in_tiles)
    if target.threads > 1 and operator.flops < ONE_CORE_FLOPS:
        knobs.append(
            structural("cores", ("all", "one"), int(one_core_is_enough(operator, plan, target, tiles)))
        )
    for group in plan.groups:
        if group.owner.name in in_tiles:
            knobs += _matrix_tile_knobs(group, tiles[group.owner.name])
            constraints.append(_fits_tile_registers(group))
            continue
        knobs += _tile_knobs(plan, group, target, tiles)
        if chain is not None and chain.of_rows and group is chain.last:
            knobs += _row_knobs(chain)
        if group.reduction is not None:
            constraints += _constraints(plan, group, target)
    if chain is not None:
        knobs = [*_chain_knobs(chain, block, tiles), *knobs]
        constraints += _chain_constraints(chain)
    if chain is not None and block is not None:
        wanted = _in_blocks(chain, block, tiles)
        knobs = [replace(knob, preferred=wanted.get(knob.name, knob.preferred)) for knob in knobs]
    if any(group.reduction is not None and group.owner.name not in in_tiles for group in plan.groups):
        cores = [core_of(target, group.dtype, group.byte_products) for group in plan.groups]
        limits = (*UNROLL_LIMITS, max(map(written_out, cores)))
        plain = all(_is_plain(plan, group, target, tiles) for group in plan.reductions)
        usual = usually_written_out(target, plain=plain)
        for name, whole in sorted(
            {(unroll_knob(plan, group), group.sums_window) for group in plan.reductions}
        ):
            whole = whole or target.cpu in IN_ORDER_CPUS
            knobs.append(single(name, limits, limits[-1] if whole else usual))
    build = partial(cpu_schedule, plan, chain, target, in_tiles=in_tiles)
    tiled = [_tiled(group) for group in plan.groups if group.reduction is not None]
    rules = tuple(constraints)
    space = ScheduleSpace(operator, target, tuple(knobs), rules, build, program=program, tiled=tiled)
    space.cycles = program_cycles(plan, target, tiles)
    return space


# ------------------------------------------------------------------------------------------------ knobs


def _structural_knobs(
    plan: Plan, target: Target, tiles: Mapping[str, Tile], in_tiles: frozenset[str]
) -> list[Knob]:
    """Tile registers are loaded from memory as it is, and hold the words of a reduction's last axis."""
    knobs = []
    reductions = plan.reductions
    if plan.paddings and not in_tiles:
        inlined = inlines_padding(plan, target, tiles)
        knobs.append(structural("padding", ("materialized", "inlined"), int(inlined)))
    if any(wide_axes(group.owner.axes) for group in reductions if group.owner.name not in in_tiles):
        knobs.append(structural("tiling", ("registers", "local")))
    if any(len(wide_axes(group.owner.axes)) > 1 for group in reductions):
        slowest = max(tiles.values(), key=lambda tile: tile.cycles)
        order = int(slowest.vector_axis_first)
        knobs.append(structural("space_order", ("in order", "vector axis first"), order))
    long = any(group.reduction and len(wide_axes(group.reduction.reduce_axes)) > 1 for group in reductions)
    if long and not in_tiles:
        knobs.append(structural("reduce_order", ("in order", "last axis first")))
    return knobs


def inlines_padding(plan: Plan, target: Target, tiles: Mapping[str, Tile]) -> bool:
    """Whether the untuned program with these tiles asks for padding where it reads, and copies no image."""
    in_order = target.cpu in IN_ORDER_CPUS
    # words of bytes take a quarter of the time to copy, and tiles at borders more than their products
    words = any(group.byte_products for group in plan.reductions)
    inlined = plan.sums_windows or (not in_order and not words and _tiles_are_rows(tiles))
    return inlined and not (in_order and is_worth_a_copy(plan, target, tiles))


def _is_plain(plan: Plan, group: Group, target: Target, tiles: Mapping[str, Tile]) -> bool:
    """Whether a reduction is of floats in whole vectors, and of no image that may be padded where it is read.

    What sums windows alone, as a depthwise convolution, may read one: it is always written out.
    """
    assert group.reduction is not None
    if combines_lanes(group, core_of(target, group.dtype)):
        return True  # a vector, halved in registers
    tile, lanes = tiles.get(group.owner.name), target.vector_lanes(ITEM_BYTES[group.dtype])
    if group.dtype not in FLOATS or tile is None or tile.sizes[-1] % lanes:
        return False
    read = {item.tensor.name for item in reads_in(plan.body(group.reduction))}
    return group.sums_window or read.isdisjoint(item.name for item in plan.paddings)


def _tiles_are_rows(tiles: Mapping[str, Tile]) -> bool:
    """Whether the tiles lie in one row of an image: such ones skip the rows of a window that are padding.

    Tiles of several rows would ask for every element at the border, at every step of a long reduction.
    """
    return all(math.prod(tile.sizes[:-2]) == 1 for tile in tiles.values())


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
    core = core_of(target, group.dtype, group.byte_products)
    wide = wide_axes(owner.axes)
    if not wide:
        return _reduce_knobs(plan, group, core, (1,), 0.0)
    if group.reduction is None:
        return _elementwise_knobs(plan, owner, core)
    vectors = vector_sizes(plan, group, core)
    knobs = []
    tile = tiles[owner.name]
    for place, axis in enumerate(wide):
        inner = vectors if axis is wide[-1] else factors(axis.extent, MOST_FACTORS)
        fields = tuple(tile_field(owner.name, axis, level) for level in (1, 2, 3))
        choices = space_tiles(axis.extent, inner)
        knobs.append(Knob(_knob(owner.name, axis), fields, choices, preferred=tile.choice(place)))
    counts = (*tile.sizes[:-1], core.vectors(tile.sizes[-1]))
    step_cycles = math.prod(counts) / Machine.of(target, core.lanes).rate
    return knobs + _reduce_knobs(plan, group, core, counts, step_cycles)


def _elementwise_knobs(plan: Plan, owner: Tensor, core: Core) -> list[Knob]:
    vector, lanes = wide_axes(owner.axes)[-1], core.lanes
    crossed = crossed_axis(plan.body(owner), owner)
    long = calls_long_function(plan.body(owner)) and core.registers <= FEW_REGISTERS
    together = _together(vector.extent, lanes, MOST_TOGETHER if core.in_order or long else 2)
    knobs = []
    for axis, wanted in ((vector, together * lanes if crossed is None else lanes), (crossed, lanes)):
        if axis is None:
            continue
        sizes, field = vector_tiles(axis.extent, lanes), tile_field(owner.name, axis, 1)
        knobs.append(single(_knob(owner.name, axis), sizes, min(wanted, axis.extent), field))
    return knobs


def _together(extent: int, lanes: int, most: int) -> int:
    """Vectors in a loop's body, from 2 on. An iteration is taken to last as long as one vector more, a choice
    by which little is computed twice at the end of short rows."""
    return min(range(2, most + 1), key=lambda count: -(-extent // (count * lanes)) * (count + 1))


def _reduce_knobs(
    plan: Plan, group: Group, core: Core, counts: Sequence[int], step_cycles: float
) -> list[Knob]:
    if group.reduction is None:
        return []
    knobs = []
    reduce = wide_axes(group.reduction.reduce_axes)
    overlap = overlap_of(plan, group) if core.in_order else None
    extents, multiplies = [axis.extent for axis in reduce], len(operand_axes(plan, group)) > 1
    sizes = inner_reduction(extents, core, counts, step_cycles, overlap, multiplies=multiplies)
    name = group.reduction_name
    if combines_lanes(group, core):
        sizes = [core.lanes]
    for axis, wanted in zip(reduce, sizes, strict=True):
        knobs.append(single(_knob(name, axis), divisors(axis.extent), wanted, tile_field(name, axis, 1)))
    return knobs


def _constraints(plan: Plan, group: Group, target: Target) -> list[Constraint]:
    owner = group.owner
    core = core_of(target, group.dtype, group.byte_products)
    wide = wide_axes(owner.axes)
    if not wide:
        return []
    item_bytes = ITEM_BYTES[group.dtype]
    third = [tile_field(owner.name, axis, 3) for axis in wide]
    second = [tile_field(owner.name, axis, 2) for axis in wide]
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


def _matrix_tile_knobs(group: Group, tile: Tile) -> list[Knob]:
    """Of a group whose sums are in tile registers."""
    owner, reduction = group.owner, group.reduction
    assert reduction is not None
    *rows, columns = wide_axes(owner.axes)
    inner = [*matrix_tiles.row_sizes(rows), matrix_tiles.column_sizes(columns)]
    knobs = []
    for place, (axis, sizes) in enumerate(zip((*rows, columns), inner, strict=True)):
        fields = tuple(tile_field(owner.name, axis, level) for level in (1, 2, 3))
        choices = space_tiles(axis.extent, sizes)
        knobs.append(Knob(_knob(owner.name, axis), fields, choices, preferred=tile.choice(place)))
    name, reduce = group.reduction_name, wide_axes(reduction.reduce_axes)
    for axis, steps in zip(reduce, matrix_tiles.word_sizes(reduce), strict=True):
        knobs.append(single(_knob(name, axis), steps, steps[-1], tile_field(name, axis, 1)))
    return knobs


def _fits_tile_registers(group: Group) -> Constraint:
    fields = [tile_field(group.owner.name, axis, 3) for axis in wide_axes(group.owner.axes)]
    rule = f"sums and what is multiplied fit in {matrix_tiles.REGISTERS} tile registers"
    return Constraint(f"{group.owner.name}.tiles", rule, matrix_tiles.fits(fields))


def _chain_knobs(chain: Chain, block: Block | None, tiles: Mapping[str, Tile]) -> list[Knob]:
    found = [tiles[group.owner.name] for group in chain.producers if group.owner.name in tiles]
    order = max((int(tile.vector_axis_first) for tile in found), default=0)
    ways = ("nests", "blocks", "sliding windows")[: BLOCKS + 1 if chain.sliding is None else SLIDING + 1]
    wanted = NESTS if block is None else SLIDING if block.steps > 1 else BLOCKS
    return [
        structural("chain", ways, wanted),
        structural("block_order", ("in order", "vector axis first"), order),
    ]


def _row_knobs(chain: Chain) -> list[Knob]:
    """How many rows are a block, of a chain whose last stage has no tiles of registers."""
    last = chain.last.owner
    sizes = {axis: block_sizes(axis) for axis in chain.outer}
    return [
        single(_knob(last.name, axis), found, found[0], tile_field(last.name, axis, 1))
        for axis, found in sizes.items()
    ]


def _in_blocks(chain: Chain, block: Block, tiles: Mapping[str, Tile]) -> dict[str, tuple[int, ...]]:
    """The preferred values of knobs for a chain in blocks: their sizes, and tiles no larger than those."""
    last = chain.last.owner
    found: dict[str, tuple[int, ...]] = {"padding": (1,)}
    if chain.of_rows:
        found |= {_knob(last.name, axis): (size,) for axis, size in block.sizes.items()}
    last_tile = () if chain.of_rows else zip(wide_axes(last.axes), tiles[last.name].sizes, strict=True)
    for axis, size in last_tile:
        most = block.step.get(axis, axis.extent)
        if block.steps > 1 and chain.sliding is not None and axis is chain.sliding.axis:
            found[_knob(last.name, axis)] = (block.steps, max(1, most // size), min(size, most))
        elif axis in block.sizes:
            found[_knob(last.name, axis)] = (max(1, most // size), 1, min(size, most))
    regions = chain.computed({axis: block.step.get(axis, axis.extent) for axis in last.axes}, block.steps > 1)
    for owner in (group.owner for group in chain.producers if group.reduction is not None):
        needed = dict(zip(owner.axes, regions[owner.name], strict=True))
        for axis, size in zip(wide_axes(owner.axes), tiles[owner.name].sizes, strict=True):
            found[_knob(owner.name, axis)] = (1, 1, min(size, int(needed[axis])))
    return found


def _chain_constraints(chain: Chain) -> list[Constraint]:
    """That tiles of registers fit into what a block needs, and what it needs on a thread's stack."""
    last, sliding = chain.last.owner, chain.sliding

    def blocks(values: Values) -> dict[Axis, NDArray[np.int64]]:
        """Of blocks, or of the steps in them."""
        found = {axis: np.array(axis.extent) for axis in last.axes}
        for axis in chain.outer:
            if chain.of_rows:
                found[axis] = values[tile_field(last.name, axis, 1)]
                continue
            steps, *levels = (values[tile_field(last.name, axis, level)] for level in (1, 2, 3))
            if sliding is None or axis is not sliding.axis:
                levels.append(steps)
            else:
                levels.append(np.where(values["chain"] == SLIDING, 1, steps))
            found[axis] = np.prod(levels, axis=0)
        return found

    def covers_tiles(values: Values) -> NDArray[np.bool_]:
        found = chain.computed(blocks(values), values["chain"] == SLIDING)
        fits = values["chain"] == NESTS
        tiles = [
            values[tile_field(group.owner.name, axis, 3)] <= extent
            for group in chain.producers
            if group.reduction is not None
            for axis, extent in zip(group.owner.axes, found[group.owner.name], strict=True)
            if axis.extent > 1
        ]
        return np.asarray(fits | np.all(tiles, axis=0))

    def handed(values: Values) -> NDArray[np.int64]:
        regions = chain.regions(blocks(values), values["chain"] == SLIDING)
        return np.asarray(chain.handed_bytes(regions))

    def fits_stack(values: Values) -> NDArray[np.bool_]:
        return np.asarray((values["chain"] == NESTS) | (handed(values) <= BLOCK_BYTES))

    def slides(values: Values) -> NDArray[np.bool_]:
        if sliding is None:
            return np.asarray(values["chain"] != SLIDING)
        size = blocks(values)[sliding.axis]
        steps = values[tile_field(last.name, sliding.axis, 1)] > 1
        plain = (values["tiling"] == 0) & (values.get("padding", np.array(1)) == 1)
        return np.asarray((values["chain"] != SLIDING) | (sliding.fits(size) & steps & plain))

    return [
        Constraint(
            f"{last.name}.steps",
            "a window slides over several steps, each of at least what is kept; paddings are inlined, "
            "and sums stay in registers",
            slides,
        ),
        Constraint(
            f"{last.name}.blocks", "a block needs whole tiles of what is computed for it", covers_tiles
        ),
        Constraint(f"{last.name}.stack", f"what a block needs takes at most {BLOCK_BYTES} bytes", fits_stack),
    ]
