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
from cross.expression.terms import Axis, AxisKind, Read, Reduce, Term
from cross.loopnest.affine import affine, from_affine, variables
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
    packs: list[str] = field(default_factory=list)

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
    shifts = not loop.reduces and stage.attachment is None
    last_start = add(loop.extent, mul(tile, Int(-1))) if shifts else None
    extents = [ceildiv(loop.extent, tile), *factors]
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
    names = [loop.name for loop in consumer.loops]
    inner = {loop.var.name: loop.extent for loop in consumer.loops[names.index(loop_name) + 1 :]}
    found: list[tuple[Expr, ...]] = []

    def collect(read: Read, indices: tuple[Expr, ...]) -> Expr:
        if read.tensor.name == stage.name and indices not in found:
            found.append(indices)
        return Literal(0, read.dtype)

    body = resolved_body(current, consumer)
    translate(body.body if isinstance(body, Reduce) else body, consumer.axis_values, collect)
    if len(found) != 1:
        raise ScheduleError(
            f"ComputeAt: stage {stage.name} must be read at one place in {consumer.name}, found {len(found)}"
        )
    return [_dimension(stage.name, index, inner) for index in found[0]]


def _dimension(stage: str, index: Expr, inner: Mapping[str, Expr]) -> tuple[Expr, Expr]:
    terms, constant = affine(index)
    outer_terms: dict[Expr, Expr] = {}
    inner_terms: list[tuple[Expr, Expr]] = []
    for term, coefficient in terms.items():
        if isinstance(term, Var) and term.name in inner:
            inner_terms.append((coefficient, inner[term.name]))
        elif variables(term) & inner.keys():
            raise ScheduleError(
                f"ComputeAt: stage {stage} is read at an index that is not affine in inner loops"
            )
        else:
            outer_terms[term] = coefficient
    return from_affine((outer_terms, constant)), covered(inner_terms)


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
    stage.packs.append(primitive.tensor)


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
