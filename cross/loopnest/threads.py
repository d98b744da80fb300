"""How a nest maps to a GPU, and whether that is sound.

A root statement is one kernel launch. Its BLOCK loops stand outermost; iterations share nothing. Inside,
statements run in order, and THREAD loops (directly nested ones together: a *region*) spread their
iterations over the block's threads, innermost loop fastest: iteration n of a region runs on thread n. Threads
that a region does not need wait. What stands outside regions is done once: loops by all threads together,
stores by thread 0. `launches(nest)` gives these facts; `problem(nest)` checks, of a bound nest:

    loop-kinds       block loops outermost; no thread loops, barriers or shared buffers inside what a thread
                     runs; no parallel loops
    own-registers    registers (and local memory) that outlive a region are accessed in regions of equal
                     extents, each thread at its own place, so that every thread finds what it wrote
    barrier          between a region that writes a shared buffer and one that reads or writes it, and
                     between one that reads and one that writes it, stands a barrier, around the loop, too
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from cross.expression.language.terms import Int
from cross.loopnest.nodes import (
    Allocate,
    Barrier,
    Block,
    Buffer,
    Expr,
    For,
    LoopKind,
    LoopNest,
    Loops,
    Scope,
    Statement,
    Store,
    Var,
    loads,
    statements,
    stores,
)

THREAD_PRIVATE = (Scope.REGISTER, Scope.LOCAL)
GPU_KINDS = (LoopKind.BLOCK, LoopKind.THREAD, LoopKind.VIRTUAL_THREAD)
Extents = tuple[int, ...]


class Problem(msgspec.Struct, frozen=True):
    """A rule, how it is broken, and the loops around the place, outermost first."""

    rule: str
    text: str
    loops: Loops


class LaunchShape(msgspec.Struct, frozen=True):
    """One root statement: its block loops, what a block does, and how many threads that takes."""

    blocks: tuple[For, ...]
    body: Statement
    threads: int

    @property
    def block_count(self) -> int:
        """Number of blocks."""
        return math.prod(extent_of(loop) for loop in self.blocks)


def launches(nest: LoopNest) -> list[LaunchShape]:
    """The launches of a bound nest, in order."""
    return [launch_shape(statement) for statement in nest.body.statements]


def launch_shape(statement: Statement) -> LaunchShape:
    """The launch of one bound root statement."""
    blocks: list[For] = []
    while isinstance(statement, For) and statement.kind is LoopKind.BLOCK:
        blocks.append(statement)
        statement = statement.body
    return LaunchShape(tuple(blocks), statement, max(_region_sizes(statement), default=1))


def region(loop: For) -> tuple[tuple[For, ...], Statement]:
    """The directly nested thread loops that start here, and what each thread does."""
    found = [loop]
    body: Statement = loop.body
    while isinstance(body, For) and body.kind is LoopKind.THREAD:
        found.append(body)
        body = body.body
    return tuple(found), body


def extent_of(loop: For) -> int:
    """The extent of a bound loop."""
    assert isinstance(loop.extent, Int)
    return loop.extent.value


def is_gpu(nest: LoopNest) -> bool:
    """Whether a nest is meant for a GPU: it has loops over blocks or threads, or barriers."""
    return any(
        isinstance(item, Barrier) or (isinstance(item, For) and item.kind in GPU_KINDS)
        for item in statements(nest.body)
    )


def is_done_together(statement: Statement) -> bool:
    """Whether all threads of a block come to a statement: it has loops over threads, or barriers."""
    return any(
        isinstance(item, Barrier) or (isinstance(item, For) and item.kind is LoopKind.THREAD)
        for item in statements(statement)
    )


def _region_sizes(statement: Statement) -> Iterator[int]:
    match statement:
        case For(_, _, LoopKind.THREAD, _):
            yield math.prod(extent_of(loop) for loop in region(statement)[0])
        case For(_, _, _, body) | Allocate(_, body):
            yield from _region_sizes(body)
        case Block(inner):
            for item in inner:
                yield from _region_sizes(item)


def problem(nest: LoopNest) -> Problem | None:
    """The first rule of this file that a bound nest breaks, or None."""
    for statement in nest.body.statements:
        shape = launch_shape(statement)
        found = _kinds(shape.body, shape.blocks, inside=False)
        found = found or _places(shape.body, shape.blocks) or _barriers(shape.body, shape.blocks, _Since())
        if found is not None:
            return found
    return None


# ------------------------------------------------------------------------------------------- loop kinds


def _kinds(statement: Statement, loops: Loops, inside: bool) -> Problem | None:
    """`inside`: a thread runs this alone."""
    match statement:
        case For(var, _, kind, body):
            if kind is LoopKind.PARALLEL:
                return Problem("loop-kinds", f"parallel loop {var} among the loops of a GPU", loops)
            if kind is LoopKind.BLOCK:
                return Problem("loop-kinds", f"block loop {var} inside a loop that is none", loops)
            if kind is LoopKind.THREAD:
                if inside:
                    return Problem("loop-kinds", f"thread loop {var} inside what a thread runs", loops)
                threads, body = region(statement)
                return _kinds(body, (*loops, *threads), inside=True)
            return _kinds(body, (*loops, statement), inside)
        case Allocate(buffer, body):
            if buffer.scope is Scope.SHARED and inside:
                return Problem("loop-kinds", f"shared buffer {buffer.name} allocated by one thread", loops)
            return _kinds(body, loops, inside)
        case Block(inner):
            return next((found for item in inner if (found := _kinds(item, loops, inside))), None)
        case Barrier():
            return Problem("loop-kinds", "a barrier inside what a thread runs", loops) if inside else None
        case Store():
            return None


# ---------------------------------------------------------------------------------------------- registers


def _places(statement: Statement, blocks: Loops) -> Problem | None:
    """Whether what outlives a region is found again by the thread that wrote it."""
    outliving = {item.buffer.name for item in _outside(statement) if item.buffer.scope in THREAD_PRIVATE}
    if not outliving:
        return None
    owners: dict[str, tuple[Extents, tuple[int, ...]]] = {}
    for loops, store in stores(statement, blocks):
        threads = tuple(loop for loop in loops if loop.kind is LoopKind.THREAD)
        for buffer, indices in _accesses(store):
            if buffer.name not in outliving:
                continue
            extents = tuple(extent_of(loop) for loop in threads)
            places = tuple(_place(indices, loop.var) for loop in threads)
            if -1 in places:
                text = f"{buffer.name} is not told apart by the threads that access it"
                return Problem("own-registers", text, loops)
            known = owners.setdefault(buffer.name, (extents, places))
            if known != (extents, places):
                text = (
                    f"{buffer.name} is accessed by regions of threads that differ: "
                    f"expected {_threads_text(*known)}, found {_threads_text(extents, places)}"
                )
                return Problem("own-registers", text, loops)
    return None


def _threads_text(extents: Extents, places: tuple[int, ...]) -> str:
    """8 x 4 threads in dimensions 0, 1."""
    if not extents:
        return "thread 0"
    return f"{' x '.join(map(str, extents))} threads in dimensions {', '.join(map(str, places))}"


def _place(indices: tuple[Expr, ...], var: str) -> int:
    """The dimension whose index is a thread's number alone; -1: there is none."""
    return next((place for place, index in enumerate(indices) if index == Var(var)), -1)


def _outside(statement: Statement) -> Iterator[Allocate]:
    """Allocations outside of regions."""
    match statement:
        case For(_, _, LoopKind.THREAD, _):
            return
        case For(_, _, _, body):
            yield from _outside(body)
        case Allocate(_, body):
            yield statement
            yield from _outside(body)
        case Block(inner):
            for item in inner:
                yield from _outside(item)


def _accesses(store: Store) -> Iterator[tuple[Buffer, tuple[Expr, ...]]]:
    yield store.buffer, store.indices
    for load in (load for part in store.parts for load in loads(part)):
        yield load.buffer, load.indices


# ----------------------------------------------------------------------------------------------- barriers

THREAD_0 = 0  # who runs the stores outside of regions

Accesses = dict[str, set[int]]
"""By buffer, the regions that access it (their ids), or THREAD_0."""


class _Since(msgspec.Struct):
    """Shared and global buffers written and read since the last barrier."""

    written: Accesses = {}
    read: Accesses = {}


def _barriers(statement: Statement, loops: Loops, since: _Since) -> Problem | None:
    """Whether threads that meet in a shared buffer, or in global memory, are kept apart."""
    match statement:
        case Barrier():
            since.written.clear()
            since.read.clear()
            return None
        case Block(inner):
            return next((found for item in inner if (found := _barriers(item, loops, since))), None)
        case Allocate(_, body):
            return _barriers(body, loops, since)
        case For(_, _, kind, body) if kind is not LoopKind.THREAD:
            # Twice: the end of an iteration meets the start of the next.
            around = (*loops, statement)
            return _barriers(body, around, since) or _barriers(body, around, since)
        case _:
            return _meet(statement, loops, since)


def _meet(statement: Statement, loops: Loops, since: _Since) -> Problem | None:
    """A region, or a store of thread 0, after what has been accessed since the last barrier."""
    own = THREAD_0 if isinstance(statement, Store) else id(statement)
    for around, store in stores(statement, loops):
        for position, (buffer, _) in enumerate(_accesses(store)):
            if buffer.scope in THREAD_PRIVATE:
                continue
            others = since.written.get(buffer.name, set()) | (
                since.read.get(buffer.name, set()) if position == 0 else set()
            )
            # A thread that comes again meets itself; a region, in shared memory, may meet its other threads.
            if others - {own} or (others and own != THREAD_0 and buffer.scope is Scope.SHARED):
                text = f"threads may meet in {buffer.name}: no barrier since it was accessed"
                return Problem("barrier", text, around)
    for _, store in stores(statement, loops):
        for position, (buffer, _) in enumerate(_accesses(store)):
            kept = since.read if position else since.written
            kept.setdefault(buffer.name, set()).add(own)
    return None
