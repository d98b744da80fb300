"""Bytes that a program moves between memory and a cache, counted from its loops.

The cache is ideal: it keeps what was used last, in any place, byte by byte. What a loop touches is fetched
once if one iteration fits, for then the next one finds what both use; otherwise every iteration fetches its
own. What is touched is a box of indices for each buffer, so strided accesses count what lies between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Int
from cross.loopnest.bounds import Interval, bounds
from cross.loopnest.nodes import (
    Allocate,
    Block,
    Buffer,
    Expr,
    For,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    loads,
    statements,
    stores,
)

MEMORY: Final = (Scope.ARGUMENT, Scope.WORKSPACE)
_Boxes = dict[Buffer, list[Interval]]


def kernel_traffic(nest: LoopNest, cache_bytes: int, threads: int = 1) -> int:
    """Bytes that a run of a bound nest moves, with so many bytes of cache for each thread, empty at first.

    A parallel loop is cut into a chunk for each thread; what two threads fetch counts twice.
    """
    return _Counter(cache_bytes, threads).moved(nest.body, {})


def extent_of(loop: For) -> int:
    """How many iterations a bound loop has.

    Raises:
        ValueError: a knob or a variable decides it.
    """
    if not isinstance(loop.extent, Int):
        raise ValueError(f"loop {loop.var}: expected a number of iterations, found {loop.extent}")
    return loop.extent.value


def chunks(extent: int, threads: int) -> list[int]:
    """The iterations of each thread of a parallel loop (cross/native/pool.c)."""
    return [extent // threads + (thread < extent % threads) for thread in range(threads)]


@dataclass(frozen=True, slots=True)
class _Counter:
    cache_bytes: int
    threads: int

    def moved(self, statement: Statement, around: Mapping[str, Interval]) -> int:
        """Bytes that one run of a statement moves; the variables around it have some values in intervals."""
        shared = self.threads > 1 and any(
            isinstance(item, For) and item.kind is LoopKind.PARALLEL for item in statements(statement)
        )
        match statement:
            case For(_, _, LoopKind.PARALLEL) if shared:
                alone, lengths = _Counter(self.cache_bytes, 1), chunks(extent_of(statement), self.threads)
                kinds = {*lengths} - {0}
                return sum(lengths.count(item) * alone._loop(statement, item, around) for item in kinds)
            case For():
                return self._loop(statement, extent_of(statement), around)
            case Block(inner) if shared or not self._fits(statement, around):
                return sum(self.moved(item, around) for item in inner)
            case Allocate(_, body):
                return self.moved(body, around)
        return _bytes(_touched(statement, around), MEMORY)

    def _loop(self, loop: For, extent: int, around: Mapping[str, Interval]) -> int:
        first, all_of_them = {**around, loop.var: (0, 0)}, {**around, loop.var: (0, extent - 1)}
        if self._fits(loop.body, first):
            return _bytes(_touched(loop.body, all_of_them), MEMORY)
        return extent * self.moved(loop.body, first)

    def _fits(self, statement: Statement, around: Mapping[str, Interval]) -> bool:
        """Whether the cache holds what one run touches, buffers of its own among it."""
        return _bytes(_touched(statement, around), (*MEMORY, Scope.LOCAL)) <= self.cache_bytes


def _touched(statement: Statement, around: Mapping[str, Interval]) -> _Boxes:
    """The indices of each buffer between which one run of a statement reads and writes."""
    boxes: _Boxes = {}
    for inner, store in stores(statement):
        ranges = {**around, **{loop.var: (0, extent_of(loop) - 1) for loop in inner}}
        accesses = [(store.buffer, store.indices)]
        accesses += [(load.buffer, load.indices) for part in store.parts for load in loads(part)]
        for buffer, indices in accesses:
            box = [
                _clipped(index, extent, ranges) for index, extent in zip(indices, buffer.shape, strict=True)
            ]
            known = boxes.get(buffer, box)
            boxes[buffer] = [(min(a, c), max(b, d)) for (a, b), (c, d) in zip(known, box, strict=True)]
    return boxes


def _clipped(index: Expr, extent: Expr, ranges: Mapping[str, Interval]) -> Interval:
    """Between what an index lies, and inside its buffer: beyond it nothing is read, see guards."""
    assert isinstance(extent, Int)
    low, high = bounds(index, ranges)
    last = extent.value - 1
    return min(max(low, 0), last), max(min(high, last), 0)


def _bytes(boxes: _Boxes, scopes: tuple[Scope, ...]) -> int:
    return sum(
        ITEM_BYTES[buffer.dtype] * math.prod(int(high - low) + 1 for low, high in box)
        for buffer, box in boxes.items()
        if buffer.scope in scopes
    )
