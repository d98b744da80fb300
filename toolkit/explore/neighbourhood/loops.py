"""The loops that most of an operator's work runs in, and how its inputs lie along them (ETO, section 4).

`major_loops` is the door.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import msgspec

from cross.expression.language.affine import affine
from cross.expression.language.operator import Operator, reads
from cross.expression.language.tensor import Axis, Read, Tensor
from cross.expression.language.terms import Term
from toolkit.errors import InputError


class IrregularLoops(InputError):
    """The loops of an operator do not say what they touch: the message says which index is in the way."""


class Dimension(msgspec.Struct, frozen=True):
    """One dimension of an input: its extent, padding included, and (position, step) of the loops along it."""

    extent: int
    steps: tuple[tuple[int, int], ...]


class MajorLoops(msgspec.Struct, frozen=True):
    """The loops that most of the work runs in: `space` then `reduce`, which number the steps of `inputs`.

    `split` is the position in `reduce` of the one loop whose data is staged piece by piece; None without.
    """

    kind: str
    space: tuple[int, ...]
    reduce: tuple[int, ...]
    inputs: tuple[tuple[Dimension, ...], ...]
    split: int | None

    @property
    def extents(self) -> tuple[int, ...]:
        return self.space + self.reduce

    @property
    def points(self) -> int:
        """|sL|: points of the space loops."""
        return math.prod(self.space)

    @property
    def size(self) -> int:
        """|L|: points of all loops."""
        return math.prod(self.extents)

    @property
    def split_extent(self) -> int:
        """Extent of the loop that is staged, 1 without one."""
        return 1 if self.split is None else self.reduce[self.split]


def major_loops(operator: Operator, kind: str) -> MajorLoops:
    """The loops of the main stage.

    kind: operator type and sketches, in any words; only equal kinds compare. Raises IrregularLoops when an
    index of that stage is not affine.
    """
    stage = main_stage(operator)
    return stage_loops(operator, kind, stage, reads(stage))


def stage_loops(operator: Operator, kind: str, stage: Tensor, read_by_it: Iterable[Read]) -> MajorLoops:
    """The loops of one stage of an operator, with what its body reads, each place once and in this order.

    Raises IrregularLoops when an index is not affine.
    """
    loops = [*stage.axes, *stage.reduce_axes]
    place = {axis: position for position, axis in enumerate(loops)}
    inputs = tuple(
        tuple(
            Dimension(extent, _steps(operator, index, place))
            for extent, index in zip(read.tensor.shape, read.indices, strict=True)
        )
        for read in dict.fromkeys(read_by_it)
    )
    space = tuple(axis.extent for axis in stage.axes)
    reduce = tuple(axis.extent for axis in stage.reduce_axes)
    return MajorLoops(kind, space, reduce, inputs, _split(inputs, len(space), reduce))


def main_stage(operator: Operator) -> Tensor:
    """The reduction with the most iterations, of others the stage with the most; the first of several.

    What computes an operand of a reduction may have as many elements as that has steps.
    """
    return max(operator.stages, key=lambda stage: (bool(stage.reduce_axes), _iterations(stage)))


def _iterations(stage: Tensor) -> int:
    return stage.elements * math.prod(axis.extent for axis in stage.reduce_axes)


def _split(inputs: tuple[tuple[Dimension, ...], ...], spaces: int, reduce: tuple[int, ...]) -> int | None:
    """The reduction loop that every input steps along by itself: input channels, or k of a product."""
    for position in range(len(reduce)):
        alone = [
            any(dimension.steps == ((spaces + position, 1),) for dimension in dimensions)
            for dimensions in inputs
        ]
        if all(alone):
            return position
    return None


def _steps(operator: Operator, index: Term, place: Mapping[Axis, int]) -> tuple[tuple[int, int], ...]:
    found = affine(index)
    if found is None:
        raise IrregularLoops(
            f"operator {operator.name}: an index of its main stage is not affine, so that its loops say "
            "nothing of the data it touches; tune it without reuse"
        )
    return tuple(sorted((place[axis], abs(step)) for axis, step in found[0].items() if step))
