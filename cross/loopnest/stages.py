"""Stages: what each schedule primitive does to the loops of a tensor, before any loop is built.

`stages(operator, schedule)` gives the computed tensors in program order with their loops split, ordered
and annotated. lower.py turns them into a nest.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from cross.errors import ScheduleError
from cross.expression.naming import inlined_body, unique_tensors
from cross.expression.operator import Operator
from cross.expression.tensor import Tensor
from cross.expression.terms import Axis, AxisKind, Read, Reduce, Term, walk
from cross.loopnest.affine import affine, from_affine, sum_of_terms, variables
from cross.loopnest.nodes import (
    ONE,
    ZERO,
    Binary,
    Expr,
    Int,
    Knob,
    Literal,
    LoopKind,
    Var,
    add,
    ceildiv,
    mul,
    product,
)
from cross.loopnest.translate import translate
from cross.schedule.packing import Maps
from cross.schedule.primitives import (
    CacheWrite,
    ComputeAt,
    Factor,
    HoldInRegisters,
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


@dataclass(slots=True)
class Loop:
    """One loop of a stage: an iteration adds `step` to the value of its axis."""

    name: str
    var: Var
    axis: Axis
    extent: Expr
    step: Expr
    kind: LoopKind = LoopKind.SERIAL
    unroll_limit: Expr | None = None
    last_start: Expr | None = None  # start of the last tile, for the outermost loop of a split space axis

    @property
    def reduces(self) -> bool:
        return self.axis.kind is AxisKind.REDUCE

    @property
    def value(self) -> Expr:
        """What the loop adds to the value of its axis."""
        start = mul(self.var, self.step)
        return start if self.last_start is None else Binary("min", start, self.last_start)


@dataclass(slots=True)
class Attachment:
    """A stage computed inside a loop of its consumer, in a buffer for the region needed there."""

    consumer: str
    loop: str
    scope: str


@dataclass(slots=True)
class Stage:
    """A computed tensor with its loops, outermost first, and where it is computed.

    `bases` gives where the computed region starts in each axis (zero for a whole tensor), `extents` how
    long it is.
    """

    tensor: Tensor
    loops: list[Loop]
    bases: dict[Axis, Expr]
    extents: dict[Axis, Expr]
    inlined: bool = False
    attachment: Attachment | None = None
    hold: str | None = None
    rounded_up: list[Axis] = field(default_factory=list)  # what lies past their ends is not stored
    packs: dict[str, Maps] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.tensor.name

    def loop(self, name: str) -> Loop:
        for loop in self.loops:
            if loop.name == name:
                return loop
        known = ", ".join(item.name for item in self.loops)
        raise ScheduleError(f"stage {self.name} has no loop {name!r}; its loops are {known}")

    @property
    def loop_extents(self) -> dict[str, Expr]:
        """The extent of every loop by variable."""
        return {loop.var.name: loop.extent for loop in self.loops}

    @property
    def axis_values(self) -> dict[Axis, Expr]:
        """The value of every axis in terms of loop variables."""
        values = dict(self.bases)
        for loop in self.loops:
            values[loop.axis] = add(values[loop.axis], loop.value)
        return values


Stages = dict[str, Stage]


def stages(operator: Operator, schedule: Schedule) -> Stages:
    """The stages after all primitives, producers first.

    Raises:
        ScheduleError: a primitive names a stage or loop that does not exist, or does not fit it.
    """
    renamed = unique_tensors(operator)
    result = {renamed[tensor].name: _plain_stage(renamed[tensor]) for tensor in operator.stages}
    for primitive in schedule:
        if primitive.stage not in result:
            known = ", ".join(result)
            raise ScheduleError(f"operator {operator.name} has no stage {primitive.stage!r}, only {known}")
        _APPLY[type(primitive)](result, result[primitive.stage], primitive)
    return result


def resolved_body(current: Mapping[str, Stage], stage: Stage) -> Term:
    """The body of a stage with all inlined stages substituted."""

    def inlined(name: str) -> Tensor | None:
        producer = current.get(name)
        return producer.tensor if producer is not None and producer.inlined else None

    return inlined_body(stage.tensor, inlined)


def _plain_stage(tensor: Tensor) -> Stage:
    axes = (*tensor.axes, *tensor.reduce_axes)
    loops = [Loop(axis.name, Var(f"{tensor.name}.{axis.name}"), axis, Int(axis.extent), ONE) for axis in axes]
    return Stage(tensor, loops, dict.fromkeys(axes, ZERO), {axis: Int(axis.extent) for axis in axes})


def _cache_write(current: Stages, stage: Stage, _: Primitive) -> None:
    tensor = stage.tensor
    cached = replace(tensor, name=f"{tensor.name}.acc")
    axes = tuple(replace(axis) for axis in tensor.axes)
    copy = Tensor(tensor.name, tensor.shape, tensor.dtype, axes, Read(cached, axes))
    entries = list(current.items())
    position = [name for name, _ in entries].index(tensor.name)
    entries[position : position + 1] = [
        (cached.name, _plain_stage(cached)),
        (copy.name, _plain_stage(copy)),
    ]
    current.clear()
    current.update(entries)


def factor(value: Factor) -> Expr:
    """A split factor as an expression."""
    return Knob(value) if isinstance(value, str) else Int(value)


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
    region = _region(current, stage, consumer, primitive.loop)
    stage.attachment = Attachment(primitive.consumer, primitive.loop, primitive.scope)
    for loop, axis, (base, extent) in zip(stage.loops, stage.tensor.axes, region, strict=False):
        stage.bases[axis] = base
        stage.extents[axis] = extent
        loop.extent = extent


def _region(current: Stages, stage: Stage, consumer: Stage, loop_name: str) -> list[tuple[Expr, Expr]]:
    """Start and extent, per axis of `stage`, of what one iteration of the consumer's loop reads."""
    reader = _reader(current, stage, consumer)
    inner = _loops_inside(current, reader, consumer, loop_name)
    found: list[tuple[Expr, ...]] = []

    def collect(read: Read, indices: tuple[Expr, ...]) -> Expr:
        if read.tensor.name == stage.name and indices not in found:
            found.append(indices)
        return Literal(0, read.dtype)

    body = resolved_body(current, reader)
    scalar = body.body if isinstance(body, Reduce) else body
    translate(scalar, reader.axis_values, collect, reader.loop_extents)
    if len(found) != 1:
        raise ScheduleError(
            f"ComputeAt: stage {stage.name} must be read at one place in {reader.name}, found {len(found)}"
        )
    return [_dimension(stage.name, index, inner) for index in found[0]]


def _reader(current: Stages, stage: Stage, consumer: Stage) -> Stage:
    """The stage that reads `stage`: the consumer, or else the one among the stages attached below it."""
    if stage.name in _read_names(current, consumer):
        return consumer
    readers = [
        item for item in current.values() if item.attachment and stage.name in _read_names(current, item)
    ]
    if len(readers) != 1:
        raise ScheduleError(
            f"ComputeAt: stage {stage.name} must be read by {consumer.name} or by one stage attached to it, "
            f"found {len(readers)} attached readers"
        )
    return readers[0]


def _read_names(current: Stages, stage: Stage) -> set[str]:
    return {term.tensor.name for term in walk(resolved_body(current, stage)) if isinstance(term, Read)}


def _loops_inside(current: Stages, reader: Stage, consumer: Stage, loop_name: str) -> dict[str, Loop]:
    """The loops around a read that run within one iteration of the consumer's loop, by variable."""
    inside: list[Loop] = []
    while reader is not consumer:
        attachment = reader.attachment
        if attachment is None:
            raise ScheduleError(f"ComputeAt: stage {reader.name} is not attached below {consumer.name}")
        inside += reader.loops
        reader = current[attachment.consumer]
        if reader is consumer and not _is_at_or_inside(consumer, attachment.loop, loop_name):
            raise ScheduleError(
                f"ComputeAt: loop {loop_name} of {consumer.name} lies within {attachment.loop}, where a "
                "stage is attached that reads this one; attach it at that loop or further out"
            )
    names = [loop.name for loop in consumer.loops]
    inside += consumer.loops[names.index(loop_name) + 1 :]
    return {loop.var.name: loop for loop in inside}


def _is_at_or_inside(stage: Stage, loop: str, outer: str) -> bool:
    names = [item.name for item in stage.loops]
    return names.index(loop) >= names.index(outer)


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
        elif coefficient == ONE and (last := _last_start(term, inner)) is not None:
            shift = add(shift, last)
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
    stage.packs[primitive.tensor] = primitive.maps


_APPLY: dict[type, Callable[[Stages, Stage, Primitive], None]] = {
    CacheWrite: _cache_write,
    Split: _split,
    Reorder: _reorder,
    Parallel: _annotate,
    Vectorize: _annotate,
    Unroll: _annotate,
    Inline: _inline,
    ComputeAt: _compute_at,
    HoldInRegisters: _hold,
    Pack: _pack,
}
