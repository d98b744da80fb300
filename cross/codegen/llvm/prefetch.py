"""Fetching ahead: while loops run over one panel of a large constant, the next comes into the second cache.

    for panel: for pass: for k:  C[pass, panel] += A[pass, k] * W[panel, k]

Left alone, the first pass over each panel waits for memory, and memory is idle in the others. So every pass
fetches its part of the next panel: at once if these are few lines, otherwise a piece in every step of a loop
in it, the outermost one whose pieces are few lines. Innermost loops, of few instructions, stay free of it.
Lines that are fetched at once are spread evenly over the panel, so that they lie in several pages where it is
large: memory answers for several pages at a time.
Packed constants lie in memory in the order of the loops. Fetching a place behind the end of a buffer does
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from boards.target import Target
from cross.codegen.buffers import bound_extent, size_bytes
from cross.codegen.instructions import Value, binary, integer
from cross.codegen.llvm.values import Values
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Int
from cross.loopnest.nodes import Buffer, Expr, For, LoopKind, Scope, Statement, Var, loads, stores
from cross.schedule.cycles import MOST_PASSES, PANEL_SHARE

MOST_LINES = 16  # fetched at once: as many misses as a core's first cache can have open
FEW_LINES = 4  # a quarter of MOST_LINES: the loads of a tile that begins find the other places free

Moves = tuple[tuple[str, int], ...]
"""Loop variables, and bytes for each of their steps."""


class Ahead(msgspec.Struct, frozen=True):
    """What the body of the loop over `var` fetches of a buffer: `lines` cache lines, one of each part of the
    next panel, which is `distance` bytes on.

    The panel moves them by `around`, the place within a part by `within` divided by `steps`.
    """

    var: str
    distance: int
    around: Moves
    within: Moves
    steps: int
    lines: int

    @property
    def part(self) -> int:
        """Bytes of a part."""
        return -(-self.distance // self.lines)


def fetch_ahead(
    body: Statement, loops: Sequence[tuple[str, int]], together: int, values: Values, target: Target
) -> None:
    """Write what is fetched where the body of a loop begins.

    Args:
        body: of the innermost loop that runs.
        loops: variable and extent of all that run, outermost first.
        together: how many of the first run as one, so that nothing can be written between them.
        values: with the variables of these loops.
        target: whose caches they are.
    """
    writer = values.writer
    # Loops that run as one have one body, whichever of them was chosen.
    here = [var for var, _ in (loops if len(loops) == together else loops[-1:])]
    for buffer, (inner, indices) in _large_constants(body, target).items():
        terms, _ = values.offset(buffer, indices)
        item_bytes = ITEM_BYTES[buffer.dtype]
        steps = {
            term.name: item_bytes * step.value
            for term, step in terms.items()
            if isinstance(term, Var) and isinstance(step, Int)
        }
        if len(steps) < len(terms):
            continue
        extents = [*loops, *((loop.var, bound_extent(loop.extent, loop.var)) for loop in inner)]
        moving = [(var, extent, steps.get(var, 0)) for var, extent in extents]
        ahead = planned(moving, together, target)
        if ahead is None or ahead.var not in here:
            continue
        place = _moved(values, ahead.around)
        within = writer.value(binary("udiv", _moved(values, ahead.within), integer(ahead.steps)))
        place = writer.value(binary("add", place, within))
        writer.declare("void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        for line in range(ahead.lines):
            distance = integer(ahead.distance + line * ahead.part)
            at, pointer = writer.value(binary("add", place, distance)), writer.name("ahead")
            # Not "inbounds": the last panel has no next one.
            writer.emit(
                f"  {pointer} = getelementptr i8, ptr {values.pointers[buffer.name].text}, i64 {at.text}"
            )
            writer.emit(f"  call void @llvm.prefetch.p0(ptr {pointer}, i32 0, i32 2, i32 1)")


def planned(loops: Sequence[tuple[str, int, int]], together: int, target: Target) -> Ahead | None:
    """What to fetch, and in which of some loops, (variable, extent, bytes that a step moves the reading).

    The first `together` of them run as one. None where nothing is read a second time before the reading
    moves on, or too much.
    """
    # The first loop that has a body to write in: the last of those that run as one.
    outermost = sum(extent > 1 for _, extent, _ in loops[:together]) - 1
    loops = [loop for loop in loops if loop[1] > 1]
    repeats = [place for place, (_, _, step) in enumerate(loops) if step == 0]
    if not repeats or repeats[-1] == len(loops) - 1:
        return None
    last = first = repeats[-1]
    while first - 1 in repeats:
        first -= 1
    if first == 0:
        return None
    panel = loops[first - 1][2]
    passes, numbers = 1, []
    for var, extent, _ in reversed(loops[first : last + 1]):
        numbers.append((var, passes))
        passes *= extent
    share = -(-panel // passes)
    # The outermost loop whose steps fetch few lines each, or else the innermost one.
    for place in range(max(last, outermost), len(loops)):
        moved = loops[place][2]
        # Places are rounded down: from one step to the next may be a byte more than the part of a step.
        part = share if place == last else -(-moved // passes) + (moved % passes > 0)
        lines = -(-part // target.cache_line_bytes)
        if lines <= FEW_LINES:
            break
    if not 0 < panel <= PANEL_SHARE * target.l2_bytes or not 0 < lines <= MOST_LINES or passes > MOST_PASSES:
        return None
    around = tuple((var, step) for var, _, step in loops[:first] if step)
    # A pass begins where the one before it ended; times `passes`, because the sum is divided by them.
    within = [(var, number * share * passes) for var, number in numbers]
    within += [(var, step) for var, _, step in loops[last + 1 : place + 1]]
    return Ahead(loops[place][0], panel, around, tuple(within), passes * lines, lines)


def _large_constants(body: Statement, target: Target) -> dict[Buffer, tuple[list[For], tuple[Expr, ...]]]:
    """Where the body reads each packed constant that is larger than the first cache: the loops that run
    around the place, and the indices.

    Those that fit the second are in it when one kernel runs again and again, and seldom in a network.
    """
    found: dict[Buffer, tuple[list[For], tuple[Expr, ...]]] = {}
    for loops, store in stores(body):
        running = [loop for loop in loops if loop.kind not in (LoopKind.UNROLLED, LoopKind.VECTORIZED)]
        for load in loads(store.value):
            if load.buffer.scope is Scope.ARGUMENT and load.buffer.packing is not None:
                found.setdefault(load.buffer, (running, load.indices))
    return {buffer: place for buffer, place in found.items() if size_bytes(buffer) > target.l1d_bytes}


def _moved(values: Values, moves: Moves) -> Value:
    """Bytes, where the loops are now."""
    writer, running, total = values.writer, values.environment.running, integer(0)
    for var, step in sorted(moves, key=lambda move: running[move[0]][1]):  # the outermost first
        at, depth = running[var]
        bytes_there = writer.value(binary("mul", at, integer(step)), depth=depth)
        total = writer.value(binary("add", total, bytes_there), depth=depth)
    return total
