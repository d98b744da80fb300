"""Choices of tile sizes: which splits of an axis are worth a place in a space."""

from __future__ import annotations

import functools

LARGEST_TILE = 4096  # product of the three sizes of an axis; it bounds the spaces of long axes
MOST_FACTORS = 28  # largest size of an outer level; it bounds the size of spaces
WASTE = 1.2  # elements computed over elements needed, at most; an estimate of what a better tile makes up for
SMOOTH_PRIMES = (2, 3, 5, 7)


@functools.cache
def divisors(extent: int) -> tuple[int, ...]:
    """All divisors, ascending. Raises ValueError below 1."""
    if extent < 1:
        raise ValueError(f"divisors: expected a number of at least 1, found {extent}")
    small = [value for value in range(1, int(extent**0.5) + 1) if extent % value == 0]
    return tuple(sorted({*small, *(extent // value for value in small)}))


def waste(extent: int, tile: int) -> float:
    """Elements computed over elements needed, when the last tile overlaps the one before."""
    return -(-extent // tile) * tile / extent


def factors(extent: int, largest: int) -> list[int]:
    """Tile sizes to consider: divisors, and numbers with small prime factors."""
    smooth = [value for value in range(1, min(extent, largest) + 1) if _is_smooth(value)]
    return sorted({*smooth, *(value for value in divisors(extent) if value <= largest)})


def _is_smooth(value: int) -> bool:
    for prime in SMOOTH_PRIMES:
        while value % prime == 0:
            value //= prime
    return value == 1


def space_tiles(extent: int, inner: list[int]) -> tuple[tuple[int, ...], ...]:
    """Choices (t1, t2, t3) for a space axis, outermost first.

    Args:
        extent: of the axis.
        inner: the sizes allowed for t3.

    Returns:
        All triples whose product fits in the extent and covers it with little overlap.
    """
    outer = factors(extent, MOST_FACTORS)
    result = []
    for third in inner:
        for second in outer:
            for first in outer:
                tile = first * second * third
                if tile <= min(extent, LARGEST_TILE) and waste(extent, tile) <= WASTE:
                    result.append((first, second, third))
    return tuple(result) or ((1, 1, 1),)


def vector_tiles(extent: int, lanes: int, most_vectors: int = 4, masked: bool = False) -> list[int]:
    """Sizes of a vectorized loop: whole vectors, the whole axis, or a power of two below one vector.

    With masks, whole axes of up to twice as many vectors.
    """
    sizes = {lanes * count for count in range(1, most_vectors + 1) if lanes * count <= extent}
    sizes |= {1 << power for power in range(lanes.bit_length()) if 1 << power <= min(extent, lanes)}
    if extent <= lanes * most_vectors * (2 if masked and extent % lanes else 1):
        sizes.add(extent)
    return sorted(sizes)


def vector_count(extent: int, lanes: int, masked: bool = False) -> int:
    """Vector registers that a vectorized loop takes: whole vectors, then powers of two for the rest.

    With masks one more vector holds the rest.
    """
    rest = (extent % lanes).bit_count()
    return extent // lanes + (min(rest, 1) if masked else rest)
