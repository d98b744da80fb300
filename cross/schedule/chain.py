"""Chains: operators with several reductions one behind the other, computed block by block.

The last reduction owns the outer loops. What the ones before it hand over is computed for one block of them
at a time, in a buffer that stays in a cache, with what overlaps between blocks computed again:

    parallel blocks of y, x of the output
        a depthwise convolution of what the block needs, by tiles of registers
        for tiles of registers of the block: products with the weights of a pointwise convolution

A block may also be computed in steps along one axis, while a window slides over what a link computes: a ring
of as much of it as a step needs, of which each step computes what the one before did not (Sliding).

The last group may also be without a reduction, where all before it are of whole rows: a normalization reads
each row three times, which is in the first cache from the second time on.

Start at `chain_of`; cpu_sketch.py makes a choice between this and nest after nest of it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.tensor import Axis, Tensor, reads_in
from cross.expression.language.terms import Binary, Int, Term, walk
from cross.schedule.plan import Group, Plan, shares_reads, wide_axes
from cross.schedule.vector_axis import coefficient, crossed_axis


class Link(msgspec.Struct, frozen=True):
    """A group whose result one other group reads: along each axis at an index that moves by `steps` (none is
    negative) with the axes of that group's reduction. `over` says how far
    they reach over either end of the result, along each of its axes, through a padding; less than 0: not as
    far as the end. Along the axes in `whole` a block needs all of it.

    A link of rows is read by other links in front of the last group, or by a last group without a reduction,
    all at the rows of the block: what a softmax makes of scores. `reader` is the first of them.
    """

    producer: Group
    reader: Group
    steps: tuple[Mapping[Axis, int], ...]
    over: tuple[tuple[int, int], ...] = ()
    whole: tuple[str, ...] = ()

    @property
    def padded(self) -> tuple[str, ...]:
        """The axes of the result over whose ends it is read."""
        pairs = zip(self.producer.owner.axes, self.over, strict=False)
        return tuple(axis.name for axis, over in pairs if max(over) > 0)


class Sliding(msgspec.Struct, frozen=True):
    """Along `axis` of the last owner steps may follow one another in a block: what they need of a link's
    result lies `moves` elements further along its axis `along` for each element, and overlaps by `kept`.
    """

    link: Link
    axis: Axis
    along: Axis
    moves: int
    kept: int

    def fits(self, size: Any) -> Any:
        """Whether steps of so many elements of `axis` compute at least what they keep, inside the result."""
        computed = self.moves * size
        return (computed >= self.kept) & (computed + self.kept <= self.along.extent)


class Chain(msgspec.Struct, frozen=True, dict=True):
    """The last group of a plan and the links before it, from the last to the first.

    `outer` are the axes of the last owner along which blocks need different parts of what is handed over,
    `paddings` the stages that pad what a member reads, by the name of its owner.
    """

    last: Group
    links: tuple[Link, ...]
    outer: tuple[Axis, ...]
    paddings: Mapping[str, tuple[Tensor, ...]]

    @property
    def of_rows(self) -> bool:
        """Whether the last group has no reduction."""
        return self.last.reduction is None

    @property
    def producers(self) -> tuple[Group, ...]:
        return tuple(link.producer for link in self.links)

    def regions(self, sizes: Mapping[Axis, Any], slides: Any = False) -> dict[str, tuple[Any, ...]]:
        """How much of each producer one block needs, by the owner's name: an extent for each axis.

        `sizes`: of a block, for every axis of the last owner; numbers or arrays. Where a window `slides`, of
        a step of one.
        """
        return self._regions(sizes, slides)[0]

    def computed(self, sizes: Mapping[Axis, Any], slides: Any) -> dict[str, tuple[Any, ...]]:
        """The part of `regions` that was not computed for the step before."""
        return self._regions(sizes, slides)[1]

    def _regions(self, sizes: Mapping[Axis, Any], slides: Any) -> tuple[dict[str, tuple[Any, ...]], ...]:
        held: dict[str, tuple[Any, ...]] = {}
        computed = {self.last.owner.name: tuple(sizes[axis] for axis in self.last.owner.axes)}
        for link in self.links:
            name, reading = link.producer.owner.name, link.reader.reading
            spans = dict(zip(reading.axes, computed[link.reader.owner.name], strict=True))
            spans |= {axis: axis.extent for axis in reading.reduce_axes}
            held[name] = computed[name] = tuple(
                axis.extent if axis.name in link.whole else np.minimum(_reach(steps, spans), axis.extent)
                for steps, axis in zip(link.steps, link.producer.owner.axes, strict=True)
            )
            sliding = None if slides is False else self.sliding
            if sliding is not None and link is sliding.link:
                moved = sliding.moves * sizes[sliding.axis]
                computed[name] = tuple(
                    np.where(slides, moved, extent) if axis is sliding.along else extent
                    for axis, extent in zip(link.producer.owner.axes, held[name], strict=True)
                )
        del computed[self.last.owner.name]
        return held, computed

    @functools.cached_property
    def sliding(self) -> Sliding | None:
        """How a link can be computed step by step of a block, each element of it once."""
        if self.of_rows or any(link.whole or link.producer.reduction is None for link in self.links):
            return None
        found = (self._sliding(axis) for axis in self.outer if axis is not self.last.owner.axes[-1])
        return next((item for item in found if item is not None), None)

    def _sliding(self, axis: Axis) -> Sliding | None:
        """Along one axis, the link nearest to the last group of which steps share anything."""
        if axis.extent < len(_SIZES):
            return None
        whole = {axis: axis.extent for axis in self.last.owner.axes}
        needed = [self.regions({**whole, axis: size}) for size in _SIZES]
        for link in self.links:
            regions = [needed_by_size[link.producer.owner.name] for needed_by_size in needed]
            extents = [tuple(map(int, sizes)) for sizes in zip(*regions, strict=True)]
            moving = [place for place, (one, two, _) in enumerate(extents) if one != two]
            if len(moving) != 1 or not link.over:
                return None
            place, over = moving[0], max(link.over[moving[0]])
            one, two, three = extents[place]
            moves, along = two - one, link.producer.owner.axes[place]
            if one <= moves and over <= 0:
                continue  # nothing is shared, and where a step's region is follows from where the step is
            even = three - two == moves and along is not link.producer.owner.axes[-1]
            if not even or one <= moves or over > one - moves:
                return None
            return Sliding(link, axis, along, moves, one - moves)
        return None

    def handed_bytes(self, regions: Mapping[str, tuple[Any, ...]]) -> Any:
        """The bytes of everything that is handed over within a block of these regions."""
        owners = [group.owner for group in self.producers]
        return sum(math.prod(regions[owner.name]) * ITEM_BYTES[owner.dtype] for owner in owners)


_SIZES = (1, 2, 3)


def _reach(steps: Mapping[Axis, int], spans: Mapping[Axis, Any]) -> Any:
    """How many neighbouring values an index takes while axes run over spans of these lengths."""
    return 1 + sum(step * (spans[axis] - 1) for axis, step in steps.items())


def chain_of(plan: Plan) -> Chain | None:
    """The chain that the groups of a plan end in; None where the last group is not one of several."""
    last = plan.groups[-1]
    links: list[Link] = []
    rows: dict[str, Followed] = {last.owner.name: last.owner.axes}
    for group in reversed(plan.groups[:-1]):
        link = _link(plan, group, [last, *(item.producer for item in links)])
        link = link or _row_link(plan, group, last, rows)
        if link is not None:
            links.append(link)
    direct = [link for link in links if link.reader is last]
    used = {
        owned
        for link in direct
        for axis, owned in zip(last.reading.axes, last.owner.axes, strict=True)
        if any(axis in steps for steps in link.steps)
    }
    outer = tuple(axis for axis in last.owner.axes if axis in used and axis.extent > 1)
    if not outer or (last.reduction is None and not _is_of_rows(plan, links, outer)):
        return None
    members = [last, *(link.producer for link in links)]
    paddings = {
        group.owner.name: tuple(item for item in plan.paddings if _pads(plan, item, group))
        for group in members
    }
    return Chain(last, tuple(links), outer, paddings)


def _link(plan: Plan, group: Group, members: Sequence[Group]) -> Link | None:
    """How a group's result is read, if by one of the members only, at one place that moves along affinely."""
    name = group.owner.name
    readers = _readers(plan, name, padding_inlined=True)
    if group.reduction is None or len(readers) != 1:
        return None
    reader, stage = readers[0]
    body = plan.body(stage, padding_inlined=True)
    if reader not in members or stage is not reader.reduction or not shares_reads(stage, body, name):
        return None
    between = [item for item in plan.paddings if _reads(plan, item, name)]
    if not all(_pads(plan, item, reader) for item in between):
        return None
    places = {read.indices for read in reads_in(body) if read.tensor.name == name}
    axes = (*stage.axes, *stage.reduce_axes)
    indices = next(iter(places))
    found = [{axis: coefficient(index, axis) for axis in axes} for index in indices]
    if len(places) != 1 or any(step is None or step < 0 for item in found for step in item.values()):
        return None  # what a block needs grows with the block, from its first element on
    steps = tuple({axis: step for axis, step in item.items() if step} for item in found)
    spans = {axis: axis.extent for axis in axes}
    over = tuple(
        (-_start(index), _start(index) + int(_reach(item, spans)) - axis.extent)
        for axis, index, item in zip(group.owner.axes, indices, steps, strict=True)
    )
    return Link(group, reader, steps, over)


def _is_of_rows(plan: Plan, links: Sequence[Link], outer: Sequence[Axis]) -> bool:
    """Whether a last group without a reduction works on whole rows of what all other groups are made of."""
    last = plan.groups[-1].owner
    inside = wide_axes(last.axes)[-1] not in outer and crossed_axis(plan.body(last), last) is None
    return inside and len(links) + 1 == len(plan.groups)


Followed = tuple[Axis | None, ...]
"""For each axis of an owner the axis of the last one whose blocks it follows, if any."""


def _row_link(plan: Plan, group: Group, last: Group, rows: dict[str, Followed]) -> Link | None:
    """How rows of a group's result are read by several links, or elements without a reduction by the last.

    `rows` has those of the links behind it, and gets its own.
    """
    readers = _readers(plan, group.owner.name, padding_inlined=True)
    by_last = last.reduction is not None and any(reader is last for reader, _ in readers)
    if by_last and (group.reduction is not None or len(readers) > 1):
        return None
    if any(stage is not reader.reading for reader, stage in readers):
        return None
    each = followed_rows(plan, group, rows)
    if not each or (len(each) > 1 and last.reduction is not None):
        return None
    followed = in_common(each)
    if set(followed) == {None}:
        return None
    rows[group.owner.name] = followed
    reader = readers[0][0]
    mine = zip(reader.reading.axes, rows[reader.owner.name], strict=True)
    same = {row: axis for axis, row in mine if row is not None}
    steps = tuple({} if row is None else {same[row]: 1} for row in followed)
    whole = tuple(axis.name for axis, row in zip(group.owner.axes, followed, strict=True) if row is None)
    return Link(group, reader, steps, whole=whole)


def followed_rows(plan: Plan, group: Group, rows: Mapping[str, Followed]) -> list[Followed]:
    """The ways in which other groups read rows of a group's result. Empty where one of them reads anything
    else, or is not in `rows`, which has what is known of the groups behind, by owners' names.
    """
    name = group.owner.name
    if any(_reads(plan, item, name) for item in plan.paddings):
        return []
    readers = _readers(plan, name, padding_inlined=True)
    found = {_followed(plan, name, reader, stage, rows) for reader, stage in readers}
    each = [item for item in found if item is not None]
    return each if len(each) == len(found) else []


def in_common(each: Sequence[Followed]) -> Followed:
    """What several ways of reading rows have in common: of the exponentials of a softmax its sums read whole
    rows, and its results one element each."""
    return tuple(item[0] if len(set(item)) == 1 else None for item in zip(*each, strict=True))


def _followed(
    plan: Plan, name: str, reader: Group, stage: Tensor, rows: Mapping[str, Followed]
) -> Followed | None:
    """The axes of the last owner that a tensor's axes follow where a stage reads it; None for other reads."""
    if reader.owner.name not in rows:
        return None
    places = {read.indices for read in reads_in(plan.body(stage, True)) if read.tensor.name == name}
    if len(places) != 1:
        return None
    follows = dict(zip(stage.axes, rows[reader.owner.name], strict=True))
    found: list[Axis | None] = []
    for index in next(iter(places)):
        used = [follows.get(item) for item in walk(index) if isinstance(item, Axis)]
        moved = any(item is not None and item.extent > 1 for item in used)
        if moved and not isinstance(index, Axis):
            return None
        found.append(used[0] if moved else None)
    return tuple(found)


def _start(index: Term) -> int:
    """The value of an affine index where all axes are 0."""
    match index:
        case Int(value):
            return value
        case Binary("+", left, right):
            return _start(left) + _start(right)
        case Binary("-", left, right):
            return _start(left) - _start(right)
        case Binary("*", left, right):
            return _start(left) * _start(right)
        case _:
            return 0


def _pads(plan: Plan, padding: Tensor, group: Group) -> bool:
    """Whether a padding is read by the reduction of a group and by nothing else."""
    return _readers(plan, padding.name) == [(group, group.reduction)] and not any(
        _reads(plan, item, padding.name) for item in plan.paddings
    )


def _readers(plan: Plan, name: str, padding_inlined: bool = False) -> list[tuple[Group, Tensor]]:
    """The stages of groups that read a tensor, with their groups."""
    return [
        (item, stage)
        for item in plan.groups
        for stage in dict.fromkeys((item.owner, item.reduction))
        if stage is not None and _reads(plan, stage, name, padding_inlined)
    ]


def _reads(plan: Plan, stage: Tensor, name: str, padding_inlined: bool = False) -> bool:
    return any(name == read.tensor.name for read in reads_in(plan.body(stage, padding_inlined)))
