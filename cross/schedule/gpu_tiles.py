"""Choices of tile sizes for GPUs: virtual threads, threads, and what one thread computes."""

from __future__ import annotations

from cross.schedule.knobs import Knob, single
from cross.schedule.tiles import WASTE, divisors, waste

VIRTUAL_THREADS = (1, 2, 4, 8)
THREADS_ALONG_AN_AXIS = 256  # at most: with more, spaces grow and few blocks share a processor
LARGEST_OUTER = 8  # elements of one thread along an axis, level by level
LARGEST_INNER = 8
UNROLL_LIMITS = (0, 16, 64, 512, 1024)
USUAL_UNROLL = 64


def unroll_knob(preferred: int = USUAL_UNROLL) -> Knob:
    """How many statements of a thread are written out."""
    return single("unroll", UNROLL_LIMITS, preferred)


def thread_tiles(extent: int, vectors: tuple[int, ...] = ()) -> tuple[tuple[int, int, int, int], ...]:
    """Choices (virtual threads, threads, outer, inner elements of a thread) for a space axis.

    Args:
        extent: of the axis.
        vectors: the inner sizes allowed, for the axis that runs in vectors.

    Returns:
        All that fit in the extent and cover it with little overlap.
    """
    threads = tile_sizes(extent, min(extent, THREADS_ALONG_AN_AXIS))
    outer = tile_sizes(extent, LARGEST_OUTER)
    inner = [size for size in (vectors or outer) if size <= LARGEST_INNER or size in vectors]
    found = [
        (virtual, thread, first, second)
        for second in inner
        for first in outer
        for thread in threads
        for virtual in VIRTUAL_THREADS
        if first * second <= 2 * LARGEST_OUTER and _covers(extent, virtual * thread * first * second)
    ]
    return tuple(found) or ((1, 1, 1, 1),)


def reduction_tiles(extent: int) -> tuple[tuple[int, int], ...]:
    """Choices (middle, inner) of a reduction axis: what is fetched at once, and its innermost part."""
    return tuple(
        (whole // inner, inner)
        for whole in divisors(extent)
        for inner in divisors(whole)
        if whole <= THREADS_ALONG_AN_AXIS and inner <= LARGEST_INNER
    )


def powers_of_two(most: int) -> list[int]:
    """1, 2, 4, ... up to `most`."""
    return [1 << power for power in range(most.bit_length()) if 1 << power <= most]


def vector_sizes(extent: int, lanes: int) -> tuple[int, ...]:
    """Sizes of vectors that divide an axis: powers of two up to `lanes`."""
    return tuple(size for size in powers_of_two(lanes) if extent % size == 0)


def tile_sizes(extent: int, most: int) -> list[int]:
    """Powers of two and divisors of an extent, up to `most`."""
    return sorted({*powers_of_two(most), *(size for size in divisors(extent) if size <= most)})


def _covers(extent: int, tile: int) -> bool:
    return tile <= extent and waste(extent, tile) <= WASTE
