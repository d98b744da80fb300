"""What runs in one nest, and what is inlined: the first two rules of the CPU sketches.

`make_plan` reads an operator's stages and groups them; cpu_sketch.py builds knobs and schedules from that.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from cross.expression.language.naming import inlined_body, unique_tensors
from cross.expression.language.operations import BYTE_PRODUCTS, OPERATIONS
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Axis, Read, Tensor, reads_in
from cross.expression.language.terms import Binary, Call, Int, Select, Term, walk

SHORT_REDUCTION = 32  # steps: of windows, such as 5 x 5 in a depthwise convolution


class Group(msgspec.Struct, frozen=True):
    """Stages that share a nest: the owner of the outer loops, and the reduction computed inside, if any."""

    owner: Tensor
    reduction: Tensor | None
    cached: bool  # the reduction is the owner's own, through CacheWrite

    @property
    def reading(self) -> Tensor:
        """The stage that reads what other groups compute."""
        return self.reduction or self.owner

    @property
    def dtype(self) -> str:
        """What registers hold while the group is computed: the sums', of which the owner may make another."""
        return (self.reduction or self.owner).dtype

    @property
    def byte_products(self) -> frozenset[str]:
        """The products of bytes in words that it sums; none where it sums something else."""
        body = None if self.reduction is None else self.reduction.body
        calls = [term for term in walk(body) if isinstance(term, Call)] if body is not None else []
        return frozenset(term.function for term in calls) & BYTE_PRODUCTS

    @property
    def sums_window(self) -> bool:
        """Whether its reduction sums up a window and little more, so that it may be written out whole.

        A short sum over one axis may not: with the registers full of accumulators, LLVM would spill them for
        the loads of later steps.
        """
        reduce = () if self.reduction is None else self.reduction.reduce_axes
        return len(wide_axes(reduce)) > 1 and math.prod(axis.extent for axis in reduce) <= SHORT_REDUCTION

    @property
    def reduction_name(self) -> str:
        assert self.reduction is not None
        return f"{self.owner.name}.acc" if self.cached else self.reduction.name


class Plan(msgspec.Struct, frozen=True):
    """Rules 1 and 2 applied: what is inlined, what may be, and the groups in program order."""

    inlined: tuple[str, ...]
    paddings: tuple[Tensor, ...]
    groups: tuple[Group, ...]
    constants: frozenset[str]
    stages: Mapping[str, Tensor]
    read_by_several: frozenset[str] = frozenset()
    """Constants that more than one stage of the groups reads, with what is inlined in it."""

    @property
    def reductions(self) -> tuple[Group, ...]:
        """The groups that reduce."""
        return tuple(group for group in self.groups if group.reduction is not None)

    @property
    def sums_windows(self) -> bool:
        """Whether every reduction sums up a window and little more."""
        return all(group.sums_window for group in self.reductions)

    def body(self, tensor: Tensor, padding_inlined: bool = False) -> Term:
        """The body of a stage with everything inlined that the plan inlines."""
        names = {*self.inlined, *(item.name for item in self.paddings if padding_inlined)}
        return inlined_body(tensor, lambda read: self.stages[read.name] if read.name in names else None)


def make_plan(operator: Operator) -> Plan:
    """Decides what is inlined and which stages share a nest (rules 1 and 2)."""
    renamed = unique_tensors(operator)
    stages = {renamed[tensor].name: renamed[tensor] for tensor in operator.stages}
    output = renamed[operator.output]
    elementwise = [item for item in stages.values() if not item.reduce_axes and item is not output]
    paddings = tuple(item for item in elementwise if guards_reads(item) and _feeds_reduction(item, stages))
    plain = tuple(item.name for item in elementwise if item not in paddings)
    constants = frozenset(renamed[operator.inputs[position]].name for position in operator.constants)
    draft = Plan(plain, paddings, (), constants, stages)
    kept = [
        stages[name]
        for name in plain
        if _is_worth_keeping(stages[name], stages) or _ends_a_link(draft, stages[name])
    ]
    inlined = tuple(name for name in plain if stages[name] not in kept)
    draft = Plan(inlined, paddings, (), constants, stages)
    groups = _groups(draft, output, kept)
    read = Counter(
        name
        for group in groups
        for stage in {group.owner, group.reading}
        for name in _read_names(draft.body(stage, padding_inlined=True)) & constants
    )
    several = frozenset(name for name, stages_reading in read.items() if stages_reading > 1)
    return Plan(inlined, paddings, groups, constants, stages, several)


def calls_long_function(body: Term) -> bool:
    """Whether a term has a function of many instructions in it, such as an exponential."""
    return any(isinstance(term, Call) and OPERATIONS[term.function].long for term in walk(body))


def _is_worth_keeping(tensor: Tensor, stages: Mapping[str, Tensor]) -> bool:
    """Whether several nests read the results of a long function, such as softmax's exponentials."""
    assert tensor.body is not None
    if not calls_long_function(tensor.body):
        return False
    readers = [
        item for item in stages.values() if item.body is not None and tensor.name in _read_names(item.body)
    ]
    return len(readers) > 1 and any(item.reduce_axes for item in readers)


def _ends_a_link(plan: Plan, tensor: Tensor) -> bool:
    """Whether a stage is what one link of a chain hands to the next: it finishes the elements of a reduction,
    and another reduction reads each of them several times, or through a padding.
    """
    own = {
        read.tensor.name
        for read in reads_in(plan.body(tensor))
        if read.tensor.reduce_axes and read.tensor.shape == tensor.shape and _is_own_element(read, tensor)
    }
    readers = [
        item
        for item in plan.stages.values()
        if item.body is not None and tensor.name in _read_names(item.body)
    ]
    return bool(own) and any(
        item in plan.paddings or (item.body is not None and shares_reads(item, item.body, tensor.name))
        for item in readers
    )


def shares_reads(reduction: Tensor, body: Term, name: str) -> bool:
    """Whether sums of a reduction with this body share elements that they read of a tensor, or read windows.

    A tensor that it only reads once over, as a normalization reads its sums, is not worth a block of its own.
    """
    points = math.prod(axis.extent for axis in reduction.axes)
    for read in reads_in(body) if reduction.reduce_axes else ():
        used = [{axis for axis in walk(index) if isinstance(axis, Axis)} for index in read.indices]
        steps = math.prod(axis.extent for axis in reduction.reduce_axes if any(axis in item for item in used))
        windowed = any(len(item) > 1 for item in used)
        if read.tensor.name == name and (windowed or points * steps > read.tensor.elements):
            return True
    return False


def _groups(plan: Plan, output: Tensor, kept: Sequence[Tensor]) -> tuple[Group, ...]:
    """The groups; of the stages without a reduction, the output and what is kept have loops of their own."""
    roots = [item for item in plan.stages.values() if item.reduce_axes or item in (output, *kept)]
    owners: dict[str, Tensor] = {}
    for item in roots:
        if item.reduce_axes and item is not output:
            readers = [root for root in roots if item.name in _read_names(plan.body(root))]
            if (
                len(readers) == 1
                and _is_elementwise_over(plan, readers[0], item)
                and readers[0].name not in owners
            ):
                owners[readers[0].name] = item
    fused = {reduction.name for reduction in owners.values()}
    groups = []
    for item in roots:
        if item.name in fused:
            continue
        if item.reduce_axes:
            groups.append(Group(item, item, True))
        else:
            groups.append(Group(item, owners.get(item.name), False))
    return tuple(groups)


def _read_names(body: Term) -> set[str]:
    return {read.tensor.name for read in reads_in(body)}


def guards_reads(tensor: Tensor) -> bool:
    """Whether a computed tensor chooses between values, as a padding does."""
    assert tensor.body is not None
    return any(isinstance(term, Select) for term in walk(tensor.body))


def _feeds_reduction(tensor: Tensor, stages: Mapping[str, Tensor]) -> bool:
    for stage in stages.values():
        if stage.body is None or tensor.name not in _read_names(stage.body):
            continue
        if stage.reduce_axes or _feeds_reduction(stage, stages):
            return True
    return False


def _is_elementwise_over(plan: Plan, consumer: Tensor, producer: Tensor) -> bool:
    """Whether every read of the producer is at exactly the consumer's own element."""
    if consumer.reduce_axes or consumer.shape != producer.shape or not consumer.shape:
        return False
    reads = [
        term
        for term in walk(plan.body(consumer))
        if isinstance(term, Read) and term.tensor.name == producer.name
    ]
    return all(_is_own_element(read, consumer) for read in reads)


def _is_own_element(read: Read, consumer: Tensor) -> bool:
    """Index by index the consumer's axis, or 0 where there is only one element (broadcasting writes that)."""
    return all(
        index == axis or (axis.extent == 1 and index == Int(0))
        for index, axis in zip(read.indices, consumer.axes, strict=True)
    )


def wide_axes(axes: Sequence[Axis]) -> list[Axis]:
    """The axes with more than one element."""
    return [axis for axis in axes if axis.extent > 1]


def operand_axes(plan: Plan, group: Group) -> list[tuple[int, ...]]:
    """For every distinct operand of a reduction, the wide space axes that it varies along, by position."""
    return [positions for _, positions in operands(plan, group)]


def operands(plan: Plan, group: Group) -> dict[tuple[str, tuple[int, ...]], Read]:
    """A read of every distinct operand of a reduction, by its name and the axes that it varies along.

    An operand whose elements are repeated along the vector axis counts as one that does not vary along it:
    it takes one register at a time.
    """
    reduction = group.reduction
    assert reduction is not None
    wide = wide_axes(reduction.axes)
    reads = [term for term in walk(plan.body(reduction)) if isinstance(term, Read)]
    return {(read.tensor.name, varying_axes(read, wide)): read for read in reads}


def varying_axes(read: Read, wide: Sequence[Axis]) -> tuple[int, ...]:
    """The positions of the axes that a read varies along; not of the last one where it is divided."""
    used = {axis for index in read.indices for axis in walk(index) if isinstance(axis, Axis)}
    if wide and repeats(read, wide[-1]):
        used.discard(wide[-1])
    return tuple(position for position, axis in enumerate(wide) if axis in used)


def repeats(read: Read, axis: Axis) -> bool:
    """Whether a read repeats its elements along an axis: only its last index has the axis, divided."""
    divided = [any(_divides(term, axis) for term in walk(index)) for index in read.indices]
    return divided[-1:] == [True] and not any(
        item is axis for index in read.indices[:-1] for item in walk(index)
    )


def _divides(term: Term, axis: Axis) -> bool:
    return isinstance(term, Binary) and term.op == "//" and any(item is axis for item in walk(term))


def packable(plan: Plan, body: Term) -> list[str]:
    """Constants that one stage reads at one place, unguarded, every axis in one dimension (rule 4)."""
    reads = reads_in(body)
    guarded = {
        inner.tensor.name
        for term in walk(body)
        if isinstance(term, Select)
        for inner in walk(term)
        if isinstance(inner, Read)
    }
    result = []
    for name in sorted(plan.constants - guarded - plan.read_by_several):
        mine = [read for read in reads if read.tensor.name == name]
        if len(mine) != 1 or len(mine[0].indices) < 2:
            continue
        parts = [_loop_order_parts(index) for index in mine[0].indices]
        axes = [axis for part in parts if part is not None for axis in part]
        if None not in parts and len(set(axes)) == len(axes):
            result.append(name)
    return result


def _loop_order_parts(index: Term) -> list[Axis] | None:
    """The axes of an index that counts through its dimension: `k`, or `k0 * 16 + k1`; None for any other."""
    match index:
        case Axis():
            return [index]
        case Binary("+", Binary("*", Axis() as outer, Int()), Axis() as inner):
            return [outer, inner]
        case _:
            return None
