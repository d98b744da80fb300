"""Static memory plan: every intermediate result gets a place in one arena ahead of time.

Two values may share bytes when their lives do not touch. A value lives from the step that writes it to the
last step that reads it, both included, so that a step's output never overlaps its inputs. Placement is greedy
by size (largest first, lowest place that fits), which comes close to the lower bound: the most bytes alive at
any one step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import msgspec
from msgspec.structs import replace

from toolkit.errors import ModelError
from toolkit.model.graph import Control, Graph, Group, Region, Repeat

ALIGNMENT_BYTES = 64
"""To whose multiples buffers of a CPU's model are aligned: a cache line, and the widest vector."""


class Placement(msgspec.Struct, frozen=True):
    """Where a value lies in the arena, and the steps between which it lives (both included)."""

    value: str
    offset_bytes: int
    size_bytes: int
    first_step: int
    last_step: int


class MemoryPlan(msgspec.Struct, frozen=True):
    """The arena. Graph inputs, outputs and constants are not in it: they have memory of their own."""

    placements: tuple[Placement, ...]
    arena_bytes: int
    lower_bound_bytes: int


def plan_memory(
    graph: Graph, alignment_bytes: int = ALIGNMENT_BYTES, held: Collection[str] = ()
) -> MemoryPlan:
    """Plan the arena for running `graph.steps` in order, with places at multiples of `alignment_bytes`,
    itself a multiple of ALIGNMENT_BYTES. Values that are `held`, inputs or outputs, live in it all the time.
    """
    last = max(len(graph.steps) - 1, 0)
    lives = [Placement(name, 0, graph.values[name].nbytes, 0, last) for name in held]
    lives += _lives(graph, alignment_bytes)
    if alignment_bytes != ALIGNMENT_BYTES:  # values of whole multiples lie at whole multiples
        lives = [replace(life, size_bytes=aligned(life.size_bytes, alignment_bytes)) for life in lives]
    return place(lives)


def check_memory(graph: Graph, memory_bytes: int, board: str) -> None:
    """Refuse a model that a board's memory cannot hold.

    Raises:
        ModelError: arena, weights, inputs and outputs together take more than `memory_bytes`.
    """
    values = [value for inner in graph.every_graph() for value in inner.values.values()]
    weights = {id(value.data): value.nbytes for value in values if value.constant}  # graphs share some
    own = sum(graph.values[name].nbytes for name in {*graph.inputs, *graph.outputs})
    total = plan_memory(graph).arena_bytes + sum(weights.values()) + own
    if total > memory_bytes:
        largest = max(values, key=lambda value: value.nbytes)
        raise ModelError(
            f"model {graph.name!r} takes {total} bytes to run, of which {largest.name!r} of shape "
            f"{list(largest.shape)} takes {largest.nbytes}; expected at most {memory_bytes} bytes, the "
            f"memory of board {board}; give smaller shapes with --shape, or choose another board"
        )


def place(lives: Sequence[Placement]) -> MemoryPlan:
    """Give each life an offset; the offsets that come in are not used.

    Greedy placement depends on the order; the best of a few good orders is kept.
    """
    best = min((_place_in_order(sorted(lives, key=order)) for order in _ORDERS), key=_arena_bytes)
    best.sort(key=lambda item: (item.first_step, item.offset_bytes))
    return MemoryPlan(tuple(best), _arena_bytes(best), _lower_bound(lives))


def _place_in_order(lives: Sequence[Placement]) -> list[Placement]:
    done: list[Placement] = []
    for life in lives:
        rivals = sorted((other for other in done if _meet(life, other)), key=lambda other: other.offset_bytes)
        offset = 0
        for other in rivals:
            if offset + life.size_bytes <= other.offset_bytes:
                break
            offset = max(offset, aligned(other.offset_bytes + other.size_bytes))
        done.append(replace(life, offset_bytes=offset))
    return done


def _arena_bytes(places: Sequence[Placement]) -> int:
    return max((aligned(item.offset_bytes + item.size_bytes) for item in places), default=0)


def _steps(life: Placement) -> int:
    return life.last_step - life.first_step + 1


_ORDERS: tuple[Callable[[Placement], tuple[float, int, str]], ...] = (
    lambda life: (-life.size_bytes, life.first_step, life.value),
    lambda life: (-life.size_bytes * _steps(life), life.first_step, life.value),
    lambda life: (-life.size_bytes * _steps(life) ** 0.5, life.first_step, life.value),
    lambda life: (-_steps(life), life.first_step, life.value),
    lambda life: (life.first_step, -life.size_bytes, life.value),
)


def aligned(size_bytes: int, alignment_bytes: int = ALIGNMENT_BYTES) -> int:
    """Rounded up to a multiple of `alignment_bytes`."""
    return -(-size_bytes // alignment_bytes) * alignment_bytes


def held_values(repeat: Repeat, alignment_bytes: int) -> tuple[str, ...]:
    """The inputs and outputs of a body that have memory of their own for a run of it.

    A slice of a stack, or of a scanned input, may lie where no kernel can use it, and is then copied. The
    inputs that are carried lie where the loop's outputs do.
    """
    body = repeat.body
    slices = body.inputs[repeat.carried : repeat.carried + repeat.scanned]
    copied = [name for name in slices if body.values[name].nbytes % alignment_bytes]
    return (
        *copied,
        *(root for root in map(body.root, body.outputs) if root not in rows(repeat, alignment_bytes)),
    )


def rows(repeat: Repeat, alignment_bytes: int) -> dict[str, int]:
    """The stacked values of a body that are written straight into their stack, and which stack that is."""
    names = repeat.results[repeat.carried :]
    aligned_ones = [name for name in names if not repeat.body.values[name].nbytes % alignment_bytes]
    return {repeat.body.root(name): names.index(name) for name in aligned_ones}


def scratch_bytes(control: Control, alignment_bytes: int) -> int:
    """What the graphs of a loop or a choice need beside their inputs and outputs."""
    if isinstance(control, Repeat):
        held = held_values(control, alignment_bytes)
        return plan_memory(control.body, alignment_bytes, held).arena_bytes
    return max(plan_memory(body, alignment_bytes).arena_bytes for body in control.bodies)


def _lives(graph: Graph, alignment_bytes: int) -> list[Placement]:
    """Size and life of every value that a step writes and that is no output of the graph."""
    kept = {graph.root(name) for name in graph.outputs}
    last: dict[str, int] = {}
    for number, step in enumerate(graph.steps):
        for name in step.inputs:
            last[graph.root(name)] = number
    lives, placed = [], set(kept)
    for number, step in enumerate(graph.steps):
        written = (graph.root(step.output),) if isinstance(step, Group) else step.outputs
        lives += [
            Placement(name, 0, graph.values[name].nbytes, number, last.get(name, number))
            for name in written
            if name not in placed
        ]
        placed.update(written)  # several steps write parts of one value: it lives from the first of them
        if isinstance(step, Region) and (size := scratch_bytes(step.control, alignment_bytes)):
            lives.append(Placement(step.scratch, 0, size, number, number))
    return lives


def _meet(one: Placement, other: Placement) -> bool:
    return one.first_step <= other.last_step and other.first_step <= one.last_step


def _lower_bound(lives: Sequence[Placement]) -> int:
    """The most bytes that are alive at one step; no plan can need less."""
    steps = range(max((life.last_step for life in lives), default=-1) + 1)
    return max(
        (
            sum(aligned(life.size_bytes) for life in lives if life.first_step <= step <= life.last_step)
            for step in steps
        ),
        default=0,
    )
