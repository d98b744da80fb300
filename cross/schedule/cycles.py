"""What a tiled reduction costs on an out-of-order core, in cycles: arithmetic, before any measurement.

A tile of registers runs over the whole reduction; then the next tile along the innermost of the loops
around it follows. Five things take time: multiply-adds, loads (a vector that straddles two cache lines is
two), what must come from farther than the first cache, the work of a tile before and after its reduction, and
the first reading of weights, which in a network are in no near cache.

Sizes of caches are the board's; the constants below are not probed, and those of the last cache are of one
processor. They choose tiles, loop order and whether one core is enough for untuned programs
(schedule/untuned.py) alone: where they do not fit, such a program is slower than it could be. A search
measures.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from collections.abc import Sequence

import msgspec
from msgspec.structs import replace

from boards.target import Target
from cross.schedule.core import FEW_REGISTERS

ELEMENTS_PER_CYCLE = 2
"""Single elements that a core loads and repeats along a vector: it has two units that load, as x86 cores and
a Cortex-A73 do (a Cortex-A72 has one). Where vectors come in halves, elements do not: tiles chosen with 2 for
140 operators on a Zen 4 lose 3.3 % against the best measured, with 1 3.8 %."""
SHORT_STEPS_ELEMENTS_PER_CYCLE = 1.5
"""The same with few registers, whose tiles of one vector read an element for every multiply-add. Fitted on a
Zen 3 with AVX2 to 147 operators on two threads: the choice of tiles loses 8.5 % in place of 10.5, on one
thread 3.5 with either. On two threads MobileNet-v1 and a SqueezeNet are 1.05 and 1.07 times as fast."""
FMA_LATENCY_CYCLES = 4
LATENCY_POWER = 6
"""A step takes (m^6 + l^6)^(1/6) cycles: m to issue its multiply-adds, l until the first of them is done.
That is the larger one where they differ, and 1.12 times it where they are equal: 8 sums at two a cycle wait
for each other whenever a load is late. The best of 3, 4, 6, 10 and none on one core of an Emerald Rapids
Xeon: with AVX2 MobileNet-v1 is 1.05 times as fast as with none, v2 1.02; with AVX-512, where tiles have more
sums, six networks are 0.997 to 1.013 times as fast."""
LOAD_CYCLES = 0.05  # beside multiply-adds: they share the front end, and the tile that loads less wins
SHORT_STEPS_LOAD_CYCLES = 0.12
"""The same with few registers. On one Emerald Rapids Xeon with AVX2, in place of 0.05: MobileNet-v1 on one
thread 0.98 and 1.04 times as fast, on two 1.08 and 1.14, v2 1.00 to 1.04, v3 and a SqueezeNet 1.00. With
AVX-512 five networks would be 0.99 to 1.03 times as fast, a SqueezeNet, by its choice of algorithms, 0.93."""
LOOP_CYCLES = 0.5  # of an iteration of a reduction loop beside its arithmetic
TILE_CYCLES = 12.0  # leaving the reduction loop is a mispredicted branch
STORE_CYCLES = 0.5  # stores of one tile run beside the multiply-adds of the next, but not all of them
L2_BYTES_PER_CYCLE = 32.0
L3_BYTES_PER_CYCLE = 10.0  # measured on one Sapphire Rapids Xeon, whose mesh bounds a core by its open misses
L2_HIDDEN = 0.8  # share of transfers from there and arithmetic that run side by side, by prefetching
L3_HIDDEN = 0.4
"""Fitted on that Xeon to products of 35 and 128 rows with 7 to 94 MB of weights, tiles of 5 to 14 rows."""
COLD_BYTES_PER_CYCLE = 3.7
"""Measured on that Xeon: 262 KB to 1 MB of weights that other layers had displaced, unless fetched ahead."""
OTHER_CORES_BYTES_PER_CYCLE = 1.5
"""Of data that another core has written and still holds. Measured on two cores of one Xeon (480 MiB of L3) on
six quantized convolutions whose threads share columns, or rows, of what both have padded: 0.8 to 2.4."""
SMALL_LAST_CACHE = 64 << 20
SMALL_OTHER_CORES_BYTES_PER_CYCLE = 3.0
"""The same by way of a last cache of at most that size, which is nearer than a server's large one; that 64
MiB lie between is an assumption. Chosen on two cores of a Zen 4 with 32 MiB, a line's way there and back 58
ns: with it EfficientNet-B0 is 1.03 times as fast and MobileNet-v2 1.025, seven other networks 0.995 to 1.01,
and with 6 no more. Threads of pointwise convolutions on 7x7 images then share columns, not rows."""
PANEL_SHARE = 0.4  # of the second cache: two panels, and room for the other operands
MOST_PASSES = 64  # of more, one that waits costs less than fetching in all of them (measured up to 171)
CACHE_SHARE = 0.8  # of the first cache that one nest can count on
L2_SHARE = 0.6  # of the second, where pages lie anywhere: weights that filled 0.78 of it came from beyond
WAY_BYTES = 4096  # a page: first caches have more ways rather than more sets


class Operand(msgspec.Struct, frozen=True):
    """An operand of the innermost statement.

    `axes`: the positions of the space axes that it varies along; the vector axis is the last. `bytes_each`:
    what a reduction reads of it for one point of them. `straddles`: whether its vectors cross cache lines
    even where the tiles are whole vectors.
    `strides_bytes`: between neighbours along each of those axes (0: it is not so regular). `repeated`: its
    elements are repeated along the vector axis, with a load for every vector.
    """

    axes: tuple[int, ...]
    bytes_each: float
    straddles: bool
    strides_bytes: tuple[int, ...] = ()
    repeated: bool = False


class Nest(msgspec.Struct, frozen=True):
    """A reduction to tile: extents of its space axes, steps of the reduction, its operands, and whether
    vectors of the output straddle cache lines."""

    extents: tuple[int, ...]
    steps: int
    operands: tuple[Operand, ...]
    stores_straddle: bool


class Machine(msgspec.Struct, frozen=True):
    """A core and its caches. `rate`: vectors that it multiplies and adds in a cycle, and loads. `l3_...`:
    what a core reads of the last cache in a cycle, and the share of that which runs beside arithmetic.
    `load_cycles`: what a load beside multiply-adds takes of their time. `elements_per_cycle`: single elements
    that it loads in a cycle and repeats along a vector.
    `foreign_...`: what it reads in a cycle of data that another core has written and still holds."""

    lanes: int
    rate: float
    l1_bytes: int
    l2_bytes: int
    line_bytes: int
    threads: int
    load_cycles: float = LOAD_CYCLES
    elements_per_cycle: float = ELEMENTS_PER_CYCLE
    l3_bytes_per_cycle: float = L3_BYTES_PER_CYCLE
    l3_hidden: float = L3_HIDDEN
    foreign_bytes_per_cycle: float = OTHER_CORES_BYTES_PER_CYCLE

    @property
    def ways(self) -> int:
        """Lines that a set of the first cache holds."""
        return max(1, self.l1_bytes // WAY_BYTES)

    @classmethod
    def of(cls, target: Target, lanes: int) -> Machine:
        """The machine behind a CPU target, for vectors of so many elements."""
        caches = target.l1d_bytes, target.l2_bytes, target.cache_line_bytes
        machine = cls(lanes, target.vectors_per_cycle, *caches, target.threads)
        if target.vector_registers <= FEW_REGISTERS:
            elements = SHORT_STEPS_ELEMENTS_PER_CYCLE
            machine = replace(machine, load_cycles=SHORT_STEPS_LOAD_CYCLES, elements_per_cycle=elements)
        if not 0 < target.l3_bytes <= SMALL_LAST_CACHE:
            return machine
        return replace(machine, foreign_bytes_per_cycle=SMALL_OTHER_CORES_BYTES_PER_CYCLE)


def nest_cycles(
    nest: Nest,
    machine: Machine,
    tile: Sequence[int],
    vectors: int,
    order: Sequence[int],
    step: float | None = None,
) -> float:
    """Cycles of one core for all tiles, on the thread that has the most of them.

    Args:
        nest: what is computed.
        machine: where.
        tile: sizes of the register tile, one for each space axis.
        vectors: registers that the tile's vector axis takes.
        order: the space axes from the outermost to the innermost of the loops around the tile.
        step: cycles of a step of the reduction, if not those of multiply-adds in vectors.
    """
    counts = [-(-extent // size) for extent, size in zip(nest.extents, tile, strict=True)]
    tiles = -(-math.prod(counts) // machine.threads)
    registers = math.prod(tile[:-1]) * vectors
    arithmetic = nest.steps * (_step_cycles(nest, machine, tile, vectors) if step is None else step)
    transfers = [_transfer_cycles(nest, machine, tile, counts, order, item) for item in nest.operands]
    near, far = (math.fsum(part) for part in zip(*transfers, strict=True))
    waits = (1.0 - L2_HIDDEN) * min(near, arithmetic) + (1.0 - machine.l3_hidden) * min(far, arithmetic)
    stores = STORE_CYCLES * registers * _straddling(tile[-1], machine.lanes, vectors, nest.stores_straddle)
    cold = math.fsum(_cold_cycles(nest, machine, tile, counts, order, item) for item in nest.operands)
    foreign = _foreign_cycles(nest, machine, order)
    return tiles * (max(arithmetic, near + far) + waits + stores + TILE_CYCLES) + cold + foreign


def memory_bytes_per_cycle(target: Target, unmeasured: float) -> float:
    """What memory delivers to all cores together; `unmeasured` where the board does not say."""
    if target.memory_gbs is None:
        return unmeasured
    return 1e9 * target.memory_gbs / target.clock_hz


def first_read_cycles(size_bytes: float, machine: Machine) -> float:
    """Cycles in which a first pass waits for weights that vary along several axes: `nest_cycles` counts their
    reading only where they do not stay in the second cache."""
    if size_bytes > L2_SHARE * machine.l2_bytes:
        return 0.0
    return (1.0 - machine.l3_hidden) * size_bytes / machine.l3_bytes_per_cycle


def far_bytes(nest: Nest, machine: Machine, tile: Sequence[int], order: Sequence[int]) -> float:
    """Bytes that all tiles read from beyond the second cache; arguments as of `nest_cycles`."""
    counts = [-(-extent // size) for extent, size in zip(nest.extents, tile, strict=True)]
    far = [_transfer_cycles(nest, machine, tile, counts, order, item)[1] for item in nest.operands]
    return machine.l3_bytes_per_cycle * math.prod(counts) * math.fsum(far)


def _step_cycles(nest: Nest, machine: Machine, tile: Sequence[int], vectors: int) -> float:
    """One step of the reduction for a tile."""
    loaded = elements = 0.0
    last = len(tile) - 1
    for operand in nest.operands:
        each = float(math.prod(tile[position] for position in operand.axes if position != last))
        each *= vectors if operand.repeated else 1
        if last in operand.axes:
            loaded += each * vectors * _straddling(tile[-1], machine.lanes, vectors, operand.straddles)
        elif _collides(operand, machine, tile):
            elements += each * machine.elements_per_cycle * machine.line_bytes / L2_BYTES_PER_CYCLE
        else:
            elements += each
    multiplied = math.prod(tile[:-1]) * vectors
    loading = loaded / machine.rate + elements / machine.elements_per_cycle
    busy = max(loading, multiply_add_cycles(multiplied, machine.rate))
    return busy + machine.load_cycles * (loaded + elements) + LOOP_CYCLES


def multiply_add_cycles(sums: float, rate: float) -> float:
    """Of a step with a multiply-add for each of so many sums, `rate` in a cycle; see LATENCY_POWER."""
    together = (sums / rate) ** LATENCY_POWER + FMA_LATENCY_CYCLES**LATENCY_POWER
    return math.pow(together, 1 / LATENCY_POWER)


def _straddling(size: int, lanes: int, vectors: int, anywhere: bool) -> float:
    """Cache lines that a vector touches on average: `size` elements in `vectors` registers, `anywhere` or in
    rows of such tiles."""
    if not anywhere and (size % lanes == 0 or lanes % size == 0):
        return 1.0
    return 1.0 + max(0.0, size / vectors - 1.0) / lanes


def _collides(operand: Operand, machine: Machine, tile: Sequence[int]) -> bool:
    """Whether the rows that a tile reads side by side fall into too few sets of the first cache to stay.

    One way of a set is for what passes through it. On a Zen 4, with eight ways, seven rows in a set stay:
    tiles of 13 rows 2 KiB apart are 1.07 times as fast as those of 7, which cover 13 with one too many.
    """
    last = len(tile) - 1
    if last in operand.axes or not operand.strides_bytes:
        return False
    ways = machine.ways
    rows = math.prod(tile[position] for position in operand.axes)
    if rows < ways:
        return False
    sizes = [tile[position] for position in operand.axes]
    return fullest_set(sizes, operand.strides_bytes, machine.line_bytes) >= ways


def fullest_set(sizes: Sequence[int], strides_bytes: Sequence[int], line_bytes: int) -> int:
    """How many cache lines of a block fall into one set of the first cache, at most: the beginnings of
    `sizes` rows along each axis, so many bytes apart."""
    places = itertools.product(*map(range, sizes))
    lines = {sum(map(operator.mul, place, strides_bytes)) // line_bytes for place in places}
    return max(Counter(line % (WAY_BYTES // line_bytes) for line in lines).values())


def _cold_cycles(
    nest: Nest,
    machine: Machine,
    tile: Sequence[int],
    counts: Sequence[int],
    order: Sequence[int],
    operand: Operand,
) -> float:
    """Cycles in which the first pass waits for weights that fit the second cache but not the first.

    None where they come panel by panel, each fetched during the passes over the one before it
    (codegen/llvm/prefetch.py).
    """
    last = len(counts) - 1
    if operand.axes != (last,):
        return 0.0
    size, panel = (operand.bytes_each * extent for extent in (nest.extents[last], tile[last]))
    if not machine.l1_bytes < size <= L2_SHARE * machine.l2_bytes:
        return 0.0
    passes = math.prod(counts[:-1])
    ahead = order[0] == last and 1 < passes <= MOST_PASSES and panel <= PANEL_SHARE * machine.l2_bytes
    return 0.0 if ahead else size / COLD_BYTES_PER_CYCLE


def _foreign_cycles(nest: Nest, machine: Machine, order: Sequence[int]) -> float:
    """Cycles in which threads that share the vector axis wait for what other cores have written: each reads
    all of the data, which threads of the operator before wrote in parts."""
    last = len(order) - 1
    if order[0] != last or machine.threads == 1:
        return 0.0
    data = [operand for operand in nest.operands if last not in operand.axes]
    size = math.fsum(
        operand.bytes_each * math.prod(nest.extents[position] for position in operand.axes)
        for operand in data
    )
    return (1.0 - 1.0 / machine.threads) * size / machine.foreign_bytes_per_cycle


def _transfer_cycles(
    nest: Nest,
    machine: Machine,
    tile: Sequence[int],
    counts: Sequence[int],
    order: Sequence[int],
    operand: Operand,
) -> tuple[float, float]:
    """Cycles in which a tile's share of an operand comes from the second cache, and from farther."""
    read = operand.bytes_each * math.prod(tile[position] for position in operand.axes)
    size = operand.bytes_each * math.prod(nest.extents[position] for position in operand.axes)

    def missing(cache_bytes: float) -> float:
        """The share of the tiles that do not find it in a cache: what fits, repeated loops read once."""
        if size <= cache_bytes:
            return 0.0
        share, swept = 1.0, read
        for position in reversed(order):
            if position in operand.axes:
                swept *= counts[position]
            elif swept <= cache_bytes:
                share /= counts[position]
        return share

    beyond_first = missing(CACHE_SHARE * machine.l1_bytes)
    beyond_second = missing(L2_SHARE * machine.l2_bytes)
    near = read * (beyond_first - beyond_second) / L2_BYTES_PER_CYCLE
    return near, read * beyond_second / machine.l3_bytes_per_cycle
