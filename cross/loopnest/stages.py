"""Stages: what each schedule primitive does to the loops of a tensor, before any loop is built.

`stages(operator, schedule)` gives the computed tensors in program order with their loops split, ordered
and annotated (stage.py says what a stage is). lower.py turns them into a nest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from cross.errors import ScheduleError
from cross.expression.language.naming import unique_tensors
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read, Reduce, Tensor, reads_in
from cross.expression.language.terms import Binary, Const, Int
from cross.loopnest.affine import affine, from_affine, sum_of_terms
from cross.loopnest.nodes import ONE, ZERO, Expr, LoopKind, Var, add, ceildiv, fold, mul, product, variables
from cross.loopnest.stage import Attachment, Loop, Stage, Stages, factor, plain_stage, resolved_body
from cross.loopnest.thread_stages import bind_to, cache_read, fuse, tile_like
from cross.loopnest.translate import translate
from cross.loopnest.windows import slide
from cross.schedule.primitives import (
    Bind,
    CacheRead,
    CacheWrite,
    ComputeAt,
    Fuse,
    HoldInRegisters,
    Inline,
    Pack,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Slide,
    Split,
    TileLike,
    Unroll,
    Vectorize,
)


def stages(operator: Operator, schedule: Schedule) -> Stages:
    """The stages after all primitives, producers first.

    Raises:
        ScheduleError: a primitive names a stage or loop that does not exist, or does not fit it.
    """
    renamed = unique_tensors(operator)
    result = {renamed[tensor].name: plain_stage(renamed[tensor]) for tensor in operator.stages}
    for primitive in schedule:
        if primitive.stage not in result:
            known = ", ".join(result)
            raise ScheduleError(f"operator {operator.name} has no stage {primitive.stage!r}, only {known}")
        _APPLY[type(primitive)](result, result[primitive.stage], primitive)
    return result


def _cache_write(current: Stages, stage: Stage, _: Primitive) -> None:
    tensor = stage.tensor
    cached = replace(tensor, name=f"{tensor.name}.acc")
    axes = tuple(replace(axis) for axis in tensor.axes)
    copy = Tensor(tensor.name, tensor.shape, tensor.dtype, axes, Read(cached, axes))
    entries = list(current.items())
    position = [name for name, _ in entries].index(tensor.name)
    entries[position : position + 1] = [
        (cached.name, plain_stage(cached)),
        (copy.name, plain_stage(copy)),
    ]
    current.clear()
    current.update(entries)


def _split(_: Stages, stage: Stage, primitive: Primitive) -> None:
    assert isinstance(primitive, Split)
    loop = stage.loop(primitive.axis)
    if loop.last_start is not None:
        raise ScheduleError(
            f"stage {stage.name}: loop {loop.name} is already split; name all factors in one Split"
        )
    position = stage.loops.index(loop)
    factors = [factor(value) for value in primitive.factors]
    tile = product(factors)
    # A sum must not be added to twice: the region of an attached reduction is divided by its tiles.
    shifts = not loop.reduces and (stage.attachment is None or not stage.tensor.reduce_axes)
    if primitive.guarded:
        _cut_off(stage, loop)
        shifts = False
    covered_extent = _rounded_up(stage, loop, factors) if primitive.whole_tiles else loop.extent
    last_start = add(covered_extent, mul(tile, Int(-1))) if shifts else None
    extents = [ceildiv(covered_extent, tile), *factors]
    stage.loops[position : position + 1] = [
        Loop(
            f"{loop.name}.{index}",
            Var(f"{loop.var.name}.{index}"),
            loop.axis,
            extent,
            mul(product(factors[index:]), loop.step),
            last_start=last_start if index == 0 else None,
        )
        for index, extent in enumerate(extents)
    ]


def _rounded_up(stage: Stage, loop: Loop, factors: Sequence[Expr]) -> Expr:
    """The extent of a loop in whole tiles of its last factor."""
    tile = factors[-1] if factors else ONE
    if stage.tensor.reduce_axes or not isinstance(loop.extent, Int) or not isinstance(tile, Int):
        raise ScheduleError(
            f"Split of stage {stage.name}, loop {loop.name}: whole tiles need a stage without a reduction, a "
            "known extent and an integer as last factor"
        )
    if loop.extent.value % tile.value:
        stage.rounded_up.append(loop.axis)
    return mul(ceildiv(loop.extent, tile), tile)


def _cut_off(stage: Stage, loop: Loop) -> None:
    """Leaves out what lies past the end of a loop."""
    alone = [item for item in stage.loops if item.axis is loop.axis] == [loop]
    if stage.tensor.reduce_axes or not alone or loop.step != ONE:
        raise ScheduleError(
            f"Split of stage {stage.name}, loop {loop.name}: only the one loop over an axis of a stage "
            "without a reduction can be guarded"
        )
    stage.guarded.append((loop.axis, loop.extent))


def _reorder(_: Stages, stage: Stage, primitive: Primitive) -> None:
    assert isinstance(primitive, Reorder)
    names = [loop.name for loop in stage.loops]
    if sorted(primitive.loops) != sorted(names):
        raise ScheduleError(
            f"Reorder of stage {stage.name}: expected each of {', '.join(names)} once, "
            f"found {', '.join(primitive.loops)}"
        )
    stage.loops = [stage.loop(name) for name in primitive.loops]


def _annotate(_: Stages, stage: Stage, primitive: Primitive) -> None:
    assert isinstance(primitive, Parallel | Vectorize | Unroll)
    loop = stage.loop(primitive.loop)
    if isinstance(primitive, Parallel) and loop.reduces:
        raise ScheduleError(f"stage {stage.name}: reduction loop {loop.name} cannot run in parallel")
    loop.kind = {
        Parallel: LoopKind.PARALLEL,
        Vectorize: LoopKind.VECTORIZED,
        Unroll: LoopKind.UNROLLED,
    }[type(primitive)]
    if isinstance(primitive, Unroll) and primitive.limit is not None:
        loop.unroll_limit = factor(primitive.limit)


def _inline(current: Stages, stage: Stage, _: Primitive) -> None:
    if stage.tensor.reduce_axes:
        raise ScheduleError(f"stage {stage.name} is a reduction and cannot be inlined")
    if stage.name == list(current)[-1]:
        raise ScheduleError(f"stage {stage.name} is the output and cannot be inlined")
    stage.inlined = True


def _compute_at(current: Stages, stage: Stage, primitive: Primitive) -> None:
    assert isinstance(primitive, ComputeAt)
    if primitive.consumer not in current:
        raise ScheduleError(f"ComputeAt of stage {stage.name}: no consumer stage {primitive.consumer!r}")
    consumer = current[primitive.consumer]
    consumer.loop(primitive.loop)
    around = consumer.loops[: [loop.name for loop in consumer.loops].index(primitive.loop) + 1]
    consumer.clamped |= any(loop.axis is axis for loop in around for axis, _ in consumer.guarded)
    region = _region(current, stage, consumer, primitive)
    stage.attachment = Attachment(primitive.consumer, primitive.loop, primitive.scope, primitive.clamped)
    for loop, axis, (base, extent) in zip(stage.loops, stage.tensor.axes, region, strict=False):
        if axis.name in primitive.clamped:
            extent = fold("min", extent, Int(axis.extent))
            last = add(Int(axis.extent), mul(extent, Int(-1)))
            base = fold("max", fold("min", base, last), ZERO)
        stage.bases[axis] = base
        stage.extents[axis] = extent
        loop.extent = extent


def _region(current: Stages, stage: Stage, consumer: Stage, primitive: ComputeAt) -> list[tuple[Expr, Expr]]:
    """Start and extent, per axis of `stage`, of what one iteration of the consumer's loop reads."""
    readers = _readers(current, stage, consumer)
    found = [_read_region(current, stage, reader, consumer, primitive) for reader in readers]
    starts = [[start for start, _ in region] for region in found]
    if any(item != starts[0] for item in starts):
        raise ScheduleError(
            f"ComputeAt: stage {stage.name} must be read from the same element on by "
            + ", ".join(reader.name for reader in readers)
        )
    return found[0]


def _read_region(
    current: Stages, stage: Stage, reader: Stage, consumer: Stage, primitive: ComputeAt
) -> list[tuple[Expr, Expr]]:
    """Start and extent, per axis of `stage`, of what one reader needs in an iteration of the loop."""
    inner = _loops_inside(current, reader, consumer, primitive.loop)
    found: list[tuple[Expr, ...]] = []

    def collect(read: Read, indices: tuple[Expr, ...]) -> Expr:
        if read.tensor.name == stage.name and indices not in found:
            found.append(indices)
        return Const(0, read.dtype)

    body = resolved_body(current, reader)
    scalar = body.body if isinstance(body, Reduce) else body
    translate(scalar, reader.axis_values, collect, reader.loop_extents)
    if len(found) != 1:
        raise ScheduleError(
            f"ComputeAt: stage {stage.name} must be read at one place in {reader.name}, found {len(found)}"
        )
    return [
        (ZERO, Int(axis.extent)) if axis.name in primitive.whole else _dimension(stage.name, index, inner)
        for axis, index in zip(stage.tensor.axes, found[0], strict=True)
    ]


def _readers(current: Stages, stage: Stage, consumer: Stage) -> list[Stage]:
    """The stages that read `stage`: the consumer, or else those among the stages attached below it."""
    if stage.name in _read_names(current, consumer):
        return [consumer]
    readers = [
        item for item in current.values() if item.attachment and stage.name in _read_names(current, item)
    ]
    if not readers:
        raise ScheduleError(
            f"ComputeAt: stage {stage.name} must be read by {consumer.name} or by a stage attached to it, "
            "found 0 attached readers"
        )
    return readers


def _read_names(current: Stages, stage: Stage) -> set[str]:
    return {read.tensor.name for read in reads_in(resolved_body(current, stage))}


def _loops_inside(current: Stages, reader: Stage, consumer: Stage, loop_name: str) -> dict[str, Loop]:
    """The loops around a read that run within one iteration of the consumer's loop, by variable."""
    inside: list[Loop] = []
    names = [loop.name for loop in consumer.loops]
    while reader is not consumer:
        attachment = reader.attachment
        if attachment is None:
            raise ScheduleError(f"ComputeAt: stage {reader.name} is not attached below {consumer.name}")
        inside += reader.loops
        reader = current[attachment.consumer]
        if reader is consumer and names.index(attachment.loop) < names.index(loop_name):
            raise ScheduleError(
                f"ComputeAt: loop {loop_name} of {consumer.name} lies within {attachment.loop}, where a "
                "stage is attached that reads this one; attach it at that loop or further out"
            )
    inside += consumer.loops[names.index(loop_name) + 1 :]
    return {loop.var.name: loop for loop in inside}


def _dimension(stage: str, index: Expr, inner: Mapping[str, Loop]) -> tuple[Expr, Expr]:
    terms, constant = affine(index)
    outer_terms: dict[Expr, Expr] = {}
    inner_terms: list[tuple[Expr, Expr]] = []
    shift: Expr = ZERO
    for term, coefficient in terms.items():
        if isinstance(term, Var) and term.name in inner:
            inner_terms.append((coefficient, inner[term.name].extent))
        elif not variables(term) & inner.keys():
            outer_terms[term] = coefficient
        elif (last := _last_start(term, inner)) is not None:
            shift = add(shift, mul(coefficient, last))
        else:
            raise ScheduleError(
                f"ComputeAt: stage {stage} is read at an index that is not affine in inner loops"
            )
    return from_affine((outer_terms, constant)), sum_of_terms(add(shift, covered(inner_terms)))


def _last_start(term: Expr, inner: Mapping[str, Loop]) -> Expr | None:
    """The largest value of min(start, last start), the tile starts of an inner loop; None for other terms.

    Such tiles reach from 0 to the last start and the length of a tile beyond, which they cover without gaps.
    """
    loops = [inner[name] for name in variables(term) if name in inner]
    if len(loops) == 1 and loops[0].last_start is not None and isinstance(term, Binary) and term.op == "min":
        return term.right
    return None


def covered(terms: Sequence[tuple[Expr, Expr]]) -> Expr:
    """Length of the range of sum(coefficient * v), 0 <= v < extent, coefficients non-negative.

    Loops that tile one another exactly cover the product of their extents; otherwise it is
    1 + sum(coefficient * (extent - 1)).
    """
    remaining = [item for item in terms if item[1] != ONE]
    length: Expr = ONE
    while remaining:
        fitting = [item for item in remaining if item[0] == length]
        if not fitting:
            break
        length = mul(fitting[0][1], length) if length != ONE else fitting[0][1]
        remaining.remove(fitting[0])
    for coefficient, extent in remaining:
        length = add(length, mul(coefficient, add(extent, Int(-1))))
    return length


def _hold(_: Stages, stage: Stage, primitive: Primitive) -> None:
    assert isinstance(primitive, HoldInRegisters)
    stage.loop(primitive.loop)
    stage.hold = primitive.loop


def _pack(_: Stages, stage: Stage, primitive: Primitive) -> None:
    assert isinstance(primitive, Pack)
    stage.packs[primitive.tensor] = primitive


_APPLY: dict[type, Callable[[Stages, Stage, Primitive], None]] = {
    CacheWrite: _cache_write,
    CacheRead: cache_read,
    Split: _split,
    Fuse: fuse,
    Reorder: _reorder,
    Parallel: _annotate,
    Bind: bind_to,
    Vectorize: _annotate,
    Unroll: _annotate,
    Inline: _inline,
    ComputeAt: _compute_at,
    Slide: slide,
    TileLike: tile_like,
    HoldInRegisters: _hold,
    Pack: _pack,
}
