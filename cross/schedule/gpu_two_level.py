"""GPU sketches of two levels: blocks of threads over the elements of a stage, each thread a vector of them.

For elementwise stages, data movement, pooling and other sums that read nothing twice.
"""

from __future__ import annotations

from boards.target import GpuLimits
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.tensor import Tensor
from cross.schedule.gpu_operands import product
from cross.schedule.gpu_tiles import powers_of_two, vector_sizes
from cross.schedule.knobs import Knob, single
from cross.schedule.plan import Group
from cross.schedule.primitives import (
    Bind,
    ComputeAt,
    Fuse,
    Primitive,
    Reorder,
    Split,
    Unroll,
    Vectorize,
)
from cross.schedule.space import Constraint

PREFERRED_THREADS = 128  # of a block: four warps, so that one runs while others wait for memory
THREADS_OF_A_SUM = (32, 128, 512)  # that may share the sum of one element
VECTOR_BYTES = 16  # the widest load of one instruction
FUSED = "f"


def two_level_knobs(owner: Tensor, limits: GpuLimits) -> tuple[list[Knob], list[Constraint]]:
    """Threads of a block and elements of a thread, and that a block has no more threads than work."""
    if not owner.axes:
        return [], []
    last = owner.axes[-1].extent
    item_bytes = ITEM_BYTES[owner.dtype]
    lanes = min(max(VECTOR_BYTES // item_bytes, limits.vector_lanes(item_bytes)), limits.longest_vector)
    vectors = vector_sizes(last, lanes)
    most = min(limits.threads_of_a_launch, owner.elements)
    fields = launch(owner)
    knobs = [
        single(fields[0], powers_of_two(most), min(PREFERRED_THREADS, most)),
        single(fields[1], vectors, min(vectors[-1], limits.vector_float_lanes)),
    ]
    rule = f"a block has at most the {owner.elements} elements of {owner.name}"
    return knobs, [
        Constraint(f"{owner.name}.work", rule, lambda values: product(values, fields) <= owner.elements)
    ]


def two_level(owner: Tensor) -> list[Primitive]:
    """for f.0 in blocks, f.1 in threads: a vector of the last axis."""
    if not owner.axes:
        return []
    name, last = owner.name, owner.axes[-1].name
    loops = (*(axis.name for axis in owner.axes[:-1]), f"{last}.0")
    threads, vector = launch(owner)
    return [
        Split(name, last, (vector,)),
        Fuse(name, loops, FUSED),
        Split(name, FUSED, (threads,)),
        Bind(name, f"{FUSED}.0", "block"),
        Bind(name, f"{FUSED}.1", "thread"),
        Vectorize(name, f"{last}.1"),
    ]


def reduction_in_threads(group: Group) -> list[Primitive]:
    """Every thread sums up its own elements, in registers."""
    reduction, name = group.reduction, group.reduction_name
    assert reduction is not None
    result = two_level(group.owner)
    if not group.owner.axes:
        return result
    axes = [axis.name for axis in reduction.axes]
    reduce = [axis.name for axis in reduction.reduce_axes]
    result.append(ComputeAt(name, group.owner.name, f"{FUSED}.1", "register"))
    result.append(Reorder(name, (*reduce, *axes)))
    result += [Unroll(name, loop, "unroll") for loop in reduce]
    return [*result, Vectorize(name, axes[-1])]


def partial_results(length: int, limits: GpuLimits, wanted: int) -> int:
    """How many threads share a sum of so many terms: `wanted` ones, or as many as there is work for."""
    most = min(limits.threads_of_a_launch, wanted, max(length // 2, 1))
    return powers_of_two(most)[-1]


def launch(owner: Tensor) -> tuple[str, str]:
    """The names of the knobs of a stage of two levels: threads of a block, elements of a thread."""
    return f"{owner.name}.threads", f"{owner.name}.vector"
