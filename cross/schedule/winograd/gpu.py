"""Sketches for Winograd convolutions on GPUs: three launches, with V and M in global memory between them.

    V    input transform: a thread transforms a tile of a vector of channels, unrolled, in registers
    M    products: for every position a matrix product, tiled SSSRRSRS as any contraction (gpu_multi_level.py)
    out  inverse transform: a thread a tile of a vector of channels, with the elementwise consumers

A padding that is not inlined is a launch before. The tiles of all images have one axis (winograd/flat.py);
the matrices of the transforms are literals in the unrolled code; the weights are transformed when they are
packed. Start at `gpu_winograd_spaces`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from boards.target import GpuLimits, Target
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Tensor, reads_in
from cross.schedule.gpu_multi_level import (
    OTHER_REGISTERS,
    Contraction,
    contraction,
    contraction_knobs,
    contraction_tiles,
    multi_level,
)
from cross.schedule.gpu_operands import product, register_limits
from cross.schedule.gpu_tiles import THREADS_ALONG_AN_AXIS, tile_sizes, unroll_knob, vector_sizes
from cross.schedule.gpu_two_level import PREFERRED_THREADS, VECTOR_BYTES, launch, two_level, two_level_knobs
from cross.schedule.knobs import Knob, single, structural
from cross.schedule.plan import Group, Plan, make_plan
from cross.schedule.primitives import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Inline,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from cross.schedule.space import Constraint, ScheduleSpace
from cross.schedule.tiles import WASTE, divisors, waste
from cross.schedule.tiling import StageKnobs
from cross.schedule.winograd.stages import WinogradStages, algorithms, transform

FEWEST_CHANNELS = 16  # read or computed: with fewer, V and M cost more to move than the products save
PREFERRED_CHANNEL_THREADS = 32  # a warp: its threads read the channels of one tile side by side


class _Transform(msgspec.Struct, frozen=True):
    """A transform as a launch: which axes of its owner threads are spread over, and what one thread holds."""

    owner: Tensor
    tiles: dict[str, int]  # axes with the number of their tiles
    elements: int  # that a thread holds between the two sums, for every channel of its vector

    @property
    def threads(self) -> tuple[str, ...]:
        """The fields whose product is the number of threads of a block."""
        return *(self.field(axis) for axis in self.tiles), self.field("channels")

    @property
    def vector(self) -> str:
        """The field of the channels that one thread computes."""
        return f"{self.owner.name}.vector"

    def registers(self, vector: Any) -> Any:
        """Registers of a thread, estimated, for a vector of so many channels."""
        return vector * self.elements + OTHER_REGISTERS

    def field(self, axis: str) -> str:
        """The field of a block's threads along an axis."""
        return f"{self.owner.name}.{axis}.threads"


class _Sketch(msgspec.Struct, frozen=True):
    """The launches of a Winograd convolution."""

    plan: Plan
    stages: WinogradStages
    data: _Transform
    products: Contraction
    output: _Transform

    @property
    def transforms(self) -> tuple[_Transform, _Transform]:
        """The launches that transform."""
        return self.data, self.output


def gpu_winograd_spaces(operator: Operator, target: Target, limits: GpuLimits) -> dict[str, ScheduleSpace]:
    """The spaces of the Winograd forms of an operator by algorithm; empty where none is worth a look."""
    found = {}
    for name, program, stages in algorithms(operator, target, flat=True):
        sketch = _sketch(program, stages, limits)
        if _fits(sketch, limits):
            found[name] = _space(operator, program, sketch, target, limits)
    return found


def _fits(sketch: _Sketch, limits: GpuLimits) -> bool:
    """Whether there are channels enough, and registers for the transform of a tile."""
    channels = min(sketch.stages.data.shape[-1], sketch.stages.output.shape[-1])
    most = limits.registers_per_thread or math.inf
    return channels >= FEWEST_CHANNELS and all(item.registers(1) <= most for item in sketch.transforms)


def _sketch(program: Operator, stages: WinogradStages, limits: GpuLimits) -> _Sketch:
    plan = make_plan(program)
    products = contraction(plan, Group(stages.products, stages.products, True), limits)
    maps = {stages.weights: stages.weight_maps}
    height, width = (axis.name for axis in stages.image)
    tiles_down, tiles_across = (
        -(-axis.extent // size) for axis, size in zip(stages.image, stages.size, strict=True)
    )
    return _Sketch(
        plan,
        stages,
        _Transform(stages.data, {stages.data.axes[2].name: stages.tiles}, math.prod(stages.rows.shape[1:3])),
        replace(products, apart=len(stages.products.axes) - 2, maps=maps),
        _Transform(
            stages.output, {height: tiles_down, width: tiles_across}, math.prod(stages.half.shape[-3:-1])
        ),
    )


# ------------------------------------------------------------------------------------------------ knobs


def _space(
    operator: Operator, program: Operator, sketch: _Sketch, target: Target, limits: GpuLimits
) -> ScheduleSpace:
    stages = sketch.stages
    knobs: list[Knob] = []
    constraints: list[Constraint] = []
    if sketch.products.operands:
        knobs.append(structural("shared", ("operands", "nothing")))
    if stages.paddings:
        knobs.append(structural("padding", ("materialized", "inlined"), 1))
    for more in (
        *(two_level_knobs(padding, limits) for padding in stages.paddings),
        _transform_knobs(sketch.data, limits),
        contraction_knobs(sketch.products, limits),
        _transform_knobs(sketch.output, limits),
    ):
        knobs += more[0]
        constraints += more[1]
    knobs.append(unroll_knob())
    build = partial(_schedule, sketch)
    tiled = [StageKnobs(padding, launch=launch(padding), is_padding=True) for padding in stages.paddings]
    tiled.append(contraction_tiles(sketch.products))
    rules = tuple(constraints)
    return ScheduleSpace(operator, target, tuple(knobs), rules, build, program=program, tiled=tiled)


def _transform_knobs(item: _Transform, limits: GpuLimits) -> tuple[list[Knob], list[Constraint]]:
    """A block's threads along the tiles and the channels, and the channels of a thread."""
    channels = item.owner.shape[-1]
    widest = min(max(VECTOR_BYTES // ITEM_BYTES[item.owner.dtype], 1), limits.longest_vector)
    vectors = vector_sizes(channels, widest)
    choices = tuple(
        (threads, vector)
        for vector in vectors
        for threads in divisors(channels // vector)
        if threads <= THREADS_ALONG_AN_AXIS
    )
    name = f"{item.owner.name}.channels"
    # Threads in lockstep read side by side; others are worth more work each.
    lanes, most = limits.vector_float_lanes if limits.warp_size == 1 else 1, limits.registers_per_thread
    vector = max(size for size in vectors if size <= lanes and (not most or item.registers(size) <= most))
    along = max(t for t, size in choices if size == vector and t <= PREFERRED_CHANNEL_THREADS)
    knobs = [Knob(name, (item.field("channels"), item.vector), choices, preferred=(along, vector))]
    room = min(PREFERRED_THREADS, limits.threads_of_a_launch) // along
    for axis, count in reversed(item.tiles.items()):
        name = item.field(axis)
        sizes = _thread_counts(count)
        chosen = max(size for size in sizes if size <= max(room, 1))
        knobs.append(single(name, sizes, chosen))
        room //= chosen
    return knobs, _transform_constraints(item, limits)


def _thread_counts(tiles: int) -> list[int]:
    """How many tiles in a row the threads of a block may take."""
    sizes = tile_sizes(tiles, min(tiles, THREADS_ALONG_AN_AXIS))
    return [size for size in sizes if waste(tiles, size) <= WASTE]


def _transform_constraints(item: _Transform, limits: GpuLimits) -> list[Constraint]:
    name, threads, most = item.owner.name, item.threads, limits.threads_of_a_launch
    rule = f"a block has at most {most} threads"
    rules = [Constraint(f"{name}.threads", rule, lambda values: product(values, threads) <= most)]
    if limits.registers_per_thread:
        rule, needed = "what the threads of a block transform fits their registers", item.registers
        name = f"{name}.registers"
        rules.append(register_limits(name, rule, threads, lambda values: needed(values[item.vector]), limits))
    return rules


# -------------------------------------------------------------------------------------------- schedules


def _schedule(sketch: _Sketch, structure: Mapping[str, int]) -> Schedule:
    stages = sketch.stages
    source = reads_in(sketch.plan.body(stages.rows))[0].tensor
    result: list[Primitive] = [Inline(name) for name in stages.inlined if name != source.name]
    result += [CacheWrite(stage.name) for stage in (stages.data, stages.products)]
    stored = [item for item in stages.paddings if structure["padding"] == 0]
    for padding in stored:
        result += two_level(padding)
    is_computed = source.body is not None and source not in stored
    shared = structure.get("shared", 1) == 0
    return (
        *result,
        *_data(sketch.data, stages),
        *(_computed(source, stages.rows) if is_computed else _read_once(source, stages.rows)),
        *multi_level(sketch.plan, sketch.products, shared),
        *_output(sketch.output, stages),
        *_read_once(stages.products, stages.half),
    )


def _data(item: _Transform, stages: WinogradStages) -> list[Primitive]:
    """A thread a tile: its columns, all of them, then row by row of what it stores."""
    name = stages.data.name
    x, y, p, c = (axis.name for axis in stages.data.axes)
    return [
        Split(name, p, (item.field(p),)),
        Split(name, c, (item.field("channels"), item.vector)),
        Reorder(name, (f"{p}.0", f"{c}.0", f"{p}.1", f"{c}.1", x, y, f"{c}.2")),
        *(Bind(name, f"{axis}.0", "block") for axis in (p, c)),
        *(Bind(name, f"{axis}.1", "thread") for axis in (p, c)),
        *(Unroll(name, axis) for axis in (x, y)),
        Vectorize(name, f"{c}.2"),
        ComputeAt(f"{name}.acc", name, x, "register"),
        *transform(f"{name}.acc", stages.data, 1, whole=True),
        ComputeAt(stages.rows.name, name, f"{c}.1", "register"),
        *transform(stages.rows.name, stages.rows, 1, whole=True),
    ]


def _output(item: _Transform, stages: WinogradStages) -> list[Primitive]:
    """A thread a tile of the output, of one phase: its columns, all of them, then row by row."""
    name = stages.output.name
    b, c = stages.output.axes[0].name, stages.output.axes[-1].name
    h, w = (axis.name for axis in stages.image)
    blocks, threads = (b, *stages.phases, f"{h}.0", f"{w}.0", f"{c}.0"), (f"{h}.1", f"{w}.1", f"{c}.1")
    return [
        *(
            Split(name, axis, (item.field(axis), size), whole_tiles=True)
            for axis, size in zip((h, w), stages.size, strict=True)
        ),
        Split(name, c, (item.field("channels"), item.vector)),
        Reorder(name, (*blocks, *threads, f"{h}.2", f"{w}.2", f"{c}.2")),
        *(Bind(name, loop, "block") for loop in blocks),
        *(Bind(name, loop, "thread") for loop in threads),
        *(Unroll(name, f"{axis}.2") for axis in (h, w)),
        Vectorize(name, f"{c}.2"),
        ComputeAt(stages.tile.name, name, f"{h}.2", "register"),
        *transform(stages.tile.name, stages.tile, len(stages.tile.axes) - 2, whole=True),
        ComputeAt(stages.half.name, name, threads[-1], "register"),
        *transform(stages.half.name, stages.half, len(stages.half.axes) - 3, whole=True),
    ]


def _computed(source: Tensor, reader: Tensor) -> list[Primitive]:
    """An input of a transform that is computed (padded) where it is read, a vector in registers at a time."""
    summed = reader.reduce_axes[0].name
    return [
        ComputeAt(source.name, reader.name, summed, "register"),
        Vectorize(source.name, source.axes[-1].name),
    ]


def _read_once(source: Tensor, reader: Tensor) -> list[Primitive]:
    """An input of a transform that is read into registers, a vector at a time, and used from there."""
    name, summed = f"{source.name}.register", reader.reduce_axes[0].name
    return [
        CacheRead(reader.name, source.name, "register"),
        ComputeAt(name, reader.name, summed, "register"),
        Vectorize(name, f"d{len(source.shape) - 1}"),
    ]
