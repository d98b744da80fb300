"""The untuned program: register tiles chosen by arithmetic, without a measurement.

For out-of-order cores every tile that fits the registers, and every order of the loops around it, is
estimated as a whole (cycles.py), and the fastest taken. In order, the figure of merit of a register tile is
the share of a core's peak that its inner loop can reach: what it issues and the latency of dependent
multiply-adds bound the cycles of a step; empty lanes and overlapping last tiles waste part of them. The
vector axis goes outermost around them where that reads much less from memory.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boards.target import IN_ORDER_CPUS, Target
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.expression.language.operations import EIGHTS, SHARED_STEPS
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read, Reduce, reads_in
from cross.schedule.cycles import Machine, Nest, far_bytes, nest_cycles
from cross.schedule.plan import Group, Plan, operand_axes, operands, wide_axes
from cross.schedule.reads import nest_of, repeats_lanes
from cross.schedule.tiles import MOST_FACTORS, WASTE, factors, vector_count, vector_tiles, waste
from cross.schedule.vector_axis import stride

WRITTEN_OUT = 192  # statements of a loop body at most
SIDES = 0.02  # price of a tile's sides: between tiles of one size the one nearest to a square
IN_ORDER_LATENCY_CYCLES = 8  # between dependent multiply-adds of a Cortex-A53
LANE_STEPS = 4  # of a sum that one load of a vector of four floats feeds, element by element
BROADCAST_CYCLES = 0.55
"""Of a Cortex-A53, for every operand that is repeated, in a step; a load for every LANE_STEPS of them would
take half as much. Fitted with IN_ORDER_LOOP_CYCLES to its issue model (cross/inspection/cortex_a53.py) of
pointwise convolutions in 21 tiles of 8 to 21 vectors, which they meet within 6 %."""
IN_ORDER_LOOP_CYCLES = 4.0  # of an iteration of such a loop beside them
UNEVEN = 0.97
"""Price of rows that do not divide an axis evenly, beside what is computed twice: blocks of a chain are whole
tiles. So the first chain of a MobileNet-v2 stays whole on a Cortex-A53: 19.2 MB from memory, not 22.5."""
NEXT_REGISTERS = 3  # with 31 of 32 taken code is a seventh slower (issue model); 29 are fine
PRODUCT_LATENCY_CYCLES = 4  # between a product of bytes and what adds pairs of it: as many sums of 16 bits
PAIRED_STEPS = 4  # that share 16 bits where tiles may be multiplied column by column
LOADED_AHEAD = 2
"""Times the registers of a core: sums and loads of a written-out window of integers that LLVM keeps in those
of a Cortex-A53. Counted on depthwise convolutions of 3x3, of 32: up to 62 no spills, from 65 on 10 to 32."""
WIDEST_TILE = 16  # rows of a register tile; more do not fit 32 registers with two vectors a row
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
MUCH_LESS = 0.8  # of the bytes read in the natural order
REORDERED = 1.07
"""Times the cycles of any order but the natural one, which alone writes the output in the order of memory:
measured 1.05 to 1.4 on one Sapphire Rapids Xeon."""

_PRODUCT_REGISTERS = {"wide_dot2": 1, "narrow_dot4": 2}

Operands = Sequence[tuple[int, ...]]
"""For every operand, the positions of the axes that it varies along; the vector axis is the last."""


@dataclass(frozen=True, slots=True)
class Core:
    """What matters of a core: elements of a vector register, vector registers, its kind; whether a mask makes
    a vector of any rest; how many steps of a sum share an addition; registers that a vector operand takes,
    and that a product takes before it is added; rows that one instruction multiplies."""

    lanes: int
    registers: int
    in_order: bool
    masks: bool = False
    shared_steps: int = 0  # of products of pairs of bytes; 0: of others
    operand_registers: int = 1
    product_registers: int = 0
    rows_together: int = 1

    def vectors(self, extent: int) -> int:
        """Vector registers that so many elements take."""
        return vector_count(extent, self.lanes, self.masks)

    def spare(self, extent: int, repeats: bool) -> int:
        """Registers to leave free beside so many elements, which an operand `repeats` to fill.

        LLVM moves loads under a mask further up than others; a shuffle has its pattern in a register.
        """
        masked = self.masks and (extent % self.lanes).bit_count() > 1
        return 2 * masked + self.vectors(extent) * repeats


def core_of(target: Target, dtype: str, byte_products: frozenset[str] = frozenset()) -> Core:
    """The core of a CPU target, for sums of a dtype, of these products of bytes if of any.

    On x86-64 with 16 vector registers and no VNNI (boards/probe.py names it where a host has it), words of
    four bytes become two vectors of 16-bit numbers, or products of numbers that are widened or narrow have a
    register of their own, and the latter one for ones (codegen/llvm/dot_products.py).
    """
    lanes = target.vector_lanes(ITEM_BYTES[dtype])
    masks = target.masks_lanes and dtype in FLOATS
    shared_steps = max((SHARED_STEPS.get(function, 0) for function in byte_products), default=0)
    widened = "dot4" in byte_products and target.vector_registers == 16 and "+avxvnni" not in target.features
    in_order = target.cpu in IN_ORDER_CPUS
    apart = max((_PRODUCT_REGISTERS.get(function, 0) for function in byte_products), default=0)
    rows = 2 if byte_products & EIGHTS else 1  # and words of eight bytes, a register for every two columns
    operand = 2 if widened or rows == 2 else 1
    return Core(lanes, target.vector_registers, in_order, masks, shared_steps, operand, apart, rows)


@dataclass(frozen=True, slots=True)
class Tile:
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
            windows = [] if group.dtype in FLOATS or group.byte_products else _windows(plan, group)
            overlap = overlap_of(plan, group)
            sizes = best_register_tile(extents, core, vectors, operand_axes(plan, group), windows, overlap)
            tiles[group.owner.name] = Tile(sizes, _saves_reads(nest, machine, sizes), 0.0)
        else:
            if len(nest.operands) == 1:
                vectors = _whole_lines(vectors, ITEM_BYTES[group.dtype], machine)
            tiles[group.owner.name] = fastest_tile(extents, core, tuple(vectors), nest, machine)
    return tiles


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


def _register_tiles(
    extents: Sequence[int], core: Core, vectors: Sequence[int], operands: Operands, repeats: bool = False
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Sizes of the innermost loops, in axis order, that stay in registers; vectors that the last one takes.

    At most the last three of the axes, the vector axis last, have a size other than 1.
    """
    fixed = (1,) * (len(extents) - 1 - len(extents[-3:-1]))
    choices = [_sensible(factors(extent, WIDEST_TILE), extent) for extent in extents[-3:-1]]
    for vector in _sensible(vectors, extents[-1]):
        count, spare = core.vectors(vector), 0 if core.in_order else core.spare(vector, repeats)
        for sizes in itertools.product(*choices):
            if fits_registers((*fixed, *sizes, count), operands, core, spare):
                yield (*fixed, *sizes, vector), count


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
    for tile, count in _register_tiles(extents, core, vectors, operands, repeats):
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


def best_register_tile(
    extents: Sequence[int],
    core: Core,
    vectors: Sequence[int],
    operands: Operands,
    windows: Sequence[Sequence[NDArray[np.int64]]] = (),
    overlap: Overlap | None = None,
) -> tuple[int, ...]:
    """Sizes of the innermost loops, in axis order, with the largest merit on a core that runs in order.

    Arguments as of `fastest_tile`; operands: what the innermost statement reads; windows: see `_windows`;
    overlap: see `overlap_of`.
    """
    best, best_merit = (1,) * len(extents), 0.0
    for tile, count in _register_tiles(extents, core, vectors, operands):
        counts = (*tile[:-1], count)
        if any(_registers(window, counts) > LOADED_AHEAD * core.registers for window in windows):
            continue
        merit = tile_merit(counts, operands, core, overlap) * tile[-1] / (count * core.lanes)
        if not core.shared_steps:  # chosen for sums of floats
            merit *= UNEVEN ** sum(
                extent % size > 0 for extent, size in zip(extents[:-1], tile, strict=False)
            )
        for extent, size in zip(extents, tile, strict=True):
            merit /= waste(extent, size)
        if not has_broadcasts(counts, operands):  # a window: neighbours read the sides of a tile again
            merit *= 1.0 - SIDES * sum(1.0 / size for size in tile[-3:-1])
        if merit > best_merit:
            best, best_merit = tile, merit
    return best


def _windows(plan: Plan, group: Group) -> list[list[NDArray[np.int64]]]:
    """What a reduction of integers that is written out whole reads side by side: for each operand the places
    of its elements, by the steps of the sum and by those of each space axis but the last.

    The code generator orders no loads of such loops, and LLVM loads ahead as far as they go.
    """
    assert group.reduction is not None
    axes, reduced = wide_axes(group.reduction.axes), group.reduction.reduce_axes
    if math.prod(axis.extent for axis in reduced) > WRITTEN_OUT:
        return []
    found = []
    for read in reads_in(plan.body(group.reduction)):
        strides = [(stride(read, axis), axis.extent) for axis in (*axes[:-1], *reduced)]
        steps = [step * np.arange(extent) for step, extent in strides if step is not None]
        if len(steps) == len(strides) and any(step[-1] for step in steps[: len(axes) - 1]):
            taps = functools.reduce(np.add.outer, steps[len(axes) - 1 :], np.zeros(1, np.int64))
            found.append([taps.ravel(), *steps[: len(axes) - 1]])
    return found


def _registers(window: Sequence[NDArray[np.int64]], counts: Sequence[int]) -> int:
    """Registers that a tile's sums and all that it reads of a window take; 0 if it is not written out."""
    taps, *places = window
    if taps.size * math.prod(counts) > WRITTEN_OUT:
        return 0
    first = [place[:count] for place, count in zip(places, counts[:-1], strict=True)]
    return math.prod(counts) + counts[-1] * np.unique(functools.reduce(np.add.outer, first, taps)).size


def _sensible(sizes: Sequence[int], extent: int) -> list[int]:
    """The sizes that a space offers: those that cover the extent with little overlap."""
    return [size for size in sizes if waste(extent, size) <= WASTE]


def operand_counts(counts: Sequence[Any], operands: Operands) -> tuple[Any, Any]:
    """Vectors and broadcasts that one step reads for loop sizes, the last in vectors; numbers or arrays."""
    vectors = broadcasts = 0 * counts[-1]
    for positions in operands:
        loads = math.prod(counts[position] for position in positions)
        if len(counts) - 1 in positions:
            vectors = vectors + loads
        else:
            broadcasts = broadcasts + loads
    return vectors, broadcasts


def fits_registers(counts: Sequence[Any], operands: Operands, core: Core, spare: Any = 0) -> Any:
    """Whether the accumulators and what feeds them stay in registers; for numbers or arrays.

    `spare` ones stay free. Out of order, every vector operand takes its registers, as many hold a broadcast,
    where bytes are widened one has the mask for it, and a product that is added apart has its own.
    In order, each broadcast operand takes one for four steps, and three hold what is being loaded. Of byte
    products, a row's sums of 16 bits are there, and if there are several rows the weights of all steps that
    share those, two vectors in a register; three hold broadcasts (codegen/scheduling/byte_order.py).
    Column by column (byte_columns.py) three sums of 16 bits are there, and two steps' words in a register.
    """
    vectors, broadcasts = operand_counts(counts, operands)
    if core.shared_steps and core.in_order:
        kept = np.where(broadcasts > 1, core.shared_steps * -(-vectors // 2), vectors)
        feeding = kept + np.maximum(vectors, PRODUCT_LATENCY_CYCLES) + 3
        by_columns = (core.shared_steps == PAIRED_STEPS) & (broadcasts > 1) & (vectors > 1)
        feeding = np.where(by_columns, np.minimum(feeding, PAIRED_STEPS // 2 * vectors + 5), feeding)
    elif core.in_order and has_broadcasts(counts, operands):
        feeding = broadcasts + 3
    else:
        feeding = (vectors + 1) * core.operand_registers + (core.operand_registers - 1)
        feeding += core.product_registers
    return math.prod(counts) + feeding + spare <= core.registers


def has_broadcasts(counts: Sequence[Any], operands: Operands) -> bool:
    """Whether some operand is the same for a whole vector."""
    return any(len(counts) - 1 not in positions for positions in operands)


@dataclass(frozen=True, slots=True)
class Overlap:
    """What neighbours read in common of a sum over a window: along the space axes at some positions an
    element `moves` by so many, but not all, of the `steps` of the window's last axis."""

    steps: int
    moves: tuple[tuple[int, int], ...]

    def loaded(self, counts: Sequence[int]) -> float:
        """The part of a tile's elements that a step loads, where all steps of the axis are written out."""
        part = 1.0
        for position, move in self.moves:
            size = counts[position]
            part *= ((size - 1) * move + self.steps) / (size * self.steps)
        return part


def overlap_of(plan: Plan, group: Group) -> Overlap | None:
    """The overlap of what a sum over several axes reads of the operand that is repeated along vectors."""
    assert group.reduction is not None
    reduce, wide = wide_axes(group.reduction.reduce_axes), wide_axes(group.reduction.axes)
    for (_, positions), read in operands(plan, group).items():
        step = stride(read, reduce[-2]) if len(reduce) > 1 else None
        if step and len(wide) - 1 not in positions:
            strides = [(position, stride(read, wide[position])) for position in positions]
            steps = reduce[-2].extent
            moves = [(at, move // step) for at, move in strides if move and move % step == 0]
            return Overlap(steps, tuple((at, move) for at, move in moves if move < steps))
    return None


def lane_steps(core: Core, rows: int, vectors: int, overlap: Overlap | None) -> tuple[int, int]:
    """How many steps of a sum are written out on a core that runs in order, for a tile of so many rows of
    vectors: along the last axis of a window, and along channels.

    One load of a vector has an operand's elements for LANE_STEPS channels. More steps are written out where
    registers are left for the next ones, which are loaded before the last element of these is used; or where
    neighbours share them.
    """
    fits = rows * vectors + vectors + rows <= core.registers - NEXT_REGISTERS
    if overlap is None:
        return 1, 4 * LANE_STEPS if fits else LANE_STEPS
    shared = any(move == 1 for _, move in overlap.moves)
    return overlap.steps if fits or shared else 1, LANE_STEPS


def tile_merit(
    counts: Sequence[int], operands: Operands, core: Core, overlap: Overlap | None = None
) -> float:
    """Share of the FMA peak that a step with full lanes can reach on a core that runs in order."""
    accumulators, shared_steps = math.prod(counts), core.shared_steps
    vectors, broadcasts = operand_counts(counts, operands)
    if shared_steps:  # two operands move to vector registers in a cycle; an addition takes two, once for all
        waiting = max(0, PRODUCT_LATENCY_CYCLES - accumulators)  # of more rows, additions fill the time
        added = 2 * accumulators / shared_steps + waiting
        cycles = accumulators + added + (vectors + broadcasts) / 2
        # beside each multiplication one load, shift or flip of signs issues
        beside = vectors + broadcasts * (1 + 2 / shared_steps)
        return float(accumulators / (cycles + max(0.0, beside - accumulators)))
    issued = float(accumulators + vectors)  # one instruction a cycle
    if broadcasts:
        window, channels = lane_steps(core, broadcasts, counts[-1], overlap)
        loaded = broadcasts * (overlap.loaded(counts) if overlap is not None and window > 1 else 1.0)
        issued += BROADCAST_CYCLES * loaded + IN_ORDER_LOOP_CYCLES / (window * channels)
    return accumulators / max(issued, IN_ORDER_LATENCY_CYCLES)
