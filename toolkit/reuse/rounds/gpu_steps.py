"""The decisions of Algorithm 1 of ETO for a GPU, one function each; what they choose from is numbers alone.

A search has, for each size of a block: the block's shape (block_shape.py), numbers of threads
(search_cost.py) with their shapes (gpu_threads.py), how often a block fetches, how far a thread's loops are
unrolled (gpu_unroll.py), and how long the vectors are that it fetches with.
"""

from __future__ import annotations

import math

import msgspec

from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.rounds.block_shape import loaded_elements
from toolkit.reuse.rounds.sizes import divisors_between

VECTORS = (2, 4)
CLOSE = 1e-9  # how far the range of the default fetches is widened: it has no effect but on rounding


class GpuFeatures(msgspec.Struct, frozen=True):
    """The sizes of a tuned GPU program that reuse keeps to on the same hardware.

    `block` points of a block, `threads` of one, `fetches` along the split loop, `loaded` elements that a
    block loads in one of them, `registers` of the unrolled body, and the `unroll` option itself.
    """

    block: int
    threads: int
    fetches: int
    loaded: int
    registers: int
    unroll: int


class Ratios(msgspec.Struct, frozen=True):
    """How the operator to tune compares to the reused one, for one size of a block: `increase` of all
    points, `blocks` of the number of blocks (q), `loads` of a fetch when there are as many (ld)."""

    increase: float
    blocks: float
    loads: float


def ratios(target: MajorLoops, source: MajorLoops, reused: GpuFeatures, block: tuple[int, ...]) -> Ratios:
    """The ratios for a block of this shape."""
    staged = -(-target.split_extent // reused.fetches)
    size = math.prod(block)
    return Ratios(
        increase=target.size / source.size,
        blocks=(target.points / source.points) / (size / reused.block),
        loads=loaded_elements(target, block, staged) / reused.loaded,
    )


def default_fetches(target: MajorLoops, reused: GpuFeatures, found: Ratios) -> int | None:
    """How often a block fetches, so that it keeps as much in shared memory as the reused one; None: the loop
    has no such divisor."""
    wanted = reused.fetches * found.loads
    sizes = divisors_between(reused.fetches, wanted, target.split_extent, wider=CLOSE)
    if not sizes:
        return None
    return min(sizes) if found.loads < 1 else max(sizes)


def other_fetches(target: MajorLoops, reused: GpuFeatures, found: Ratios, default: int) -> tuple[int, ...]:
    """The other numbers of fetches that the reused program's shared memory calls for."""
    end = reused.fetches * found.loads * found.blocks
    sizes = divisors_between(end / found.increase, end, target.split_extent)
    return tuple(size for size in sizes if size != default)


def wanted_registers(reused: GpuFeatures, found: Ratios, fetches: int) -> float:
    """Registers that unrolling should take: with fewer fetches there is more to unroll in each."""
    return reused.registers * (reused.fetches / fetches) * found.loads


def vector_lengths(elements: int, threads: int) -> tuple[int, ...]:
    """Lengths of vectors that divide what a thread loads of an input in one fetch."""
    return tuple(length for length in VECTORS if elements % (threads * length) == 0)
