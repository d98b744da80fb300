"""Lowering: an operator and a schedule give one parametric loop nest.

`lower(operator, schedule)` first applies the primitives to the operator's stages (stages.py), then builds
the loops of every stage from the outside in, with attached producers inside the loops of their
consumers. Extents, strides and tile starts are expressions over knobs, so this runs once per sketch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from cross.errors import ScheduleError
from cross.expression.language.naming import unique_tensors
from cross.expression.language.operations import COMBINERS, neutral_value
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Read, Reduce, Tensor
from cross.expression.language.terms import Binary, Int, Select, Term, constant, walk
from cross.loopnest.affine import affine, from_affine
from cross.loopnest.bind import PackedDimension, ParametricNest, ParametricPacking
from cross.loopnest.nodes import (
    ONE,
    ZERO,
    Allocate,
    Barrier,
    Block,
    Buffer,
    Expr,
    For,
    Load,
    LoopNest,
    Scope,
    Statement,
    Store,
    Var,
    add,
    all_of,
    fold,
    loads,
    mul,
    stores,
)
from cross.loopnest.stage import Loop, Stage, resolved_body
from cross.loopnest.stages import stages
from cross.loopnest.thread_stages import loops_inside
from cross.loopnest.translate import translate
from cross.loopnest.windows import begun, continued
from cross.schedule.primitives import Pack, Schedule

Leaf = Callable[[], Statement]


def lower(operator: Operator, schedule: Schedule) -> ParametricNest:
    """The loop nest of a schedule, with the knobs of the schedule as free integers.

    Raises:
        ScheduleError: a primitive does not fit the operator.
    """
    return _Lowering(operator, schedule).nest()


class _Lowering:
    """One lowering: the stages, their buffers, and the loops around the statement being built."""

    def __init__(self, operator: Operator, schedule: Schedule) -> None:
        self.operator = operator
        self.stages = stages(operator, schedule)
        self.path: list[Loop] = []
        self.packings: dict[str, ParametricPacking] = {}
        renamed = unique_tensors(operator)
        self.inputs = {
            renamed[tensor].name: _argument(renamed[tensor], position in operator.constants)
            for position, tensor in enumerate(operator.inputs)
        }
        self.output = renamed[operator.output].name
        self.buffers = {name: self.buffer(stage) for name, stage in self.stages.items()}

    def buffer(self, stage: Stage) -> Buffer:
        shape = tuple(stage.extents[axis] for axis in stage.tensor.axes)
        if stage.is_spread:
            shape = tuple(loop.extent for loop in stage.loops if not loop.reduces)
        if stage.name == self.output:
            shape = tuple(map(Int, self.operator.written)) if self.operator.destination else shape
            return Buffer(stage.name, shape, stage.tensor.dtype, Scope.ARGUMENT, "output")
        scope = Scope(stage.attachment.scope) if stage.attachment else Scope.WORKSPACE
        return Buffer(stage.name, shape, stage.tensor.dtype, scope)

    def nest(self) -> ParametricNest:
        roots = [stage for stage in self.stages.values() if not stage.inlined and stage.attachment is None]
        body = Block(tuple(self.stage(stage) for stage in roots))
        workspace = tuple(self.buffers[stage.name] for stage in roots if stage.name != self.output)
        arguments = (*self.inputs.values(), self.buffers[self.output])
        nest = LoopNest(self.operator.name, arguments, workspace, body, self.operator.flops)
        return ParametricNest(nest, self.packings)

    def stage(self, stage: Stage) -> Statement:
        """All loops of a stage."""
        body = resolved_body(self.stages, stage)
        if isinstance(body, Reduce):
            return self.reduction(stage, body)
        return self.loops(stage, stage.loops, lambda: self.store(stage, stage.loops, self.value(stage, body)))

    def loops(self, stage: Stage, loops: Sequence[Loop], leaf: Leaf, producers: bool = True) -> Statement:
        """The loops around the statement of `leaf`, with the producers attached to each of them inside."""
        if not loops:
            return leaf()
        loop, rest = loops[0], loops[1:]
        self.path.append(loop)
        inside = [
            self.stages[name]
            for name, item in self.stages.items()
            if producers
            and item.attachment
            and (item.attachment.consumer, item.attachment.loop) == (stage.name, loop.name)
        ]
        produced = [(self.buffers[item.name], self.stage(item)) for item in inside if item.window is None]
        sliding = next((item for item in inside if item.window is not None), None)
        kept = None if sliding is None else self.with_feeders(self.stage(sliding), produced)
        body = self.loops(stage, rest, leaf, producers)
        body = self.with_barriers(produced, body)
        self.path.pop()
        if sliding is None or kept is None:
            return For(loop.var.name, loop.extent, loop.kind, body, loop.unroll_limit)
        buffer = self.buffers[sliding.name]
        body = Block((continued(sliding, kept), body))
        steps = For(loop.var.name, loop.extent, loop.kind, body, loop.unroll_limit)
        return Allocate(buffer, Block((begun(sliding, kept), steps)))

    def with_barriers(self, produced: Sequence[tuple[Buffer, Statement]], body: Statement) -> Statement:
        """The body of a loop behind the producers that are attached to it. Where threads of a block share
        what a producer makes, all of them have written it before one of them reads it.
        """
        unread: set[Buffer] = set()  # shared and written since the last barrier
        waits: list[bool] = []
        for buffer, statement in produced:
            parts = (part for _, store in stores(statement) for part in store.parts)
            waits.append(any(load.buffer in unread for part in parts if unread for load in loads(part)))
            unread = set() if waits[-1] else unread
            unread |= {buffer} if buffer.scope is Scope.SHARED else set()
        if unread:
            body = Block((Barrier(), body))
        for (buffer, statement), waits_before in zip(reversed(produced), reversed(waits), strict=True):
            body = Allocate(buffer, Block((statement, body)))
            if waits_before:
                body = Block((Barrier(), body))
        if any(buffer.scope is Scope.SHARED for buffer, _ in produced):
            body = Block((Barrier(), body))  # what the iteration before reads is written again
        return body

    def with_feeders(self, statement: Statement, produced: list[tuple[Buffer, Statement]]) -> Statement:
        """A statement with the producers in front whose results it reads; they are taken from the list."""
        for item in reversed(produced.copy()):
            buffer, before = item
            if any(load.buffer == buffer for _, store in stores(statement) for load in loads(store.value)):
                produced.remove(item)
                statement = Allocate(buffer, Block((before, statement)))
        return statement

    def reduction(self, stage: Stage, body: Reduce) -> Statement:
        """The loops of a reduction: shared space loops, initial values, then the update loops."""
        first = next(index for index, loop in enumerate(stage.loops) if loop.reduces)
        outer, inner = stage.loops[:first], stage.loops[first:]
        start = constant(neutral_value(body.combiner, stage.tensor.dtype), stage.tensor.dtype)

        def leaf() -> Statement:
            space = _copies(inner, "init")
            init = self.loops(
                stage, space, lambda: self.store(stage, [*outer, *space], start), producers=False
            )
            return Block((init, self.update(stage, body, inner)))

        return self.loops(stage, outer, leaf)

    def update(self, stage: Stage, body: Reduce, inner: Sequence[Loop]) -> Statement:
        if stage.hold is None:
            return self.loops(
                stage,
                inner,
                lambda: self.accumulate(self.buffers[stage.name], self.indices(stage), stage, body),
            )
        position = [loop.name for loop in inner].index(stage.hold) + 1
        return self.loops(stage, inner[:position], lambda: self.held(stage, body, inner[position:]))

    def held(self, stage: Stage, body: Reduce, inner: Sequence[Loop]) -> Statement:
        """Loads the touched elements into registers, runs the inner loops on them, and stores them."""
        space = [loop for loop in inner if not loop.reduces]
        outer = [loop for loop in stage.loops if loop not in inner]
        registers = Buffer(
            f"{stage.name}.held", tuple(loop.extent for loop in space), stage.tensor.dtype, Scope.REGISTER
        )
        memory = self.buffers[stage.name]

        def move(suffix: str, loading: bool) -> Statement:
            loops = _copies(space, suffix)
            here = tuple(loop.var for loop in loops)
            there = self.indices(stage, [*outer, *loops])
            statement = (
                Store(registers, here, Load(memory, there))
                if loading
                else Store(memory, there, Load(registers, here))
            )
            return self.loops(stage, loops, lambda: statement, producers=False)

        held = tuple(loop.var for loop in space)
        update = self.loops(stage, inner, lambda: self.accumulate(registers, held, stage, body))
        return Allocate(registers, Block((move("load", True), update, move("store", False))))

    def accumulate(self, buffer: Buffer, indices: tuple[Expr, ...], stage: Stage, body: Reduce) -> Statement:
        value = self.value(stage, body.body)
        return Store(buffer, indices, Binary(COMBINERS[body.combiner], Load(buffer, indices), value))

    def indices(self, stage: Stage, loops: Sequence[Loop] | None = None) -> tuple[Expr, ...]:
        """Where the stage's buffer holds the element of the current iteration."""
        loops = stage.loops if loops is None else loops
        if stage.is_spread:
            return tuple(loop.var for loop in loops if not loop.reduces)
        values = stage.counters(loops)
        if (window := stage.window) is not None:
            place = add(window.place, values.get(window.axis, ZERO))
            values[window.axis] = fold("%", place, stage.extents[window.axis])
        indices = tuple(values.get(axis, ZERO) for axis in stage.tensor.axes)
        if stage.name != self.output or self.operator.destination is None:
            return indices
        starts = map(Int, self.operator.destination.starts)
        return tuple(map(add, indices, starts))

    def store(self, stage: Stage, loops: Sequence[Loop], value: Expr) -> Statement:
        guard = all_of((_inside(stage, stage.rounded_up), _before_ends(stage, loops)))
        return Store(self.buffers[stage.name], self.indices(stage, loops), value, guard)

    def value(self, stage: Stage, body: Term) -> Expr:
        def rule(read: Read, indices: tuple[Expr, ...]) -> Expr:
            return self.read(stage, read, indices)

        value = translate(body, stage.axis_values, rule, stage.loop_extents)
        guard = _before_ends(stage, stage.loops)
        if guard is None:
            return value
        return Select(guard, value, constant(0.0, stage.tensor.dtype))

    def read(self, stage: Stage, read: Read, indices: tuple[Expr, ...]) -> Expr:
        name = read.tensor.name
        if name in stage.packs:
            return self.packed(name, indices, stage.packs[name])
        producer = self.stages.get(name)
        if producer is not None and producer.is_spread:
            return Load(self.buffers[name], self.own_part(stage, producer, indices))
        if producer is not None and producer.attachment is not None:
            pairs = zip(indices, producer.tensor.axes, strict=True)
            return Load(self.buffers[name], tuple(_place(producer, index, axis) for index, axis in pairs))
        load = Load(self.inputs[name] if producer is None else self.buffers[name], indices)
        # Past the end of a rounded-up axis a stage computes nothing that is kept, but it must not read there.
        used = {term for index in read.indices for term in walk(index) if isinstance(term, Axis)}
        guard = _inside(stage, [axis for axis in stage.rounded_up if axis in used])
        if guard is None:
            return load
        return Select(guard, load, constant(0.0, read.dtype))

    def own_part(self, stage: Stage, producer: Stage, indices: tuple[Expr, ...]) -> tuple[Expr, ...]:
        """Where a thread holds the element of a spread stage (TileLike) that it reads."""
        attachment = producer.attachment
        assert attachment is not None
        values = stage.axis_values
        own = (from_affine(affine(values[axis])) for axis in stage.tensor.axes)
        if attachment.consumer != stage.name or any(
            index != value and axis.extent > 1
            for index, value, axis in zip(indices, own, stage.tensor.axes, strict=True)
        ):
            raise ScheduleError(f"stage {producer.name} must be read at {stage.name}'s own elements")
        inside = loops_inside(stage, attachment.loop)
        found: list[Expr] = []
        used: dict[Axis, int] = {}
        for loop in (item for item in producer.loops if not item.reduces):
            axis = stage.tensor.axes[producer.tensor.axes.index(loop.axis)]
            matching = [item for item in inside if item.axis is axis]
            found.append(matching[used.get(axis, 0)].var)
            used[axis] = used.get(axis, 0) + 1
        return tuple(found)

    def packed(self, name: str, indices: tuple[Expr, ...], pack: Pack) -> Expr:
        """A read of a constant that is laid out in the order of the loops around the read, or as it is."""
        if name in self.packings:
            raise ScheduleError(f"Pack: constant {name} is read at more than one place")
        if not pack.reordered:
            shape = self.inputs[name].shape
            dimensions = [PackedDimension(source, extent, ONE, None) for source, extent in enumerate(shape)]
            self.packings[name] = self.packing(name, pack, dimensions)
            return Load(self.inputs[name], indices)
        order = {loop.var: position for position, loop in enumerate(self.path)}
        found: list[tuple[int, PackedDimension]] = []
        for source, index in enumerate(indices):
            terms, constant = affine(index)
            if constant != ZERO:
                raise ScheduleError(f"Pack: constant {name} is read at an offset in dimension {source}")
            for term, step in terms.items():
                var, last_start = (term.left, term.right) if isinstance(term, Binary) else (term, None)
                (loop_var, scale), *others = affine(var)[0].items()
                if others or not isinstance(loop_var, Var) or loop_var not in order:
                    raise ScheduleError(f"Pack: dimension {source} of {name} is not read in loop order")
                position = order[loop_var]
                extent = self.path[position].extent
                found.append((position, PackedDimension(source, extent, mul(scale, step), last_start)))
        found.sort(key=lambda item: item[0])
        dimensions = [dimension for _, dimension in found]
        self.packings[name] = self.packing(name, pack, dimensions)
        self.inputs[name] = replace(self.inputs[name], shape=tuple(item.extent for item in dimensions))
        return Load(self.inputs[name], tuple(self.path[position].var for position, _ in found))

    def packing(self, name: str, pack: Pack, dimensions: Sequence[PackedDimension]) -> ParametricPacking:
        """How an input that is not packed yet becomes what is read of it."""
        shape = [extent.value for extent in self.inputs[name].shape if isinstance(extent, Int)]
        for dimension, matrix in pack.maps:
            shape[dimension] = len(matrix[0])
        return ParametricPacking(tuple(shape), tuple(dimensions), pack.maps)


def _before_ends(stage: Stage, loops: Sequence[Loop]) -> Expr | None:
    """That no guarded axis is past its end; None without any."""
    values = stage.iterations(loops)
    return all_of(Binary("<", values[axis], extent) for axis, extent in stage.guarded)


def _inside(stage: Stage, axes: Sequence[Axis]) -> Expr | None:
    """That no axis is past its end; None without axes."""
    return all_of(Binary("<", stage.axis_values[axis], Int(axis.extent)) for axis in axes)


def _argument(tensor: Tensor, constant: bool) -> Buffer:
    shape = tuple(Int(extent) for extent in tensor.shape)
    return Buffer(tensor.name, shape, tensor.dtype, Scope.ARGUMENT, "constant" if constant else "input")


def _copies(loops: Sequence[Loop], suffix: str) -> list[Loop]:
    """The space loops with variables of their own."""
    return [replace(loop, var=Var(f"{loop.var.name}.{suffix}")) for loop in loops if not loop.reduces]


def _place(producer: Stage, index: Expr, axis: Axis) -> Expr:
    """Where the buffer of an attached producer holds the element at an index of one of its axes."""
    assert producer.attachment is not None
    if producer.window is not None and axis is producer.window.axis:
        return fold("%", _minus(index, producer.window.first, False), producer.extents[axis])
    return _minus(index, producer.bases[axis], axis.name in producer.attachment.clamped)


def _minus(index: Expr, base: Expr, clamped: bool) -> Expr:
    """index - base; unless clamped, the terms of the base occur in the index with the same coefficients."""
    terms, constant = affine(index)
    base_terms, base_constant = affine(base)
    if clamped:
        return add(index, mul(base, Int(-1)))
    for term, coefficient in base_terms.items():
        if terms.pop(term, None) != coefficient:
            raise ScheduleError(f"a producer is read outside the region that starts at {base}")
    left = ZERO if constant == base_constant else add(constant, mul(base_constant, Int(-1)))
    return from_affine((terms, left))
