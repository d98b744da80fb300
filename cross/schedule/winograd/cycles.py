"""The block of a Winograd convolution's untuned program, chosen by estimated cycles.

Weights are read once for every block, so that a layer with many of them wants few blocks; what a block
hands from step to step stays in the caches if it is small.
"""

from __future__ import annotations

import math
from functools import cache, partial

import msgspec
from msgspec.structs import replace

from boards.target import IN_ORDER_CPUS, Target
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Lookup, walk
from cross.schedule.core import Core, core_of, fits_registers
from cross.schedule.cycles import (
    FMA_LATENCY_CYCLES,
    L2_SHARE,
    L3_BYTES_PER_CYCLE,
    OTHER_CORES_BYTES_PER_CYCLE,
    SMALL_LAST_CACHE,
    Machine,
    Nest,
    Operand,
    first_read_cycles,
    memory_bytes_per_cycle,
    multiply_add_cycles,
    nest_cycles,
)
from cross.schedule.in_order_tiles import in_order_cycles, memory_cycles, tile_merit
from cross.schedule.tiles import factors, vector_count, waste
from cross.schedule.winograd.stages import WinogradStages

PREFERRED_TILE = 8  # of registers: tiles, with two vectors each enough to hide the latency of multiply-adds
PREFERRED_VECTORS = 2  # of channels, for every tile in registers; three where these waste fewer lanes
LARGEST_BLOCK = 64  # tiles in one dimension
LARGEST_TILE = 14  # of registers, in one dimension
BLOCK_WASTE = 1.25  # tiles computed to tiles needed: blocks that overlap more are left out of the space
HANDED_TRANSFERS = 3  # of V and M that the third cache does not hold: read to be written, written, read
LAST_CACHE_SHARE = 0.5  # for weights of one operator, which those of others displace: an assumption
MEMORY_BYTES_PER_CYCLE = 5.0
"""Of targets whose memory was not measured, in a cycle as these are estimated, of which a Zen 3 does 4.3 in a
nanosecond: its memory gives 18 GB/s to one core and 27 to two, that of a Zen 4 25. With 9.5, which counts
cycles of the nominal clock, one core of the Zen 3 computed ResNet-18's last convolutions by F(4x4,3x3) with
38 MB of weights, and the network took 1.07 times as long."""
LARGE_BYTES_PER_CYCLE, SMALL_BYTES_PER_CYCLE, HIDDEN = 9.0, 12.0, 0.6
"""Of weights from a last cache of more than SMALL_LAST_CACHE, or of at most that; HIDDEN as L3_HIDDEN, but
panels of weights are fetched ahead. Chosen by what becomes faster. The large one's on an Emerald Rapids
Xeon with 300 MiB, whose last cache gives a core 8.7 to 9.3 bytes: with the figures of other nests
R(2+1)D-18 takes 1.03 times as long, a YOLO on one thread 1.05, SqueezeNet on two 1.03 to 1.05.
The small one's on a Zen 4 with 32 MiB: of six convolutions of ResNet-18 and R(2+1)D-18 five are then
computed in the faster way, in blocks or the whole image at once (three of them in 1.27 to 1.5 times less
time), otherwise two; the sixth loses 3 %."""
TRANSFORM_CYCLES, TRANSFORM_CYCLES_OF_AN_INPUT = 2.2, 1.35
"""Of a transform, for each vector of channels at one position and for each input that the position adds up:
on average 1.4 by F(2x2,3x3)/2x2, 2 by F(2,3), 3.7 by F(4,3), 5.7 by F(5,3). So the latter three take 4.9, 7.2
and 9.9. Measured on a Zen 4 with AVX-512 5.2, 6.6 and 9.7, with AVX2 3.8 and 5.5 by the first two, on a
Sapphire Rapids 6.4 to 7.2 by F(4,3); on a Zen 3 with AVX2 5.7 by F(5,3) on 55x55x16, and 8.8 by
F(4x4,7x7)/2x2, which adds up as many, on the image of a ResNet. Taken to be 14, that convolution was computed
directly, in 1.6 to 1.9 times the time. ARM was not measured."""
IN_ORDER_CYCLES, IN_ORDER_CYCLES_OF_AN_INPUT = 4.5, 2.75
"""The same on a core that runs in order, for each vector and for each input that it adds up: by the issue
model of a Cortex-A53 (cross/inspection/cortex_a53.py) over all instructions of 14 untuned programs, F(2,3)
takes 9.7 to 10.4, F(4,3) 14.3 to 15 and F(5,3) 20."""
IN_ORDER_L2_BYTES_PER_CYCLE = 4.0
"""Of such a core's second cache, for V and M where they are read again: an assumption, not measured."""
PRODUCTS = ((0, 1, 2), (0, 3))
"""What products read: of the axes (position, tile row, tile column, channel), V along three, weights two."""


class Block(msgspec.Struct, frozen=True):
    """Of an untuned program: the steps run over the `whole` image or a block at a time; tiles of a block and
    of registers in (height, width); the cycles of a core, 0 where they are not estimated."""

    whole: bool
    tiles: tuple[int, int]
    registers: tuple[int, int]
    cycles: float


@cache
def block_choices(extent: int) -> tuple[tuple[int, int], ...]:
    """(tiles of a block, tiles of registers) in one dimension of the space."""
    result = []
    for block in factors(extent, LARGEST_BLOCK):
        if block != extent and waste(extent, block) > BLOCK_WASTE:
            continue
        result += [(block, tile) for tile in _tiles(block, LARGEST_TILE)]
    return tuple(result)


def _tiles(extent: int, most: int) -> list[int]:
    """Sizes of a tile of registers in one dimension that compute little twice; 1 is always among them."""
    return [tile for tile in factors(extent, min(most, LARGEST_TILE)) if waste(extent, tile) <= BLOCK_WASTE]


def product_channels(stages: WinogradStages, target: Target, tiles: int) -> int:
    """Output channels that the untuned products compute at a time with so many tiles in registers: two
    vectors, or three where these fit and waste fewer lanes, or wait less for multiply-adds."""
    lanes, channels = target.vector_lanes(ITEM_BYTES[stages.products.dtype]), stages.products.shape[-1]
    rate, wider = Machine.of(target, lanes).rate, PREFERRED_VECTORS + 1
    core = core_of(target, stages.products.dtype)
    fits = _merit(core, tiles, wider) > 0 if core.in_order else (tiles + 1) * wider < target.vector_registers
    choices = [min(count * lanes, channels) for count in (PREFERRED_VECTORS, *([wider] if fits else []))]

    def cycles(size: int) -> float:
        vectors = vector_count(size, lanes)
        if core.in_order:
            merit = _merit(core, tiles, vectors)
            return waste(channels, size) / merit if merit else math.inf
        each = multiply_add_cycles(tiles * vectors, rate) / (tiles * vectors)
        # To a hundredth of a cycle for a vector: a tile that is wider and saves less is not worth it.
        return round(waste(channels, size) * each, 2)

    return min(choices, key=cycles)


def preferred_block(stages: WinogradStages, target: Target, most_bytes: int) -> Block:
    """The block of the untuned program; V and M of one that is not the whole take at most `most_bytes`."""
    rated = _rated_in_order if target.cpu in IN_ORDER_CPUS else _rated
    found = [block for block in _blocks(stages, target) if _fits(block, stages, most_bytes)]
    return min((rated(block, stages, target) for block in found), key=lambda block: block.cycles)


def _blocks(stages: WinogradStages, target: Target) -> list[Block]:
    """Blocks to consider, all of the space. Whole rows: as few as keep a tile of registers busy, twice as
    many, the share of a core, or all; of long rows, parts. A tile leaves registers for operands."""
    height, columns = stages.grid
    most = max(1, min(PREFERRED_TILE, (target.vector_registers - 3) // PREFERRED_VECTORS))
    lanes = target.vector_lanes(ITEM_BYTES[stages.products.dtype])
    busy_tile = partial(_busy_tile, Machine.of(target, lanes).rate)
    tile_of = _even_tile if most == PREFERRED_TILE else busy_tile
    core = core_of(target, stages.products.dtype)
    if core.in_order:
        tile_of = partial(_in_order_tile, core)

    def block(rows: int, width: int, *, whole: bool = False) -> Block:
        return Block(whole, (rows, width), tile_of(rows, width, most), 0.0)

    heights = {rows for rows, _ in block_choices(height)}
    fewest = min(height, -(-(most - 1) // columns))
    shared = -(-height // target.threads)
    wanted = {fewest, min(2 * fewest, height), max(shared, fewest), height}
    # Of a row: the smallest part that is worth a block, and the largest, which is all of a short row.
    parts = [_even_part(columns, size) for size in (2 * PREFERRED_TILE, LARGEST_BLOCK)]
    if columns > LARGEST_BLOCK:
        found = [block(1, width) for width in parts]
    else:
        found = [block(rows, columns) for rows in sorted(wanted & heights)]
    # Of the whole image, threads share the results by blocks of the fewest rows, or fewer that the space has.
    lowest = max(rows for rows in heights if rows <= fewest)
    whole = block(lowest, parts[-1], whole=True)
    # Of two that are estimated to take as long, the first is taken.
    found.insert(1 if lowest == fewest else len(found), whole)
    if core.in_order:  # whose second caches are small
        registers = tile_of(height, columns, most)
        found.insert(0, Block(False, registers, registers, 0.0))
    return found


def _even_part(extent: int, most: int) -> int:
    """The block of at most that size that wastes least, the largest of them."""
    return max(
        (part for part, _ in block_choices(extent) if part <= most),
        key=lambda part: (-waste(extent, part), part),
    )


def _even_tile(rows: int, columns: int, most: int) -> tuple[int, int]:
    """The tile of at most that size that wastes least, first of the columns; the largest of them."""

    def even(extent: int, most: int) -> int:
        return max(_tiles(extent, most), key=lambda tile: (-waste(extent, tile), tile))

    wide = even(columns, most)
    return even(rows, most // wide), wide


def _busy_tile(rate: float, rows: int, columns: int, most: int) -> tuple[int, int]:
    """The tile of at most that size with the fewest cycles a result: with few registers the one that wastes
    least is often so small that it waits for its multiply-adds (7 tiles in a row, of which 6 fit), of which
    the core begins `rate` in a cycle."""

    def merit(tile: tuple[int, int]) -> tuple[float, ...]:
        wasted = waste(rows, tile[0]), waste(columns, tile[1])
        multiplied = math.prod(tile) * PREFERRED_VECTORS / rate
        waiting = max(1.0, FMA_LATENCY_CYCLES / multiplied)
        return (-waiting * math.prod(wasted), -wasted[1], tile[1], -wasted[0], tile[0])

    tiles = ((high, wide) for wide in _tiles(columns, most) for high in _tiles(rows, most // wide))
    return max(tiles, key=merit)


def _in_order_tile(core: Core, rows: int, columns: int, most: int) -> tuple[int, int]:
    """The tile of at most that size with the largest merit, with two or three vectors of channels."""

    def merit(tile: tuple[int, int]) -> tuple[float, int]:
        best = max(_merit(core, math.prod(tile), PREFERRED_VECTORS + more) for more in (0, 1))
        return best / (waste(rows, tile[0]) * waste(columns, tile[1])), tile[1]

    tiles = ((high, wide) for wide in _tiles(columns, most) for high in _tiles(rows, most // wide))
    return max(tiles, key=merit)


def _merit(core: Core, tiles: int, vectors: int) -> float:
    """Of a tile of registers with so many vectors of channels on a core that runs in order; 0: too large."""
    counts = (1, 1, tiles, vectors)
    return tile_merit(counts, PRODUCTS, core) if fits_registers(counts, PRODUCTS, core) else 0.0


def handed_bytes(stages: WinogradStages) -> int:
    """Bytes of V and M for one tile."""
    elements = math.prod(stages.data.shape[:2]) * stages.data.shape[-1]
    elements += stages.multiplications * stages.products.shape[-1]
    return elements * ITEM_BYTES[stages.products.dtype]


def _fits(block: Block, stages: WinogradStages, most_bytes: int) -> bool:
    return block.whole or math.prod(block.tiles) * handed_bytes(stages) <= most_bytes


def _rated(block: Block, stages: WinogradStages, target: Target) -> Block:
    """A block with the cycles of a core for all of its share of the image."""
    item_bytes = ITEM_BYTES[stages.products.dtype]
    lanes = target.vector_lanes(item_bytes)
    machine = _machine(target, lanes)
    channels, outputs = stages.data.shape[-1], stages.products.shape[-1]
    positions, tiles = stages.multiplications, stages.grid if block.whole else block.tiles
    width = product_channels(stages, target, math.prod(block.registers))

    operands = (
        Operand((0, 1, 2), channels * item_bytes, straddles=False),
        Operand((0, 3), channels * item_bytes, straddles=False),
    )
    nest = Nest((positions, *tiles, outputs), channels, operands, stores_straddle=False)
    cycles = nest_cycles(
        nest, machine, (1, *block.registers, width), vector_count(width, lanes), (0, 3, 1, 2)
    )

    vectors = math.prod(stages.data.shape[:2]) * vector_count(channels, lanes)
    vectors += positions * vector_count(outputs, lanes)
    cycles += _transform_cycles(stages, target) * math.prod(tiles) * vectors
    handed = math.prod(tiles) * handed_bytes(stages)
    images = stages.tiles // math.prod(stages.grid)
    if handed > L2_SHARE * target.l2_bytes:
        cycles += 2 * handed / L3_BYTES_PER_CYCLE
    if block.whole and target.threads > 1:  # the part of V and M that other cores wrote and still hold
        foreign = (1.0 - 1.0 / target.threads) * min(images * handed, target.threads * target.l2_bytes)
        # By way of a small last cache, too: on a Zen 4 twice that rate makes ResNets 1.02 times as fast and
        # SqueezeNet 0.985, and this one a YOLO 1.2 while the cores are far apart (190 ns there and back).
        cycles += foreign / images / OTHER_CORES_BYTES_PER_CYCLE
    if block.whole and 0 < LAST_CACHE_SHARE * target.l3_bytes < images * handed:
        cycles += HANDED_TRANSFERS * handed / memory_bytes_per_cycle(target, MEMORY_BYTES_PER_CYCLE)

    blocks = math.prod(-(-all_ // own) for all_, own in zip(stages.grid, tiles, strict=True))
    share = images / target.threads if block.whole else -(-images * blocks // target.threads)
    weight_bytes = positions * channels * outputs * item_bytes
    cycles = cycles * share + first_read_cycles(weight_bytes, machine)
    if weight_bytes > LAST_CACHE_SHARE * (target.l3_bytes or target.l2_bytes):
        # They come from memory, which all cores share; blocks computed at the same time read the same ones.
        moved = weight_bytes * (1 if block.whole else share)
        cycles = max(cycles, moved / memory_bytes_per_cycle(target, MEMORY_BYTES_PER_CYCLE))
    return Block(block.whole, block.tiles, block.registers, cycles)


def _rated_in_order(block: Block, stages: WinogradStages, target: Target) -> Block:
    """The same for cores that run in order: arithmetic by the merit of tiles, V and M by way of the second
    cache, and what passes through memory, which all cores share and wait for."""
    item_bytes, core = ITEM_BYTES[stages.products.dtype], core_of(target, stages.products.dtype)
    channels, outputs = stages.data.shape[-1], stages.products.shape[-1]
    positions, tiles = stages.multiplications, stages.grid if block.whole else block.tiles
    width = product_channels(stages, target, math.prod(block.registers))
    extents, tile = (positions, *tiles, outputs), (1, *block.registers, width)
    cycles = in_order_cycles(extents, channels, tile, PRODUCTS, core)
    vectors = math.prod(stages.data.shape[:2]) * vector_count(channels, core.lanes)
    vectors += positions * vector_count(outputs, core.lanes)
    cycles += _transform_cycles(stages, target) * math.prod(tiles) * vectors
    handed = math.prod(tiles) * handed_bytes(stages)
    if handed > target.l1d_bytes:
        cycles += handed / IN_ORDER_L2_BYTES_PER_CYCLE

    images = stages.tiles // math.prod(stages.grid)
    blocks = images * math.prod(-(-all_ // own) for all_, own in zip(stages.grid, tiles, strict=True))
    held, together = L2_SHARE * target.l2_bytes, 1 if block.whole else target.threads
    share = blocks / target.threads if block.whole else -(-blocks // target.threads)
    weight_bytes = positions * channels * outputs * item_bytes
    # Blocks that cores compute at the same time read the same weights.
    moved = weight_bytes * (1 if weight_bytes <= held else -(-blocks // together))
    moved += HANDED_TRANSFERS * handed * blocks if handed * together > held else 0
    cycles = cycles * share + memory_cycles(moved, target)
    return Block(block.whole, block.tiles, block.registers, cycles)


def _transform_cycles(stages: WinogradStages, target: Target) -> float:
    """Of a vector of channels at one position, by how much the input's transform adds up there."""
    assert stages.rows.body is not None
    matrix = next(term.matrix for term in walk(stages.rows.body) if isinstance(term, Lookup))
    added = sum(value != 0 for row in matrix for value in row) / len(matrix[0])
    if target.cpu in IN_ORDER_CPUS:
        return IN_ORDER_CYCLES + IN_ORDER_CYCLES_OF_AN_INPUT * added
    return TRANSFORM_CYCLES + TRANSFORM_CYCLES_OF_AN_INPUT * added


def _machine(target: Target, lanes: int) -> Machine:
    """One core of the target, with what its last cache gives to it."""
    machine = replace(Machine.of(target, lanes), threads=1)
    if not target.l3_bytes:
        return machine
    rate = SMALL_BYTES_PER_CYCLE if target.l3_bytes <= SMALL_LAST_CACHE else LARGE_BYTES_PER_CYCLE
    return replace(machine, l3_bytes_per_cycle=rate, l3_hidden=HIDDEN)
