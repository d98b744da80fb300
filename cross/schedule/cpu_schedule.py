"""Schedules of the CPU sketches: what the values of structural knobs mean. Start at `cpu_schedule`.

The rules are numbered as in cpu_sketch.py, which makes the knobs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from boards.target import Target
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.tensor import Axis, Tensor
from cross.schedule.chain import Chain, Sliding
from cross.schedule.plan import Group, Plan, packable, wide_axes
from cross.schedule.primitives import (
    CacheWrite,
    ComputeAt,
    HoldInRegisters,
    Inline,
    Pack,
    Parallel,
    Primitive,
    Reorder,
    Schedule,
    Slide,
    Split,
    Unroll,
    Vectorize,
)
from cross.schedule.vector_axis import crossed_axis

NESTS, BLOCKS, SLIDING = range(3)
"""How a chain is computed: nest after nest, block by block, or in blocks step by step. Sums of the last stay
in registers, and paddings are inlined."""
PARALLEL_ITERATIONS = 32  # per thread: enough to balance, few enough that starting one costs nothing


def tile_field(stage: str, axis: Axis, level: int) -> str:
    """The field with the extent of a level of an axis' tiles."""
    return f"{stage}.{axis.name}.{level}"


def unroll_knob(plan: Plan, group: Group) -> str:
    """The knob that limits what is written out of a group's reduction. Windows beside longer ones have one of
    their own."""
    alone = group.sums_window and not plan.sums_windows
    return "window_unroll" if alone else "unroll"


def cpu_schedule(
    plan: Plan,
    chain: Chain | None,
    target: Target,
    structure: Mapping[str, int],
    in_tiles: frozenset[str] = frozenset(),
) -> Schedule:
    """The schedule of a plan for values of its structural knobs; tile sizes stay open.

    chain: what the plan's groups end in, if there is a knob for it. in_tiles: the owners of groups whose sums
    are in tile registers.
    """
    slides = structure.get("chain", 0) == SLIDING
    if slides:
        structure = {**structure, "padding": 1, "tiling": 0}
    padding_inlined = structure.get("padding", 0) == 1
    chain = chain if structure.get("chain", 0) else None
    result: list[Primitive] = [Inline(name) for name in plan.inlined]
    result += [CacheWrite(group.owner.name) for group in plan.groups if group.cached]
    for padding in plan.paddings:
        if padding_inlined:
            result.append(Inline(padding.name))
        elif chain is None or all(padding not in item for item in chain.paddings.values()):
            vector = 4 * target.vector_lanes(ITEM_BYTES[padding.dtype])
            result += _two_level(padding, target, vector, None)
    for group in plan.groups:
        if chain is not None and group in chain.producers:
            continue
        if chain is not None and group is chain.last:
            result += _blocks(plan, chain, structure, chain.sliding if slides else None)
        elif group.reduction is None:
            crossed = crossed_axis(plan.body(group.owner), group.owner)
            result += _two_level(group.owner, target, None, crossed)
        elif wide_axes(group.owner.axes):
            scope = "tile" if group.owner.name in in_tiles else ""
            result += _multi_level(plan, group, structure, padding_inlined, scope=scope)
        else:
            result += _only_reduction(plan, group)
    if structure.get("cores", 0) == 1:
        return tuple(primitive for primitive in result if not isinstance(primitive, Parallel))
    return tuple(result)


def _two_level(tensor: Tensor, target: Target, vector: int | None, crossed: Axis | None) -> list[Primitive]:
    """Rule 6: vectors innermost (a knob gives their size, where none is fixed), outer loops in parallel.

    An axis that crosses the vectors in memory is tiled with them.
    """
    wide = wide_axes(tensor.axes)
    if not wide:
        return []
    size = tile_field(tensor.name, wide[-1], 1) if vector is None else min(vector, wide[-1].extent)
    result: list[Primitive] = [Split(tensor.name, wide[-1].name, (size,))]
    if crossed is not None:
        result.append(Split(tensor.name, crossed.name, (tile_field(tensor.name, crossed, 1),)))
    loops = [f"{axis.name}.0" if axis in (wide[-1], crossed) else axis.name for axis in tensor.axes]
    if crossed is not None:
        result.append(Reorder(tensor.name, (*loops, f"{crossed.name}.1", f"{wide[-1].name}.1")))
    iterations = 1
    for axis, loop in zip(tensor.axes, loops, strict=True):
        if iterations >= PARALLEL_ITERATIONS * target.threads:
            break
        result.append(Parallel(tensor.name, loop))
        iterations *= axis.extent
    return [*result, Vectorize(tensor.name, f"{wide[-1].name}.1")]


def _only_reduction(plan: Plan, group: Group) -> list[Primitive]:
    """A single element: nothing to tile but the reduction."""
    name = group.reduction_name
    assert group.reduction is not None
    result: list[Primitive] = []
    if group.owner.axes:
        result.append(ComputeAt(name, group.owner.name, group.owner.axes[-1].name, "register"))
    reduce = group.reduction.reduce_axes
    result += [Split(name, axis.name, (tile_field(name, axis, 1),)) for axis in wide_axes(reduce)]
    result += [Unroll(name, f"{axis.name}.1", unroll_knob(plan, group)) for axis in wide_axes(reduce)]
    loops = [*_levels(reduce, (0, 1)), *(axis.name for axis in group.reduction.axes)]
    return [*result, Reorder(name, tuple(loops))]


def _levels(axes: Sequence[Axis], levels: Sequence[int]) -> list[str]:
    """Loop names of split axes, level by level; an axis of extent 1 is not split and stands first."""
    narrow = [axis.name for axis in axes if axis.extent == 1 and 0 in levels]
    return narrow + [f"{axis.name}.{level}" for level in levels for axis in axes if axis.extent > 1]


def _multi_level(
    plan: Plan,
    group: Group,
    structure: Mapping[str, int],
    padding_inlined: bool,
    outer: Sequence[Axis] = (),
    scope: str = "",
    stepped: Axis | None = None,
) -> list[Primitive]:
    """Rule 3: SSRSRS with the register tile innermost; with `outer` axes, blocks of those outermost, and in
    these steps along the axis that is `stepped`.

    `scope`: where sums are, if not as the structure says.
    """
    owner, name = group.owner, group.reduction_name
    reduction = group.reduction
    assert reduction is not None
    wide = wide_axes(owner.axes)
    ordered = [*wide[-1:], *wide[:-1]] if structure.get("space_order", 0) else wide
    narrow = [axis.name for axis in owner.axes if axis.extent == 1]
    result: list[Primitive] = [
        Split(owner.name, axis.name, tuple(tile_field(owner.name, axis, level) for level in (1, 2, 3)))
        for axis in wide
    ]
    inside = [axis for axis in ordered if outer and axis not in outer]
    parallel = [*narrow, *_levels(outer or ordered, (0,))]
    steps = [] if stepped is None else _levels([stepped], (1,))
    loops = [*parallel, *steps, *_levels(inside, (0,)), *_levels(ordered, (1, 2)), *_levels(wide, (3,))]
    result.append(Reorder(owner.name, tuple(dict.fromkeys(loops))))
    result += [Parallel(owner.name, loop) for loop in parallel]
    result += [Unroll(owner.name, f"{axis.name}.3") for axis in wide[:-1]]
    result.append(Vectorize(owner.name, f"{wide[-1].name}.3"))
    in_tiles = scope == "tile"
    local = structure.get("tiling", 0) == 1 and not in_tiles
    level = 1 if local else 2
    scope = scope or ("local" if local else "register")
    result.append(ComputeAt(name, owner.name, f"{ordered[-1].name}.{level}", scope))
    loops_of_sum = _reduction_loops(plan, group, structure, local)
    result += [item for item in loops_of_sum if not (in_tiles and _is_written_out(item))]
    body = plan.body(reduction, padding_inlined)
    return result + [Pack(tensor, name) for tensor in packable(plan, body)]


def _is_written_out(primitive: Primitive) -> bool:
    """Whether a loop of a reduction becomes straight code, by a knob."""
    return isinstance(primitive, Unroll) and primitive.limit is not None


def _blocks(
    plan: Plan, chain: Chain, structure: Mapping[str, int], sliding: Sliding | None
) -> list[Primitive]:
    """Rule 5: the last group, with what each of its blocks, or steps in these, needs of the others computed
    in it."""
    inlined = structure.get("padding", 0) == 1
    last, stepped = chain.last.owner, None if sliding is None else sliding.axis
    block = (last.name, f"{chain.outer[-1].name}.0" if stepped is None else f"{stepped.name}.1")
    if chain.of_rows:
        result = _rows(last, chain.outer)
    else:
        result = _multi_level(plan, chain.last, structure, inlined, chain.outer, stepped=stepped)
    attached = {link.producer.owner.name: link for link in chain.links}
    for name, paddings in chain.paddings.items():
        if name in attached:
            link = attached[name]
            kept = (sliding.along.name,) if sliding is not None and link is sliding.link else ()
            clamped = tuple(axis for axis in link.padded if axis not in kept)
            result.append(ComputeAt(name, *block, "local", clamped, link.whole))
            result += [Slide(name, axis) for axis in kept]
            result += _in_block(plan, link.producer, structure, inlined)
        for padding in () if inlined else paddings:
            result.append(ComputeAt(padding.name, *block, "local"))
            result.append(Vectorize(padding.name, padding.axes[-1].name))
    return result


def _rows(owner: Tensor, outer: Sequence[Axis]) -> list[Primitive]:
    """Parallel blocks of the outer axes of a stage without a reduction, vectors innermost."""
    vector, name = wide_axes(owner.axes)[-1], owner.name
    between = [
        axis.name for axis in owner.axes if axis not in outer and axis is not vector and axis.extent > 1
    ]
    narrow = [axis.name for axis in owner.axes if axis.extent == 1]
    parallel = [*narrow, *(f"{axis.name}.0" for axis in outer)]
    inside = [
        *(f"{axis.name}.1" for axis in outer),
        *between,
        *(f"{vector.name}.{level}" for level in (0, 1)),
    ]
    return [
        *(Split(name, axis.name, (tile_field(name, axis, 1),)) for axis in (*outer, vector)),
        Reorder(name, (*parallel, *inside)),
        *(Parallel(name, loop) for loop in parallel),
        Vectorize(name, inside[-1]),
    ]


def _in_block(
    plan: Plan, group: Group, structure: Mapping[str, int], padding_inlined: bool
) -> list[Primitive]:
    """What one block needs of a group: tiles of registers over the whole reduction."""
    owner, reduction = group.owner, group.reduction
    wide = wide_axes(owner.axes)
    if reduction is None:
        vectors = Split(owner.name, wide[-1].name, (tile_field(owner.name, wide[-1], 1),))
        return [vectors, Vectorize(owner.name, f"{wide[-1].name}.1")]
    name = group.reduction_name
    narrow = [axis.name for axis in owner.axes if axis.extent == 1]
    ordered = [*wide[-1:], *wide[:-1]] if structure.get("block_order", 0) else wide
    result: list[Primitive] = [
        Split(owner.name, axis.name, (tile_field(owner.name, axis, 3),)) for axis in wide
    ]
    result.append(Reorder(owner.name, (*narrow, *_levels(ordered, (0,)), *_levels(wide, (1,)))))
    result += [Unroll(owner.name, f"{axis.name}.1") for axis in wide[:-1]]
    result.append(Vectorize(owner.name, f"{wide[-1].name}.1"))
    result.append(ComputeAt(name, owner.name, f"{ordered[-1].name}.0", "register"))
    result += _reduction_loops(plan, group, structure, False)
    body = plan.body(reduction, padding_inlined)
    return result + [Pack(tensor, name) for tensor in packable(plan, body)]


def _reduction_loops(plan: Plan, group: Group, structure: Mapping[str, int], local: bool) -> list[Primitive]:
    reduction, name = group.reduction, group.reduction_name
    assert reduction is not None
    # The reduction has axes of its own; axis by axis they correspond to the owner's.
    space = list(zip(reduction.axes, group.owner.axes, strict=True))
    wide = [axis for axis, _ in space if axis.extent > 1]
    narrow = [axis.name for axis, _ in space if axis.extent == 1]
    reduce = list(reduction.reduce_axes)
    if structure.get("reduce_order", 0):
        reduce = [reduce[-1], *reduce[:-1]]
    result: list[Primitive] = [
        Split(name, axis.name, (tile_field(name, axis, 1),)) for axis in reduce if axis.extent > 1
    ]
    if local:
        result += [
            Split(name, axis.name, (tile_field(group.owner.name, owned, 3),))
            for axis, owned in space
            if axis.extent > 1
        ]
        outer = [f"{axis.name}.0" for axis in wide]
        tile = [f"{axis.name}.1" for axis in wide]
        result.append(Reorder(name, (*narrow, *_levels(reduce, (0,)), *outer, *_levels(reduce, (1,)), *tile)))
        result.append(HoldInRegisters(name, outer[-1]))
    else:
        tile = [axis.name for axis in wide]
        result.append(Reorder(name, (*narrow, *_levels(reduce, (0, 1)), *tile)))
    result += [Unroll(name, loop, unroll_knob(plan, group)) for loop in _levels(reduce, (1,))]
    result += [Unroll(name, loop) for loop in tile[:-1]]
    return [*result, Vectorize(name, tile[-1])]
