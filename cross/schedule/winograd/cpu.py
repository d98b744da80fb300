"""Sketches for Winograd convolutions on CPUs: both transforms and the products in one nest.

    parallel blocks of output tiles
        V   input transform of the block: a tile and a vector of channels at a time, unrolled over positions
        M   products: for every position a matrix product with a tile of registers over tiles and channels
        out inverse transform, unrolled, with the elementwise consumers, stored into the output

Under "blocks" V and M hold the tiles of one block, so that they stay in the caches between the steps. Under
"whole" each step runs over the whole image, positions of M in parallel: for layers with few tiles. The
matrices of the transforms are literals in the unrolled code (Ansor's rule for constant tensors).

Start at `winograd_spaces` for an operator with a direct convolution: it takes the weights as they are, and
packing transforms them. `winograd_space` is for an operator that is in Winograd form already.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from boards.target import IN_ORDER_CPUS, Target
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Tensor
from cross.schedule.core import core_of
from cross.schedule.cycles import Machine
from cross.schedule.in_order_tiles import lane_steps
from cross.schedule.knobs import Knob, single, structural
from cross.schedule.primitives import (
    CacheWrite,
    ComputeAt,
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
from cross.schedule.reduction_steps import has_long_steps
from cross.schedule.space import Constraint, ScheduleSpace, Values
from cross.schedule.tiles import divisors, vector_count, vector_tiles
from cross.schedule.winograd.cycles import (
    block_choices,
    handed_bytes,
    preferred_block,
    product_channels,
)
from cross.schedule.winograd.stages import WinogradStages, algorithms, transform, winograd_stages

LOCAL_BYTES = 1 << 20  # at most: V and M of a block are on the stack of a thread, which has a few MiB
MOST_STATEMENTS = 640  # of the unrolled inner loop of the products, in vector operations
PRODUCT_STEPS = 4  # of a sum, written out in the untuned program unless one takes long
TRANSFORMED_VECTORS = 2
"""Of channels at a time in the untuned program on x86-64. Measured on one core of a Zen 4 with AVX-512: with
that a ResNet-18 was 1.03 to 1.05 times as fast, SqueezeNet and a YOLO 1.01. With AVX2 they are a cache line,
which with one is lost halfway where positions lie a power of two apart: 49 untuned convolutions of these
networks are 0.9 to 1.3 times as fast on a Zen 3, 1.03 in the mean, 24 with SSE 1.02."""
BESIDE_A_LINE = 3
"""Registers for sums and factors. With AVX2 LLVM spills 18 for two vectors of 7 inputs at a time, of 6 none;
on a Zen 3 F(5,3) is 0.99 to 1.01 times as fast by two, where it is the fastest algorithm."""


def winograd_spaces(operator: Operator, target: Target) -> dict[str, ScheduleSpace]:
    """The spaces of the Winograd forms of an operator by algorithm; empty where none is worth a look."""
    return {
        name: _space(operator, program, stages, target)
        for name, program, stages in algorithms(operator, target, flat=False)
    }


def winograd_space(operator: Operator, target: Target) -> ScheduleSpace | None:
    """The schedule space of an operator in Winograd form for a CPU, None for any other operator."""
    stages = winograd_stages(operator)
    return None if stages is None else _space(operator, operator, stages, target)


def _space(operator: Operator, program: Operator, stages: WinogradStages, target: Target) -> ScheduleSpace:
    lanes = target.vector_lanes(ITEM_BYTES[stages.output.dtype])
    block = preferred_block(stages, target, _most_bytes(target))
    ways = [
        structural("staging", ("blocks", "whole"), int(block.whole)),
        structural("order", ("tiles inside", "channels inside")),
    ]
    if stages.paddings and stages.depths == (1, 1):
        # In order, a copy takes as long as guards do, and loops without a call at borders reload no factors.
        ways.append(structural("padding", ("materialized", "inlined"), int(target.cpu not in IN_ORDER_CPUS)))
    channels_in, channels_out = stages.data.shape[-1], stages.output.shape[-1]
    reductions = [size for size in divisors(stages.products.reduce_axes[-1].extent) if size <= 32]
    core = core_of(target, stages.products.dtype)
    channels = product_channels(stages, target, math.prod(block.registers))
    step = math.prod(block.registers) * core.vectors(channels) / Machine.of(target, lanes).rate
    steps = 1 if has_long_steps(core, step) else PRODUCT_STEPS
    if core.in_order:
        _, steps = lane_steps(core, (*block.registers, core.vectors(channels)), None)
    transformed = TRANSFORMED_VECTORS * lanes if target.triple.startswith("x86_64") else lanes
    lines_fit = TRANSFORMED_VECTORS * max(stages.data.shape[:2]) + BESIDE_A_LINE <= target.vector_registers
    knobs = (
        *ways,
        Knob(
            "block.h",
            ("block.h", "products.h"),
            block_choices(stages.grid[0]),
            preferred=(block.tiles[0], block.registers[0]),
        ),
        Knob(
            "block.w",
            ("block.w", "products.w"),
            block_choices(stages.grid[1]),
            preferred=(block.tiles[1], block.registers[1]),
        ),
        single("products.c", _vectors(channels_out, lanes, 4), channels),
        single("products.kc", reductions, steps),
        single("data.c", _vectors(channels_in, lanes, 2), transformed if lines_fit else lanes),
        single("output.c", _vectors(channels_out, lanes, 2), transformed),
    )
    build = partial(_schedule, stages, target)
    constraints = tuple(_constraints(stages, lanes, target))
    space = ScheduleSpace(operator, target, knobs, constraints, build, program=program)
    space.cycles = block.cycles
    return space


def _most_bytes(target: Target) -> int:
    """What V and M of a block may take."""
    return min(LOCAL_BYTES, 2 * target.l2_bytes)


def _vectors(extent: int, lanes: int, most_vectors: int) -> list[int]:
    sizes = vector_tiles(extent, lanes, most_vectors)
    wide = [size for size in sizes if size >= min(lanes, extent)]
    return wide or sizes


def _constraints(stages: WinogradStages, lanes: int, target: Target) -> list[Constraint]:
    tile_bytes, most_bytes = handed_bytes(stages), _most_bytes(target)
    counts = np.array([vector_count(size, lanes) for size in range(stages.products.shape[-1] + 1)])

    def accumulators(values: Values) -> NDArray[np.int64]:
        return np.asarray(values["products.h"] * values["products.w"] * counts[values["products.c"]])

    registers = target.vector_registers
    return [
        Constraint(
            "products.registers",
            f"accumulators, one row of operands and a broadcast fit in {registers} registers",
            lambda values: accumulators(values) + counts[values["products.c"]] + 1 <= registers,
        ),
        Constraint(
            "products.code",
            f"the inner loop has at most {MOST_STATEMENTS} operations",
            lambda values: accumulators(values) * values["products.kc"] <= MOST_STATEMENTS,
        ),
        Constraint(
            "block.local",
            f"a block's V and M take at most {most_bytes} bytes",
            lambda values: (
                (values["staging"] == 1) | (values["block.h"] * values["block.w"] * tile_bytes <= most_bytes)
            ),
        ),
    ]


# -------------------------------------------------------------------------------------------- schedules


def _schedule(stages: WinogradStages, target: Target, structure: Mapping[str, int]) -> Schedule:
    whole = structure["staging"] == 1
    result: list[Primitive] = [Inline(name) for name in stages.inlined]
    cached = (stages.rows, stages.data, stages.products, stages.half)
    result += [CacheWrite(stage.name) for stage in cached]
    for padding in stages.paddings:
        if structure.get("padding") == 1:
            result.append(Inline(padding.name))
        else:
            result += _materialized(padding, stages, target)
    result += _output(stages)
    if not whole:
        result.append(ComputeAt(stages.products.name, *_block_loop(stages), "local"))
    result += _products(stages, whole, tiles_inside=structure["order"] == 0)
    if not whole:
        result.append(ComputeAt(stages.data.name, *_block_loop(stages), "local"))
    return (*result, *_accumulated_products(stages), *_data(stages, whole))


def _block_loop(stages: WinogradStages) -> tuple[str, str]:
    """The innermost loop over blocks of tiles."""
    return stages.output.name, f"{stages.image[1].name}.0"


def _materialized(padding: Tensor, stages: WinogradStages, target: Target) -> list[Primitive]:
    """A padded copy of the input, rows in parallel.

    With space to depth, channels that lie side by side in the image are of one row of it: a vector must not
    have those of two.
    """
    name, axes = padding.name, padding.axes
    vector = min(4 * target.vector_lanes(ITEM_BYTES[padding.dtype]), axes[-1].extent)
    if stages.depths != (1, 1):
        together = axes[-1].extent // stages.depths[0]
        vector = max(size for size in divisors(together) if size <= vector)
    return [
        Split(name, axes[-1].name, (vector,)),
        Parallel(name, axes[0].name),
        Parallel(name, axes[1].name),
        Vectorize(name, f"{axes[-1].name}.1"),
    ]


def _output(stages: WinogradStages) -> list[Primitive]:
    """Blocks of tiles in parallel; the inverse transform of a tile and a vector of channels at a time.

    First its columns, which pass through memory, then row by row of its outputs; phase after phase.
    """
    name, b, c = stages.output.name, stages.output.axes[0].name, stages.output.axes[-1].name
    h, w = (axis.name for axis in stages.image)
    outer = (b, f"{h}.0", f"{w}.0", f"{h}.1", f"{w}.1", f"{c}.0", *stages.phases)
    order = (*outer, f"{h}.2", f"{w}.2", f"{c}.1")
    return [
        Split(name, h, ("block.h", stages.size[0]), whole_tiles=True),
        Split(name, w, ("block.w", stages.size[1]), whole_tiles=True),
        Split(name, c, ("output.c",)),
        Reorder(name, order),
        *(Parallel(name, loop) for loop in order[:3]),
        Unroll(name, f"{h}.2"),
        Unroll(name, f"{w}.2"),
        Vectorize(name, f"{c}.1"),
        ComputeAt(stages.tile.name, name, f"{h}.2", "register"),
        *transform(stages.tile.name, stages.tile, len(stages.tile.axes) - 2),
        ComputeAt(stages.half.name, name, outer[-1], "local"),
        *_through_memory(stages.half),
    ]


def _through_memory(stage: Tensor, *, halves: bool = False) -> list[Primitive]:
    """The first of the two sums of a transform: one line of a tile at a time in registers, then stored.

    All of a tile would not fit in registers.
    """
    name = stage.name
    *outside, across, along, channel = (axis.name for axis in stage.axes)
    return [
        Reorder(name, (*outside, along, across, channel)),
        Unroll(name, across),
        Vectorize(name, channel),
        ComputeAt(f"{name}.acc", name, along, "register"),
        *transform(f"{name}.acc", stage, len(stage.axes) - 3, halves=halves),
    ]


def _products(stages: WinogradStages, whole: bool, tiles_inside: bool) -> list[Primitive]:
    """A matrix product per position: a tile of registers over tiles and output channels."""
    name = stages.products.name
    *positions, b, ty, tx, c = (axis.name for axis in stages.products.axes)
    outer = (f"{c}.0", f"{ty}.0", f"{tx}.0") if tiles_inside else (f"{ty}.0", f"{tx}.0", f"{c}.0")
    inner = (f"{ty}.1", f"{tx}.1", f"{c}.1")
    return [
        Split(name, ty, ("products.h",)),
        Split(name, tx, ("products.w",)),
        Split(name, c, ("products.c",)),
        Reorder(name, (*positions, b, *outer, *inner)),
        *((Parallel(name, loop) for loop in positions) if whole else ()),
        *(Unroll(name, loop) for loop in inner[:2]),
        Vectorize(name, inner[2]),
        ComputeAt(f"{name}.acc", name, outer[-1], "register"),
    ]


def _accumulated_products(stages: WinogradStages) -> list[Primitive]:
    """The innermost loops of the products."""
    accumulated = f"{stages.products.name}.acc"
    *depths, summed = (axis.name for axis in stages.products.reduce_axes)
    *positions, b, ty, tx, c = (axis.name for axis in stages.products.axes)
    return [
        Split(accumulated, summed, ("products.kc",)),
        Reorder(accumulated, (*positions, b, *depths, f"{summed}.0", f"{summed}.1", ty, tx, c)),
        *(Unroll(accumulated, loop) for loop in (f"{summed}.1", ty, tx)),
        Vectorize(accumulated, c),
        Pack(stages.weights, accumulated, stages.weight_maps),
    ]


def _data(stages: WinogradStages, whole: bool) -> list[Primitive]:
    """The input transform of a tile and a vector of channels at a time: its columns, then its rows."""
    name = stages.data.name
    x, y, b, ty, tx, c = (axis.name for axis in stages.data.axes)
    return [
        Split(name, c, ("data.c",)),
        Reorder(name, (b, ty, tx, f"{c}.0", x, y, f"{c}.1")),
        *((Parallel(name, loop) for loop in (b, ty, tx)) if whole else ()),
        Unroll(name, y),
        Vectorize(name, f"{c}.1"),
        ComputeAt(f"{name}.acc", name, x, "register"),
        *transform(f"{name}.acc", stages.data, 1, halves=True),
        ComputeAt(stages.rows.name, name, f"{c}.0", "local"),
        *_through_memory(stages.rows, halves=True),
    ]
