"""A stage: a computed tensor with its loops, before any nest is built. stages.py applies primitives to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from cross.errors import ScheduleError
from cross.expression.language.naming import inlined_body
from cross.expression.language.tensor import Axis, AxisKind, Tensor
from cross.expression.language.terms import Binary, Int, Term
from cross.loopnest.nodes import ONE, ZERO, Expr, Knob, LoopKind, Var, add, fold, mul, product
from cross.schedule.primitives import Factor, Pack


class Loop(msgspec.Struct):
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
        return self.at(self.var)

    def at(self, iteration: Expr) -> Expr:
        """What an iteration adds to the value of the axis."""
        start = mul(iteration, self.step)
        return start if self.last_start is None else Binary("min", start, self.last_start)


class Attachment(msgspec.Struct):
    """A stage computed inside a loop of its consumer, in a buffer for the region needed there.

    Along the axes in `clamped` that region was moved inside the stage, and is read under guards only.
    """

    consumer: str
    loop: str
    scope: str
    clamped: tuple[str, ...] = ()


class Window(msgspec.Struct):
    """What a stage keeps along an axis from one iteration of the loop that it is attached to to the next.

    The region of an iteration lies `moves` elements behind the one before, so that its first `kept` elements
    are there already. `moves` elements are computed, from `start` of the axis on, and stored from `place` on
    in a ring that begins with `first`, where the region of the first iteration begins. windows.py gives the
    variables `start` and `place` their values.
    """

    axis: Axis
    moves: Expr
    kept: Expr
    first: Expr
    start: Var
    place: Var


class Fusion(msgspec.Struct):
    """Loops, outermost first, that one loop over `axis` stands for."""

    axis: Axis
    parts: list[Loop]


class Stage(msgspec.Struct):
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
    window: Window | None = None
    hold: str | None = None
    rounded_up: list[Axis] = []  # what lies past their ends is not stored
    packs: dict[str, Pack] = {}
    fusions: list[Fusion] = []
    guarded: list[tuple[Axis, Expr]] = []  # axes cut off at these lengths
    clamped: bool = False  # what lies past those ends reads what the last element does

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
        values = self.counters(self.loops)
        starts = dict(self.bases)
        if self.window is not None:
            starts[self.window.axis] = self.window.start
        return {**values, **{axis: add(start, values.get(axis, ZERO)) for axis, start in starts.items()}}

    def iterations(self, loops: Sequence[Loop]) -> dict[Axis, Expr]:
        """What the loops add to the start of every axis; for a fused axis, the iteration of its loop."""
        values: dict[Axis, Expr] = {}
        for loop in loops:
            values[loop.axis] = add(values.get(loop.axis, ZERO), loop.value)
        return values

    def counters(self, loops: Sequence[Loop]) -> dict[Axis, Expr]:
        """As `iterations`, and what those of a fused axis mean for the axes in it."""
        values = self.iterations(loops)
        if self.clamped:
            ends = {axis: add(extent, Int(-1)) for axis, extent in self.guarded if axis in values}
            values |= {axis: fold("min", values[axis], end) for axis, end in ends.items()}
        for fusion in reversed(self.fusions):
            rest = values[fusion.axis]
            wide = [part for part in fusion.parts if part.extent != ONE]
            for part in reversed(wide):
                outermost = part is wide[0]
                position = rest if outermost else fold("%", rest, part.extent)
                rest = rest if outermost else fold("//", rest, part.extent)
                values[part.axis] = add(values.get(part.axis, ZERO), part.at(position))
        return values

    @property
    def is_spread(self) -> bool:
        """Whether every thread of a block holds a part of the stage: one buffer dimension a loop."""
        private = self.attachment is not None and self.attachment.scope in ("register", "local")
        return private and any(loop.kind is LoopKind.THREAD for loop in self.loops)


Stages = dict[str, Stage]


def resolved_body(current: Mapping[str, Stage], stage: Stage) -> Term:
    """The body of a stage with all inlined stages substituted."""

    def inlined(read: Tensor) -> Tensor | None:
        producer = current.get(read.name)
        return producer.tensor if producer is not None and producer.inlined else None

    return inlined_body(stage.tensor, inlined)


def plain_stage(tensor: Tensor) -> Stage:
    """A tensor as one loop an axis, computed as a whole."""
    axes = (*tensor.axes, *tensor.reduce_axes)
    loops = [Loop(axis.name, Var(f"{tensor.name}.{axis.name}"), axis, Int(axis.extent), ONE) for axis in axes]
    return Stage(tensor, loops, dict.fromkeys(axes, ZERO), {axis: Int(axis.extent) for axis in axes})


def factor(value: Factor) -> Expr:
    """A split factor as an expression."""
    if isinstance(value, tuple):
        return product([Knob(name) for name in value])
    return Knob(value) if isinstance(value, str) else Int(value)
