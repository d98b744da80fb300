"""The untuned program: register tiles chosen by arithmetic, without a measurement.

For out-of-order cores every tile that fits the registers, and every order of the loops around it, is
estimated as a whole (cycles.py), and the fastest taken. In order, a figure of merit decides
(in_order_tiles.py), and the vector axis goes outermost around tiles where that reads much less from memory.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec.structs import replace

from boards.target import IN_ORDER_CPUS, Target
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read, Reduce, reads_in
from cross.schedule.core import Core, core_of, register_tiles
from cross.schedule.cycles import L2_SHARE, Machine, Nest, far_bytes, fullest_set, nest_cycles
from cross.schedule.in_order_tiles import (
    best_register_tile,
    in_order_cycles,
    is_whole_row,
    memory_cycles,
    overlap_of,
    windows_of,
)
from cross.schedule.plan import Group, Plan, operand_axes, varying_axes, wide_axes
from cross.schedule.reads import nest_of, repeats_lanes
from cross.schedule.tiles import MOST_FACTORS, WASTE, factors, vector_tiles, waste
from cross.schedule.vector_axis import stride

COMBINED_BYTES = (
    4  # of an element at least, for whole vectors to be combined in registers; bools are left out
)
COMBINING_CYCLES = 12.0
"""Of a vector whose lanes are combined, an estimate: four halvings are about that many instructions, and what
the next vector takes does not wait for them."""
ONE_CORE_PREFERRED_FLOPS = 200_000  # below, waking another core takes longer than the whole operator
ONE_CORE_PREFERRED_CYCLES = 7_000  # estimated, on one core; waking another takes half of that
ONE_CORE_PREFERRED_BYTES = 48 * 1024
"""Of all operands. In a network, operands come from memory or were written by several cores, and two cores
wait for half of them each. Measured on two threads of one Xeon: EfficientNet-B0 1.07 times as fast as without
this limit, a YOLO 1.03; with 16 KiB no difference to 48."""
POOLED_LINES = 2  # cache lines in a row of a pooling's tile: with one, 55x55x128 gained 1.2 in place of 1.4
GUARD_CYCLES, COPY_CYCLES = 5.0, 8.8
"""Of a core in order: for each vector that a window reads under guards where tiles lie at a border, and for
each vector that is copied into a padded image. By the issue model of a Cortex-A53 over all instructions of 17
short windows, depthwise ones of 3x3 and 5x5 most. Tiles of whole rows guard rows alone, which are skipped:
ten such windows on 7x7 to 28x28 take 1.3 to 2.1 times as long with a copy."""
MUCH_LESS = 0.8  # of the bytes read in the natural order
REORDERED = 1.07
"""Times the cycles of any order but the natural one, which alone writes the output in the order of memory:
measured 1.05 to 1.4 on one Sapphire Rapids Xeon."""


class Tile(msgspec.Struct, frozen=True):
    """A choice for an untuned nest: sizes of the innermost loops, in axis order, and whether the loops
    around them start with the vector axis; the cycles it is estimated to take (0: not estimated).

    `block`: how many of the tiles along the first axis come one after the other, before the vector axis moves
    on: one thread's share where threads share rows, and each takes panel by panel of the weights for its own.
    """

    sizes: tuple[int, ...]
    vector_axis_first: bool
    cycles: float
    block: int = 1

    def choice(self, position: int) -> tuple[int, int, int]:
        """Of the knob of an axis: tiles of a block, and the size of a tile."""
        return (self.block if position == 0 else 1, 1, self.sizes[position])


def untuned_tiles(plan: Plan, target: Target) -> dict[str, Tile]:
    """The tile of every reduction with space axes in the untuned program, by the owner of its group."""
    tiles = {}
    for group in plan.groups:
        wide = wide_axes(group.owner.axes)
        if group.reduction is None or not wide:
            continue
        core = core_of(target, group.dtype, group.byte_products)
        if combines_lanes(group, core):
            rows = -(-group.owner.elements // target.threads)
            tiles[group.owner.name] = Tile((1,) * len(wide), False, rows * COMBINING_CYCLES)
            continue
        vectors, extents = vector_sizes(plan, group, core), tuple(axis.extent for axis in wide)
        nest, machine = nest_of(plan, group, core.lanes), Machine.of(target, core.lanes)
        if core.in_order:
            windows = [] if group.dtype in FLOATS or group.byte_products else windows_of(plan, group)
            overlap = overlap_of(plan, group)
            operands = operand_axes(plan, group)
            padded = bool(plan.paddings) and plan.sums_windows and group.dtype in FLOATS
            sizes = best_register_tile(extents, core, vectors, operands, windows, overlap, padded=padded)
            tiles[group.owner.name] = Tile(sizes, _saves_reads(nest, machine, sizes), 0.0)
        else:
            if len(nest.operands) == 1:
                vectors = _whole_lines(vectors, ITEM_BYTES[group.dtype], machine)
            registers = replace(core, line_vectors=0)
            tile = fastest_tile(extents, registers, tuple(vectors), nest, machine)
            if core.line_vectors and _loses_lines(plan, group, tile.sizes, machine):
                tile = fastest_tile(extents, core, (core.line_vectors * core.lanes,), nest, machine)
            tiles[group.owner.name] = tile
    return tiles


def program_cycles(plan: Plan, target: Target, tiles: Mapping[str, Tile]) -> float:
    """Of the untuned program on one core; 0 where not all of its nests are estimated."""
    found = [(group, tiles[group.owner.name]) for group in plan.groups if group.owner.name in tiles]
    if len(found) < len(plan.groups):
        return 0.0
    if target.cpu in IN_ORDER_CPUS and all(group.dtype in FLOATS for group, _ in found):
        return math.fsum(_in_order_cycles(plan, group, target, tile) for group, tile in found)
    each = [tile.cycles for _, tile in found]
    return 0.0 if 0.0 in each else math.fsum(each)


def _in_order_cycles(plan: Plan, group: Group, target: Target, tile: Tile) -> float:
    """Of a sum of floats, each core's share, and of all that comes from memory, which is waited for."""
    core = core_of(target, group.dtype)
    nest, machine = nest_of(plan, group, core.lanes), Machine.of(target, core.lanes)
    operands, overlap = operand_axes(plan, group), overlap_of(plan, group)
    cycles = in_order_cycles(nest.extents, nest.steps, tile.sizes, operands, core, overlap)
    natural = tuple(range(len(tile.sizes)))
    order = (natural[-1], *natural[:-1]) if tile.vector_axis_first else natural
    once = math.fsum(
        operand.bytes_each * math.prod(nest.extents[position] for position in operand.axes)
        for operand in nest.operands
    )
    moved = max(once, far_bytes(nest, machine, tile.sizes, order))
    return cycles / target.threads + memory_cycles(moved, target)


def is_worth_a_copy(plan: Plan, target: Target, tiles: Mapping[str, Tile]) -> bool:
    """Whether guards of windows of floats that reach into padding take a core in order longer than a copy of
    the image with it."""
    padded = sum(item.elements for item in plan.paddings)
    size_bytes = sum(item.size_bytes for item in plan.paddings)
    guarding = 0.0
    for group in plan.reductions:
        if group.dtype not in FLOATS or group.owner.name not in tiles:
            return False
        core, tile = core_of(target, group.dtype), tiles[group.owner.name]
        guarding += _guard_cycles(group, core, tile, sides=2 if padded < 2 * group.owner.elements else 1)
    copying = COPY_CYCLES * padded / target.vector_lanes(ITEM_BYTES[plan.paddings[0].dtype])
    moved = 2.0 * size_bytes if size_bytes > L2_SHARE * target.l2_bytes else 0.0
    return guarding / target.threads > copying / target.threads + memory_cycles(moved, target)


def _guard_cycles(group: Group, core: Core, tile: Tile, sides: int) -> float:
    """Of all guards of a window. `sides` of the image at which tiles have some: windows that lie apart end
    before the padding behind."""
    assert group.reduction is not None
    extents = [axis.extent for axis in wide_axes(group.owner.axes)]
    steps = math.prod(axis.extent for axis in group.reduction.reduce_axes)
    if is_whole_row(tile.sizes, extents):
        return 0.0
    counts = [-(-extent // size) for extent, size in zip(extents[:-1], tile.sizes[:-1], strict=True)]
    each = GUARD_CYCLES * (1.0 - math.prod(max(0.0, 1.0 - sides / count) for count in counts))
    return each * steps * group.owner.elements / core.lanes


def combines_lanes(group: Group, core: Core) -> bool:
    """Whether a group only combines partial results that lie side by side, a vector of them or two.

    Those of one element are one vector then, halved in registers (codegen/llvm/across_lanes.py); vectors of
    several elements would be gathered.
    """
    reduction = group.reduction
    match reduction.body if reduction is not None else None:
        case Reduce(_, Read(_, indices), (lane,)):
            side_by_side = indices[-1] is lane and lane.extent in (core.lanes, 2 * core.lanes)
            return side_by_side and not core.in_order and ITEM_BYTES[group.dtype] >= COMBINED_BYTES
    return False


def _whole_lines(vectors: Sequence[int], item_bytes: int, machine: Machine) -> list[int]:
    """The lengths of a vector loop that cover POOLED_LINES cache lines; all of them where none is so long.

    For reductions of one operand, such as poolings: no weights are read again for the neighbours in a tile,
    so that its rows may be long. Measured on one Zen 3, 32 floats in place of 7 pixels of 8: max poolings of
    14x14 to 112x112 images 1.05 to 1.68 times as fast, one of 13x13 with 6x6 results 0.8; average poolings
    1.15 and 1.44; sums and maxima over whole dimensions 0.99 to 1.08.
    """
    long = [length for length in vectors if length * item_bytes >= POOLED_LINES * machine.line_bytes]
    return long or list(vectors)


def _loses_lines(plan: Plan, group: Group, sizes: Sequence[int], machine: Machine) -> bool:
    """Whether the first cache loses lines of the data of a depthwise convolution before the next tile, beside
    it along the vector axis, reads the rest of them.

    Where pixels lie a power of two apart, all lines of a window fall into few sets. Measured on one core of a
    Zen 3, 3x3 and AVX2, tiles of 7 pixels of whole lines in place of 7 of one vector: 28x28x256 1.1 times as
    fast, 14x14x512 1.2 to 1.5, 7x7x1024 1.5 to 1.8, with strides 28x28x256 1.2 to 1.4 and 14x14x512 1.9; with
    384 to 1152 channels, where lines stay, 0.7 to 1.04.
    """
    assert group.reduction is not None
    axes, taps = wide_axes(group.reduction.axes), wide_axes(group.reduction.reduce_axes)
    window = [*zip(axes[:-1], sizes[:-1], strict=True), *((axis, axis.extent) for axis in taps)]
    reads = {read.tensor: read for read in reads_in(plan.body(group.reduction, padding_inlined=True))}
    own = [
        read
        for tensor, read in reads.items()
        if tensor.body is None and read.dtype == group.dtype and len(varying_axes(read, axes)) == len(axes)
    ]
    if len(reads) == 1 or not own:
        return False
    steps = [stride(own[0], axis) for axis, _ in window]
    strides_bytes = [step * ITEM_BYTES[group.dtype] for step in steps if step is not None]
    regular = len(strides_bytes) == len(window)
    return regular and fullest_set([n for _, n in window], strides_bytes, machine.line_bytes) > machine.ways


def _saves_reads(nest: Nest, machine: Machine, sizes: tuple[int, ...]) -> bool:
    """Whether the loops around a tile read less from memory with the vector axis outermost, by far."""
    last = len(sizes) - 1
    natural = tuple(range(last + 1))
    if any(operand.axes == natural for operand in nest.operands):
        return False
    turned = far_bytes(nest, machine, sizes, (last, *natural[:-1]))
    return turned < MUCH_LESS * far_bytes(nest, machine, sizes, natural)


def vector_sizes(plan: Plan, group: Group, core: Core) -> list[int]:
    """Lengths of the vectorized loop of a reduction: the whole axis where an operand repeats its lanes."""
    axis = wide_axes(group.owner.axes)[-1]
    if repeats_lanes(plan, group):
        return [axis.extent]
    return vector_tiles(axis.extent, core.lanes, masked=core.masks)


def one_core_is_enough(operator: Operator, plan: Plan, target: Target, tiles: Mapping[str, Tile]) -> bool:
    """Whether waking other cores would take longer than they save."""
    if sum(item.size_bytes for item in (*operator.inputs, operator.output)) > ONE_CORE_PREFERRED_BYTES:
        return False
    if operator.flops < ONE_CORE_PREFERRED_FLOPS:
        return True
    cycles = [tiles[group.owner.name].cycles for group in plan.groups if group.owner.name in tiles]
    if len(cycles) < len(plan.groups) or 0.0 in cycles:
        return False
    return target.threads * math.fsum(cycles) < ONE_CORE_PREFERRED_CYCLES


@functools.lru_cache(maxsize=4096)  # the cuts of a network into chains ask for each operator several times
def fastest_tile(
    extents: tuple[int, ...], core: Core, vectors: tuple[int, ...], nest: Nest, machine: Machine
) -> Tile:
    """The tile of registers and the order of the loops around it with the fewest estimated cycles; arguments
    as of `estimated_tiles`."""
    found = estimated_tiles(extents, core, vectors, nest, machine)
    return min(found, key=lambda tile: tile.cycles, default=Tile((1,) * len(extents), False, math.inf))


def estimated_tiles(
    extents: Sequence[int], core: Core, vectors: Sequence[int], nest: Nest, machine: Machine
) -> Iterator[Tile]:
    """Every tile of registers under every order of the loops around it, with estimated cycles.

    Args:
        extents: of the space axes with more than one element, the vector axis last.
        core: what the loop runs on.
        vectors: the sizes that the vector loop may have.
        nest: the reduction.
        machine: the core's caches.
    """
    operands = [operand.axes for operand in nest.operands]
    repeats = any(operand.repeated for operand in nest.operands)
    last = len(extents) - 1
    orders = {tuple(range(last + 1)): False}
    if not any(operand.axes == tuple(range(last + 1)) for operand in nest.operands):
        # Otherwise every step of the outermost loop would read a few elements of each row of that operand.
        orders[(last, *range(last))] = True
    for tile, count in register_tiles(extents, core, vectors, operands, repeats):
        wasted = waste(math.prod(tile[:-1]), core.rows_together)
        for found in ordered_tiles(nest, machine, tile, count, orders):
            yield found if wasted == 1.0 else replace(found, cycles=found.cycles * wasted)


def ordered_tiles(
    nest: Nest,
    machine: Machine,
    sizes: tuple[int, ...],
    vectors: int,
    orders: Mapping[tuple[int, ...], bool],
    step: float | None = None,
) -> Iterator[Tile]:
    """A tile of registers under each order of the loops around it, with estimated cycles.

    orders: of the space axes, and whether they begin with the vector axis. Where one does and there are
    several threads, these may share the rows as well. Other arguments are those of `nest_cycles`.
    """
    for order, vector_axis_first in orders.items():
        cycles = nest_cycles(nest, machine, sizes, vectors, order, step)
        cycles *= REORDERED if vector_axis_first else 1.0
        yield Tile(sizes, vector_axis_first, cycles)
        block = _thread_block(nest, machine, sizes) if vector_axis_first else 1
        if block > 1:
            own = replace(nest, extents=(block * sizes[0], *nest.extents[1:]))
            cycles = nest_cycles(own, replace(machine, threads=1), sizes, vectors, order, step)
            yield Tile(sizes, False, REORDERED * cycles, block)


def _thread_block(nest: Nest, machine: Machine, sizes: Sequence[int]) -> int:
    """How many tiles along the first axis are one thread's share; 1 where there is one thread, or too few
    tiles, or a space has no such block."""
    extent, size = nest.extents[0], sizes[0]
    tiles = -(-extent // size)
    block = -(-tiles // machine.threads)
    rows = block * size
    fits = machine.threads > 1 and len(sizes) > 1 and rows <= extent and waste(extent, rows) <= WASTE
    return block if fits and block in factors(extent, MOST_FACTORS) else 1
