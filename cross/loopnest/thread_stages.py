"""What the primitives do to stages that only schedules of GPUs use."""

from __future__ import annotations

from msgspec.structs import replace

from cross.errors import ScheduleError
from cross.expression.language.naming import replace_reads
from cross.expression.language.tensor import Axis, Read, Tensor, reads_in
from cross.expression.language.terms import Term
from cross.loopnest.nodes import ONE, LoopKind, Var, product
from cross.loopnest.stage import Fusion, Loop, Stage, Stages, plain_stage, resolved_body
from cross.schedule.primitives import Bind, CacheRead, Fuse, Primitive, TileLike

_KINDS = {kind.value: kind for kind in (LoopKind.BLOCK, LoopKind.THREAD, LoopKind.VIRTUAL_THREAD)}


def bind_to(_: Stages, stage: Stage, primitive: Primitive) -> None:
    """See Bind."""
    assert isinstance(primitive, Bind)
    loop = stage.loop(primitive.loop)
    if primitive.to not in _KINDS:
        raise ScheduleError(
            f"Bind of stage {stage.name}: expected {', '.join(_KINDS)}, found {primitive.to!r}"
        )
    if loop.reduces:
        raise ScheduleError(f"stage {stage.name}: reduction loop {loop.name} cannot run in {primitive.to}s")
    loop.kind = _KINDS[primitive.to]


def fuse(_: Stages, stage: Stage, primitive: Primitive) -> None:
    """See Fuse."""
    assert isinstance(primitive, Fuse)
    parts = [stage.loop(name) for name in primitive.loops]
    first = stage.loops.index(parts[0])
    if stage.loops[first : first + len(parts)] != parts or any(part.reduces for part in parts):
        order = ", ".join(loop.name for loop in stage.loops)
        raise ScheduleError(
            f"Fuse of stage {stage.name}: expected space loops that follow one another in {order}, "
            f"found {', '.join(primitive.loops)}"
        )
    axis = Axis(primitive.name, 0)  # of as many iterations as its loop has
    extent = product([part.extent for part in parts])
    loop = Loop(primitive.name, Var(f"{stage.name}.{primitive.name}"), axis, extent, ONE)
    stage.loops[first : first + len(parts)] = [loop]
    stage.fusions.append(Fusion(axis, parts))


def cache_read(current: Stages, stage: Stage, primitive: Primitive) -> None:
    """See CacheRead."""
    assert isinstance(primitive, CacheRead)
    body = resolved_body(current, stage)
    source = next((read.tensor for read in reads_in(body) if read.tensor.name == primitive.tensor), None)
    if source is None:
        raise ScheduleError(f"CacheRead: stage {stage.name} does not read {primitive.tensor}")
    axes = tuple(Axis(f"d{position}", extent) for position, extent in enumerate(source.shape))
    name = f"{source.name}.{primitive.scope}"
    copy = Tensor(name, source.shape, source.dtype, axes, Read(source, axes))

    def change(read: Read) -> Term:
        return replace(read, tensor=copy) if read.tensor.name == source.name else read

    stage.tensor = replace(stage.tensor, body=replace_reads(body, change))
    entries = list(current.items())
    position = [item for item, _ in entries].index(stage.name)
    entries.insert(position, (name, plain_stage(copy)))
    current.clear()
    current.update(entries)


def tile_like(current: Stages, stage: Stage, primitive: Primitive) -> None:
    """See TileLike."""
    assert isinstance(primitive, TileLike)
    consumer = current.get(primitive.consumer)
    attachment = stage.attachment
    if consumer is None or attachment is None or attachment.consumer != primitive.consumer:
        raise ScheduleError(f"TileLike: stage {stage.name} is not attached to {primitive.consumer}")
    inside = loops_inside(consumer, attachment.loop)
    tiled: list[Loop] = []
    for loop in stage.loops:
        if loop.reduces:
            tiled.append(loop)
            continue
        owned = consumer.tensor.axes[stage.tensor.axes.index(loop.axis)]
        own = [item for item in inside if item.axis is owned]
        tiled += [
            replace(
                item,
                name=item.name.replace(owned.name, loop.axis.name, 1),
                var=Var(f"{loop.var.name}{item.name.removeprefix(owned.name)}"),
                axis=loop.axis,
                kind=LoopKind.SERIAL,
            )
            for item in own
        ]
    stage.loops = tiled


def loops_inside(stage: Stage, loop: str) -> list[Loop]:
    """The loops of a stage inside one of them."""
    return stage.loops[[item.name for item in stage.loops].index(loop) + 1 :]
