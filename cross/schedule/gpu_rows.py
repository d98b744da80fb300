"""The GPU sketch of rows: what one group hands to the next row by row stays in shared memory.

    for every block of rows
        for every group but the last: threads together compute its results of these rows
        threads together: the results of the last group

So the stages of a softmax or of a normalization are one launch. Threads number the rows of a block and, with
rfactor, the parts of a row's sum (lanes). Neighbouring threads read neighbouring elements: of one row where
rows lie along memory, of different rows where they lie across it, as the channels of an image do. Start at
`rows_of`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.target import GpuLimits
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.tensor import Axis, Tensor, reads_in
from cross.expression.language.terms import walk
from cross.schedule.chain import Followed, followed_rows, in_common
from cross.schedule.gpu_operands import shared_size
from cross.schedule.gpu_tiles import powers_of_two, vector_sizes
from cross.schedule.gpu_two_level import PREFERRED_THREADS, VECTOR_BYTES
from cross.schedule.knobs import Knob, single
from cross.schedule.plan import Group, Plan, wide_axes
from cross.schedule.primitives import (
    Bind,
    CacheWrite,
    ComputeAt,
    Fuse,
    Inline,
    Primitive,
    Reorder,
    Schedule,
    Split,
    Unroll,
    Vectorize,
)
from cross.schedule.space import Constraint, Values

PARTIAL = ".rf"  # how rfactor calls partial results
FUSED = "f"
NEIGHBOURS = 32  # threads of a warp, which read neighbouring elements in one access
FEWEST_NEIGHBOURS = 8  # of 4 bytes: 32, the least that GPUs move to or from memory


class Rows(msgspec.Struct, frozen=True):
    """The groups of a plan, of which each works on the same rows.

    `row` is the axis of the last owner whose elements a block may have several of, None where it has one row
    only; `lanes` the threads that share a row; `across` whether rows lie side by side in memory.
    """

    plan: Plan
    followed: Mapping[str, Followed]  # by owners' names
    row: Axis | None
    lanes: int
    across: bool

    @property
    def last(self) -> Tensor:
        """The owner of the blocks."""
        return self.plan.groups[-1].owner

    @property
    def rows(self) -> str:
        """The knob of the rows of a block."""
        return f"{self.last.name}.rows"

    def inner(self, owner: Tensor) -> list[Axis]:
        """The axes along which a row of an owner has several elements."""
        return [axis for axis, row in self._pairs(owner) if row is None and axis.extent > 1]

    def along_row(self, owner: Tensor) -> Axis | None:
        """The axis of an owner along which a block may have several rows; None where it has one."""
        return next((axis for axis, row in self._pairs(owner) if row is not None and row is self.row), None)

    def vector(self, owner: Tensor) -> str | None:
        """The knob of the elements of a row that a thread computes at once, where that is possible."""
        inner = self.inner(owner)
        return f"{owner.name}.vector" if inner and inner[-1] is owner.axes[-1] else None

    def _pairs(self, owner: Tensor) -> zip[tuple[Axis, Axis | None]]:
        return zip(owner.axes, self.followed[owner.name], strict=True)


def rows_of(plan: Plan, lanes: int) -> Rows | None:
    """The rows of a plan, with so many threads each; None where its groups do not all work on the same rows,
    or one has a reduction for each of several elements of a row.
    """
    last = plan.groups[-1].owner
    if plan.paddings or not last.axes:
        return None
    followed: dict[str, Followed] = {last.name: last.axes}
    for group in reversed(plan.groups[:-1]):
        found = followed_rows(plan, group, followed)
        if not found:
            return None
        followed[group.owner.name] = in_common(found)
    handed = [item for name, item in followed.items() if name != last.name]
    outer = wide_axes(last.axes)
    if plan.groups[-1].reduction is None:
        outer = [axis for axis in outer if any(axis in item for item in handed)]
    followed[last.name] = tuple(axis if axis in outer else None for axis in last.axes)
    row = outer[-1] if outer else None
    rows = Rows(plan, followed, row, lanes, row is not None and _lies_across(plan, followed, row))
    possible = all(len(rows.inner(group.owner)) <= _lane_axes(group) for group in plan.reductions)
    possible &= plan.groups[-1].reduction is not None or bool(rows.inner(last))
    return rows if possible and _block_loops(rows) else None


def without_kept(plan: Plan) -> Plan:
    """The plan with what is kept for several readers, as the exponentials of a softmax, computed by each."""
    *before, last = plan.groups
    names = tuple(group.owner.name for group in before if group.reduction is None)
    groups = (*(group for group in before if group.reduction is not None), last)
    return replace(plan, inlined=(*plan.inlined, *names), groups=groups)


def _lane_axes(group: Group) -> int:
    """How many axes that rows do not follow a reduction may have: the lanes of a partial sum."""
    return int(group.owner.name.rstrip("_").endswith(PARTIAL))


def _lies_across(plan: Plan, followed: Mapping[str, Followed], row: Axis) -> bool:
    """Whether the next element in memory of what is read, of the largest tensor, belongs to the next row."""
    largest = 0
    found = False
    for group in plan.groups:
        axes = dict(zip(group.reading.axes, followed[group.owner.name], strict=True))
        for read in reads_in(plan.body(group.reading)):
            if read.tensor.body is None and read.tensor.elements > largest and read.indices:
                largest = read.tensor.elements
                used = [axes.get(item) for item in walk(read.indices[-1]) if isinstance(item, Axis)]
                found = any(item is row for item in used)
    return found


# ------------------------------------------------------------------------------------------------ knobs


def rows_knobs(rows: Rows, limits: GpuLimits) -> tuple[list[Knob], list[Constraint]]:
    """How many rows a block has and what a thread computes at once, and that it fits shared memory.

    No knobs where not even one row does.
    """
    limit, knobs = limits.shared_memory_bytes, []
    most = 1 if rows.row is None else min(limits.threads_of_a_launch // rows.lanes, rows.row.extent)
    sizes = [size for size in powers_of_two(most) if _shared_bytes(rows, size) <= limit]
    if not sizes:
        return [], []
    knobs.append(single(rows.rows, sizes, _preferred(rows, sizes, limits)))
    for group in rows.plan.groups:
        name = rows.vector(group.owner)
        if group.reduction is None and name is not None:
            item_bytes = ITEM_BYTES[group.owner.dtype]
            widest = max(VECTOR_BYTES // item_bytes, limits.vector_lanes(item_bytes))
            vectors = vector_sizes(group.owner.axes[-1].extent, min(widest, limits.longest_vector))
            knobs.append(single(name, vectors, min(vectors[-1], limits.vector_float_lanes)))

    def needed(values: Values) -> NDArray[np.int64]:
        return np.array([_shared_bytes(rows, int(size)) for size in values[rows.rows]], np.int64)

    rule = f"what is handed over within a block fits {limit} bytes of shared memory"
    name = f"{rows.last.name}.shared"
    return knobs, [Constraint(name, rule, lambda values: needed(values) <= limit, needed)]


def _preferred(rows: Rows, sizes: Sequence[int], limits: GpuLimits) -> int:
    """How many rows a block has at first: fewer where a GPU would not get enough blocks, but as many as
    fill a warp, or an access to memory where they lie across it."""
    least = FEWEST_NEIGHBOURS if rows.across else -(-limits.warp_size // rows.lanes)
    wanted = NEIGHBOURS if rows.across else PREFERRED_THREADS // rows.lanes
    whole = math.prod(axis.extent for axis in rows.last.axes if axis not in rows.inner(rows.last))
    while wanted > least and whole < wanted * limits.compute_units:
        wanted //= 2
    return min(max(wanted, least), sizes[-1])


def _shared_bytes(rows: Rows, count: int) -> int:
    """The shared memory that a block of so many rows takes."""
    total = 0
    for group in rows.plan.groups[:-1]:
        of_row = ITEM_BYTES[group.owner.dtype] * math.prod(axis.extent for axis in rows.inner(group.owner))
        total += shared_size(of_row * (1 if rows.along_row(group.owner) is None else count))
    return total


# -------------------------------------------------------------------------------------------- schedules


def rows_schedule(rows: Rows, _: Mapping[str, int]) -> Schedule:
    """The schedule of a block of rows: one launch."""
    plan, last = rows.plan, rows.last
    result: list[Primitive] = [Inline(name) for name in plan.inlined]
    result += [CacheWrite(group.owner.name) for group in plan.groups if group.cached]
    block = _block_loops(rows)
    if rows.row is not None:
        result.append(Split(last.name, rows.row.name, (rows.rows,)))
    result += _within_block(rows, plan.groups[-1], block)
    result += [Bind(last.name, loop, "block") for loop in block]
    for group in reversed(plan.groups[:-1]):
        pairs = zip(group.owner.axes, rows.followed[group.owner.name], strict=True)
        whole = tuple(axis.name for axis, row in pairs if row is None)
        result.append(ComputeAt(group.owner.name, last.name, block[-1], "shared", whole=whole))
        result += _within_block(rows, group, ())
    return tuple(result)


def _block_loops(rows: Rows) -> tuple[str, ...]:
    """The loops of the last owner that blocks are numbered by, innermost last."""
    inner = rows.inner(rows.last)
    others = tuple(axis.name for axis in rows.last.axes if axis not in inner and axis is not rows.row)
    return others if rows.row is None else (*others, f"{rows.row.name}.0")


def _within_block(rows: Rows, group: Group, block: tuple[str, ...]) -> list[Primitive]:
    """The loops of a group behind those over blocks, over threads first."""
    owner, name = group.owner, group.owner.name
    row, inner, vector = rows.along_row(owner), rows.inner(owner), rows.vector(owner)
    is_last = owner is rows.last
    of_row = [] if row is None else [f"{row.name}.1" if is_last else row.name]
    narrow = [] if is_last else [axis.name for axis in owner.axes if axis is not row and axis not in inner]
    result: list[Primitive] = []
    if group.reduction is not None or not inner:
        threads = _threads(rows, of_row, [axis.name for axis in inner])
        order = (*block, *narrow, *threads)
        result += [Reorder(name, order), *(Bind(name, loop, "thread") for loop in threads)]
        return result if group.reduction is None else result + _sum_of_a_thread(group, order[-1])
    loops, lanes = [axis.name for axis in inner], list[str]()
    if vector is not None:
        result.append(Split(name, loops[-1], (vector,)))
        loops, lanes = [*loops[:-1], f"{loops[-1]}.0"], [f"{loops[-1]}.1"]
    threads = _threads(rows, of_row, [f"{FUSED}.1"])
    return [
        *result,
        Reorder(name, (*block, *narrow, *of_row, *loops, *lanes)),
        Fuse(name, tuple(loops), FUSED),
        Split(name, FUSED, (rows.lanes,), guarded=True),
        Reorder(name, (*block, *narrow, *threads, f"{FUSED}.0", *lanes)),
        *(Bind(name, loop, "thread") for loop in threads),
        *(Vectorize(name, loop) for loop in lanes),
    ]


def _threads(rows: Rows, of_row: list[str], of_lanes: list[str]) -> list[str]:
    """The loops over threads: neighbours last."""
    return [*of_lanes, *of_row] if rows.across else [*of_row, *of_lanes]


def _sum_of_a_thread(group: Group, loop: str) -> list[Primitive]:
    """A thread sums up its part in a register."""
    reduction, name = group.reduction, group.reduction_name
    assert reduction is not None
    reduce = [axis.name for axis in reduction.reduce_axes]
    return [
        ComputeAt(name, group.owner.name, loop, "register"),
        Reorder(name, (*reduce, *(axis.name for axis in reduction.axes))),
        *(Unroll(name, axis, "unroll") for axis in reduce),
    ]
