"""The GPU sketch of contractions: SSSRRSRS with blocks, virtual threads and threads.

    for every block tile (S0)
        for every step of the reduction (R0)
            threads together: fetch the tiles of the operands into shared memory
            for every thread (S2)
                for R1, virtual threads (S1), S3, R2, S4: registers += operand * operand
        for every thread: write its registers out, through the fused elementwise stages

Elements of one thread lie a block's threads apart (virtual threads, against conflicts of shared memory's
banks) and next to each other (S3, S4; S4 of the last axis in vectors).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from functools import partial

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.target import GpuLimits
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.tensor import Axis, reads_in
from cross.schedule.gpu_operands import SharedOperand, Sizes, count, product, register_limits, shared_operands
from cross.schedule.gpu_tiles import powers_of_two, reduction_tiles, thread_tiles
from cross.schedule.knobs import Knob, single
from cross.schedule.packing import Maps
from cross.schedule.plan import Group, Plan, packable, wide_axes
from cross.schedule.primitives import (
    Bind,
    CacheRead,
    ComputeAt,
    Fuse,
    Pack,
    Primitive,
    Reorder,
    Split,
    TileLike,
    Unroll,
    Vectorize,
)
from cross.schedule.space import Constraint, Values
from cross.schedule.tiling import StageKnobs

LEVELS = 4  # of space tiles inside a block: virtual threads, threads, outer and inner elements
LARGEST_VIRTUAL = 8  # product of the virtual threads: each has accumulators of its own in registers
OTHER_REGISTERS = 24  # addresses, loop counters, operands on their way
MOST_WRITTEN_OUT = 2048  # multiply-adds of a thread's code: compilers take minutes for a few times as many
MOST_GUARDED = 256  # of them at the image's edge, where each is a branch
UNKNOWN_REGISTERS = 128  # accumulators of a thread where the driver does not say how many registers there are
PREFERRED_THREADS = (16, 8)  # along the last axis and the longest other one, each of 4 x 4 elements
PREFERRED_REGISTERS = 48  # of such a thread
PREFERRED_STEP = 8  # of the reduction between two barriers
FUSED = "f"


class Contraction(msgspec.Struct, frozen=True):
    """A reduction that reads elements more than once, with what its block may fetch."""

    group: Group
    operands: tuple[SharedOperand, ...]  # none: nothing can be shared
    is_padded: bool = False  # whether it reads a padding
    apart: int = 0  # so many leading axes of the owner: a contraction each, of which a block computes one
    maps: Mapping[str, Maps] = {}  # of constants, ahead of time
    reads: Mapping[str, int] = {}  # elements for one of an operand, where that is computed in its place

    @property
    def space(self) -> list[Axis]:
        """The owner's axes with more than one element, of one contraction."""
        return wide_axes(self.group.owner.axes[self.apart :])

    @property
    def outside(self) -> list[str]:
        """The names of the owner's other axes."""
        return [axis.name for axis in self.group.owner.axes if axis not in self.space]

    @property
    def reduce(self) -> list[Axis]:
        """The reduction's axes with more than one iteration."""
        assert self.group.reduction is not None
        return wide_axes(self.group.reduction.reduce_axes)

    def field(self, axis: Axis, level: int) -> str:
        """The name of a space tile's size."""
        return f"{self.group.owner.name}.{axis.name}.{level}"

    def step(self, axis: Axis, level: int) -> str:
        """The name of a reduction tile's size."""
        return f"{self.group.reduction_name}.{axis.name}.{level}"

    def vector(self, operand: SharedOperand) -> str:
        """The name of the vector size of an operand's fetch."""
        return f"{self.group.owner.name}.fetch.{operand.name}"

    @property
    def threads(self) -> tuple[str, ...]:
        """The fields whose product is the number of threads of a block."""
        return tuple(self.field(axis, 2) for axis in self.space)


def contraction(plan: Plan, group: Group, limits: GpuLimits) -> Contraction:
    """The contraction of a group; it has no shared operands where no fetch pays or there are no steps."""
    reduction = group.reduction
    assert reduction is not None
    found = shared_operands(plan.body(reduction)) if wide_axes(reduction.reduce_axes) else []
    paddings = {padding.name for padding in plan.paddings}
    read = {item.tensor.name for item in reads_in(plan.body(reduction))}
    operands = tuple(found) if limits.shared_memory_on_chip else ()
    return Contraction(group, operands, not paddings.isdisjoint(read))


def is_contraction(plan: Plan, group: Group) -> bool:
    """Whether a reduction combines tensors, some of which it reads again along an axis of the output."""
    reduction = group.reduction
    if reduction is None or not wide_axes(group.owner.axes):
        return False
    operands = shared_operands(plan.body(reduction))
    used = [{axis for item in operand.dimensions for axis in item} for operand in operands]
    wide = set(wide_axes(reduction.axes))
    return len(operands) > 1 and any(not wide <= axes for axes in used)


# ------------------------------------------------------------------------------------------------ knobs


def contraction_knobs(item: Contraction, limits: GpuLimits) -> tuple[list[Knob], list[Constraint]]:
    """The tiles of a contraction, and what of them the board can run."""
    owner, space = item.group.owner, item.space
    vectors = tuple(powers_of_two(limits.vector_lanes(ITEM_BYTES[owner.dtype])))
    others = sorted(space[:-1], key=lambda axis: axis.extent)
    knobs = []
    for axis in space:
        name = f"{owner.name}.{axis.name}"
        fields = tuple(item.field(axis, level) for level in range(1, LEVELS + 1))
        tiles = thread_tiles(axis.extent, vectors if axis is space[-1] else ())
        tiled = axis is space[-1] or axis is others[-1]
        preferred = _preferred_tile(limits, axis is space[-1]) if tiled else (1, 1, 1, 1)
        knobs.append(Knob(name, fields, tiles, preferred=preferred))
    for axis in item.reduce:
        name = f"{item.group.reduction_name}.{axis.name}"
        steps = item.step(axis, 1), item.step(axis, 2)
        first = PREFERRED_STEP if axis.extent >= PREFERRED_STEP else axis.extent
        knobs.append(Knob(name, steps, reduction_tiles(axis.extent), preferred=(first, 1)))
    for operand in item.operands:
        name = item.vector(operand)
        widest = limits.vector_lanes(ITEM_BYTES[operand.dtype])
        sizes = [size for size in powers_of_two(widest) if size <= operand.contiguous]
        knobs.append(single(name, sizes, sizes[-1]))
    return knobs, _constraints(item, limits)


def _preferred_tile(limits: GpuLimits, last: bool) -> tuple[int, int, int, int]:
    """16 x 8 threads of 4 x 4 elements, 8 x 8 where there are no registers for more at once."""
    if not last:
        return (1, PREFERRED_THREADS[1], 4, 1)
    needed = PREFERRED_REGISTERS * math.prod(PREFERRED_THREADS)
    few = 0 < limits.registers_per_block < needed
    return (1, PREFERRED_THREADS[0] // (2 if few else 1), 1, 4)


def _constraints(item: Contraction, limits: GpuLimits) -> list[Constraint]:
    name, space = item.group.owner.name, item.space
    most, needed = limits.threads_of_a_launch, partial(predicted_registers, item)

    def fits_block(values: Values) -> NDArray[np.bool_]:
        virtual = product(values, [item.field(axis, 1) for axis in space])
        return np.asarray((product(values, item.threads) <= most) & (virtual <= LARGEST_VIRTUAL))

    registers = register_limits(
        f"{name}.registers", "a block's accumulators fit its registers", item.threads, needed, limits
    )
    if not limits.registers_per_thread:
        registers = replace(registers, holds=lambda values: accumulators(item, values) <= UNKNOWN_REGISTERS)
    return [
        Constraint(f"{name}.threads", f"a block has at most {most} threads", fits_block),
        registers,
        _short_code(item),
        *(_shared_memory(item, limits) if item.operands else ()),
    ]


def _short_code(item: Contraction) -> Constraint:
    lanes_field = item.field(item.space[-1], LEVELS)

    def is_short(values: Values) -> NDArray[np.bool_]:
        lanes, limit = values[lanes_field], values["unroll"]
        found: NDArray[np.bool_] = written_out(item, values, 1, limit * lanes) <= MOST_WRITTEN_OUT
        if item.is_padded and "padding" in values:
            branches = written_out(item, values, lanes, limit)
            fetched = values["shared"] == 0 if "shared" in values else False
            found &= (values["padding"] == 0) | fetched | (branches <= MOST_GUARDED)
        return found

    rule = f"a thread's code has at most {MOST_WRITTEN_OUT} multiply-adds, of guarded reads {MOST_GUARDED}"
    return Constraint(f"{item.group.owner.name}.code", rule, is_short)


def _shared_memory(item: Contraction, limits: GpuLimits) -> list[Constraint]:
    name, limit = item.group.owner.name, limits.shared_memory_bytes

    def needed(values: Values) -> NDArray[np.int64]:
        return np.where(values["shared"] == 0, shared_bytes(item, values), 0)

    def whole_vectors(values: Values) -> NDArray[np.bool_]:
        result = np.ones(len(values["shared"]), dtype=np.bool_)
        for operand in item.operands:
            result &= operand.region(block_sizes(item, values))[-1] % values[item.vector(operand)] == 0
        return np.asarray(result | (values["shared"] != 0))

    rule = f"the operands' tiles fit {limit} bytes of shared memory"
    return [
        Constraint(f"{name}.shared", rule, lambda values: needed(values) <= limit, needed),
        Constraint(f"{name}.fetch", "rows of the operands' tiles are whole vectors", whole_vectors),
    ]


def accumulators(item: Contraction, values: Values) -> NDArray[np.int64]:
    """Registers that hold the sums of one thread, [N]."""
    words = max(ITEM_BYTES[item.group.owner.dtype] // 4, 1)
    return words * product(values, [item.field(axis, level) for axis in item.space for level in (1, 3, 4)])


def predicted_registers(item: Contraction, values: Values) -> NDArray[np.int64]:
    """Registers of one thread, estimated: sums, one operand for each row and column of them, addresses."""
    edges = sum(product(values, [item.field(axis, level) for level in (3, 4)]) for axis in item.space)
    return np.asarray(accumulators(item, values) + edges + OTHER_REGISTERS)


def written_out(
    item: Contraction, values: Values, lanes: NDArray[np.int64] | int, limit: NDArray[np.int64]
) -> NDArray[np.int64]:
    """At most how many multiply-adds, each of so many lanes, the code of one thread has, [N].

    Those of its sums are always written out, and with them the innermost reduction: what the source leaves a
    loop, a compiler unrolls. The reduction's middle loops are, where that keeps the limit.
    """
    sums = accumulators(item, values) // lanes
    inner, middle = (
        product(values, [item.step(axis, level) for axis in item.reduce]) if item.reduce else 1
        for level in (2, 1)
    )
    return np.asarray(np.maximum(sums * inner, np.minimum(limit, sums * inner * middle)))


def shared_bytes(item: Contraction, values: Values) -> NDArray[np.int64]:
    """Shared memory of a block, [N]."""
    sizes = block_sizes(item, values)
    return np.asarray(sum(operand.region_bytes(sizes) for operand in item.operands))


def block_sizes(item: Contraction, values: Values) -> Sizes:
    """How far a block and one step of its reduction reach along the reduction's own axes."""
    reduction = item.group.reduction
    assert reduction is not None
    one = np.ones(count(values), dtype=np.int64)
    sizes: dict[Axis, NDArray[np.int64]] = dict.fromkeys((*reduction.axes, *reduction.reduce_axes), one)
    for axis, owned in zip(reduction.axes, item.group.owner.axes, strict=True):
        if owned in item.space:
            sizes[axis] = product(values, [item.field(owned, level) for level in range(1, LEVELS + 1)])
    for axis in item.reduce:
        sizes[axis] = product(values, [item.step(axis, 1), item.step(axis, 2)])
    return sizes


def contraction_tiles(item: Contraction) -> StageKnobs:
    """Which of those knobs tile which loop."""
    owner, reduction = item.group.owner, item.group.reduction
    assert reduction is not None
    return StageKnobs(
        owner,
        reduction,
        {axis: f"{owner.name}.{axis.name}" for axis in item.space},
        {axis: f"{item.group.reduction_name}.{axis.name}" for axis in item.reduce},
        {operand.name: item.vector(operand) for operand in item.operands},
    )


# -------------------------------------------------------------------------------------------- schedules


def multi_level(
    plan: Plan,
    item: Contraction,
    shared: bool,
    inlined: Collection[str] = (),
    fetched: Collection[str] = (),
    producers: Collection[Group] = (),
) -> list[Primitive]:
    """The schedule of a contraction, its operands in shared memory or read where they are.

    Of the paddings, those `inlined` are no stages any more; those `fetched` are computed in shared memory, as
    are the results of the `producers`.
    """
    owner, name, space = item.group.owner, item.group.reduction_name, item.space
    narrow = item.outside

    def level(number: int) -> list[str]:
        return [f"{axis.name}.{number}" for axis in space]

    result: list[Primitive] = [
        Split(owner.name, axis.name, tuple(item.field(axis, number) for number in range(1, LEVELS + 1)))
        for axis in space
    ]
    order = (*narrow, *level(0), *level(2), *level(1), *level(3), *level(4))
    result.append(Reorder(owner.name, order))
    result += [Bind(owner.name, loop, "block") for loop in (*narrow, *level(0))]
    result += _annotated(owner.name, space)
    result.append(ComputeAt(name, owner.name, level(0)[-1], "register"))
    result.append(TileLike(name, owner.name))
    result += _reduction(item)
    if shared and item.operands:
        made = {group.owner.name: group for group in producers}
        return result + _fetched(plan, item, inlined, {*fetched, *made}) + _made(item, made)
    assert item.group.reduction is not None
    body = plan.body(item.group.reduction, bool(inlined))
    return result + [Pack(tensor, name, item.maps.get(tensor, ())) for tensor in packable(plan, body)]


def _annotated(stage: str, space: Sequence[Axis]) -> list[Primitive]:
    """Threads and virtual threads; what one thread computes is written out, its last axis in vectors."""
    result: list[Primitive] = []
    for axis in space:
        result += [Bind(stage, f"{axis.name}.2", "thread"), Bind(stage, f"{axis.name}.1", "virtual thread")]
        result.append(Unroll(stage, f"{axis.name}.3"))
    result += [Unroll(stage, f"{axis.name}.4") for axis in space[:-1]]
    return [*result, Vectorize(stage, f"{space[-1].name}.4")]


def _reduction(item: Contraction) -> list[Primitive]:
    reduction, name = item.group.reduction, item.group.reduction_name
    assert reduction is not None
    own = [
        axis for axis, owned in zip(reduction.axes, item.group.owner.axes, strict=True) if owned in item.space
    ]
    narrow = [axis.name for axis in reduction.reduce_axes if axis.extent == 1]

    def level(axes: Sequence[Axis], number: int) -> list[str]:
        return [f"{axis.name}.{number}" for axis in axes]

    result: list[Primitive] = [
        Split(name, axis.name, (item.step(axis, 1), item.step(axis, 2))) for axis in item.reduce
    ]
    steps = [level(item.reduce, number) for number in range(3)]
    order = (*narrow, *steps[0], *level(own, 2), *steps[1], *level(own, 1), *level(own, 3), *steps[2])
    result.append(Reorder(name, (*order, *level(own, 4))))
    result += [Unroll(name, loop, "unroll") for loop in (*steps[1], *steps[2])]
    return result + _annotated(name, own)


def _fetched(
    plan: Plan, item: Contraction, inlined: Collection[str], fetched: Collection[str]
) -> list[Primitive]:
    """The operands' tiles in shared memory, filled by all threads of a block together."""
    name = item.group.reduction_name
    loop = f"{item.reduce[-1].name}.0"
    result: list[Primitive] = []
    for operand in item.operands:
        stage = operand.name
        if stage in inlined:
            continue
        axes = [axis.name for axis in plan.stages[stage].axes] if stage in fetched else []
        if stage not in fetched:
            result.append(CacheRead(name, stage, "shared"))
            stage = f"{stage}.shared"
            axes = [f"d{position}" for position in range(len(operand.dimensions))]
            if operand.name in item.maps:
                result.append(Pack(operand.name, stage, item.maps[operand.name], reordered=False))
        last = axes[-1]
        result += [
            ComputeAt(stage, name, loop, "shared"),
            Split(stage, last, (item.vector(operand),)),
            Fuse(stage, (*axes[:-1], f"{last}.0"), FUSED),
            Split(stage, FUSED, (item.threads,), guarded=True),
            Reorder(stage, (f"{FUSED}.1", f"{FUSED}.0", f"{last}.1")),
            Bind(stage, f"{FUSED}.1", "thread"),
            Vectorize(stage, f"{last}.1"),
        ]
    return result


def _made(item: Contraction, producers: Mapping[str, Group]) -> list[Primitive]:
    """The sums of operands that are computed in shared memory: each thread's in registers of its own."""
    result: list[Primitive] = []
    for operand in item.operands:
        group = producers.get(operand.name)
        if group is not None and group.reduction is not None:
            name, reduction = group.reduction_name, group.reduction
            axes = [axis.name for axis in reduction.axes]
            steps = [axis.name for axis in reduction.reduce_axes]
            result += [
                ComputeAt(name, operand.name, f"{FUSED}.0", "register"),
                Reorder(name, (*steps, *axes)),
                *(Unroll(name, step, "unroll") for step in steps),
                Vectorize(name, axes[-1]),
            ]
    return result
