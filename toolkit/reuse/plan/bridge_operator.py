"""A real operator for a bridge: the main stage of one that is there, with other loops.

What that stage reads becomes an input of just the extents that its loops reach: stride 1, dilation 1, no
padding. What comes behind it (bias, activation) is left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec
from msgspec.structs import replace

from cross.expression.language.affine import affine
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, AxisKind, Read, Reduce, Tensor, placeholder
from cross.expression.language.terms import Term, substitute
from toolkit.explore.neighbourhood.loops import IrregularLoops, MajorLoops, main_stage, major_loops
from toolkit.reuse.names import Hops
from toolkit.reuse.plan.bridges import Extents, bridges_of


class Bridge(msgspec.Struct, frozen=True):
    """A bridge operator with its major loops."""

    operator: Operator
    loops: MajorLoops

    @property
    def name(self) -> str:
        """Its name in plans: its kind and its loops."""
        return f"bridge {self.loops.kind} {'x'.join(map(str, self.loops.extents))}"


def bridge_operators(operators: Sequence[tuple[Operator, MajorLoops]], hops: Hops) -> list[Bridge]:
    """The bridges between operators of any kinds; kinds of which none can be made are left out."""
    kinds: dict[tuple[str, int, int], list[tuple[Operator, MajorLoops]]] = {}
    for operator, loops in operators:
        kinds.setdefault((loops.kind, len(loops.space), len(loops.reduce)), []).append((operator, loops))
    found = []
    for alike in kinds.values():
        for extents in bridges_of([loops.extents for _, loops in alike], hops):
            # One that is nowhere smaller: what it reads only once, the bridge does too.
            like = next(pair for pair in alike if _covers(pair[1].extents, extents))
            try:
                operator = bridge_operator(like[0], extents)
                found.append(Bridge(operator, major_loops(operator, like[1].kind)))
            except IrregularLoops:
                break
    return found


def _covers(larger: Extents, extents: Extents) -> bool:
    return all(one >= other for one, other in zip(larger, extents, strict=True))


def bridge_operator(like: Operator, extents: Sequence[int]) -> Operator:
    """An operator of the same kind whose major loops have these extents, space loops first.

    like: an operator of the kind whose loops are nowhere shorter. Raises IrregularLoops when its main stage
    is no reduction over affine reads.
    """
    stage = main_stage(like)
    if not isinstance(stage.body, Reduce):
        raise IrregularLoops(
            f"operator {like.name}: its main stage is no reduction, so that there is nothing that a bridge "
            "could tell it; leave out its bridges"
        )
    loops = [*stage.axes, *stage.reduce_axes]
    fresh = {axis: replace(axis, extent=extent) for axis, extent in zip(loops, extents, strict=True)}
    inputs: dict[Tensor, Tensor] = {}
    body = _rebuilt(like, stage.body.body, fresh, inputs)
    reduced = Reduce(stage.body.combiner, body, tuple(fresh[axis] for axis in stage.reduce_axes))
    axes = tuple(fresh[axis] for axis in stage.axes)
    output = Tensor(stage.name, tuple(axis.extent for axis in axes), stage.dtype, axes, reduced)
    known = {like.inputs[position] for position in like.constants}
    constants = frozenset(position for position, tensor in enumerate(inputs) if tensor in known)
    return Operator(like.name, tuple(inputs.values()), output, constants)


def _rebuilt(like: Operator, term: Term, fresh: Mapping[Axis, Axis], inputs: dict[Tensor, Tensor]) -> Term:
    """The term over the fresh axes; what it reads is added to `inputs`."""
    if not isinstance(term, Read):
        if not term.parts:
            return substitute(term, fresh)
        return term.mapped(lambda part: _rebuilt(like, part, fresh, inputs))
    dimensions = [_plain(like, index, fresh) for index in term.indices]
    shape = tuple(1 + sum(axis.extent - 1 for axis in axes) for axes in dimensions)
    if term.tensor in inputs and inputs[term.tensor].shape != shape:
        raise IrregularLoops(
            f"operator {like.name}: its main stage reads {term.tensor.name} at several places, of which a "
            "bridge would make inputs of different shapes; leave out its bridges"
        )
    tensor = inputs.setdefault(term.tensor, placeholder(shape, term.tensor.name, term.tensor.dtype))
    return tensor[tuple(_total(axes) for axes in dimensions)]


def _plain(like: Operator, index: Term, fresh: Mapping[Axis, Axis]) -> list[Axis]:
    """The axes that step along a dimension, which a bridge adds up with steps of 1."""
    found = affine(index)
    steps = found[0] if found else {}
    loops = [axis for axis, step in steps.items() if step]
    several = [steps[axis] for axis in loops if axis.kind is AxisKind.SPACE]
    if found is None or (len(several) > 1 and set(several) != {1}):
        raise IrregularLoops(
            f"operator {like.name}: its main stage reads at an index that is no window over one loop; leave "
            "out its bridges"
        )
    return [fresh[axis] for axis in loops]


def _total(axes: Sequence[Axis]) -> Term | int:
    total: Term | int = 0
    for axis in axes:
        total = axis + total
    return total
