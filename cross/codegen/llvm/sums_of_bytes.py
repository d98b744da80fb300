"""Two bytes that are added with scales and rounded to a third, as the end of every quantized shortcut is.

    round((float(a) * s + float(b) * t) / d)  =  round(fma(a, A, fma(b, B, C)))

There are 65,536 pairs of bytes, and `factors` looks at each that lies near a half: only there can the two
differ. Where they do, neighbours of A, B and C are tried.
"""

from __future__ import annotations

import functools
import itertools

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.codegen.llvm.packed_bytes import WITHIN
from cross.codegen.llvm.rounded_bytes import LEAST, MOST, RoundedByte, fused
from cross.expression.language.terms import Binary, Cast, Const
from cross.loopnest.nodes import Expr

TRIED = 8  # floats on either side of the sum of what is constant, and one of each factor
ERRORS = 32.0
"""Units in the last place of the largest products. Either side is a few of them away from the exact number:
only pairs nearer to a half are looked at for every candidate. The one taken is checked for all pairs."""


class Scaled(msgspec.Struct, frozen=True):
    """(float(byte) + added) * scale."""

    byte: Expr
    added: int
    scale: float

    def integers(self, rounded: RoundedByte | None) -> tuple[int, int, float]:
        """The least of the 256 integers that are scaled, what is added to them, and the scale.

        They are the byte's, or of one that was rounded from a float just before, without its zero point.
        """
        if rounded is None:
            return int(np.iinfo(self.byte.dtype).min), self.added, self.scale
        return rounded.ends[0], self.added + rounded.zero, self.scale


class Sum(msgspec.Struct, frozen=True):
    """(left + right) / divisor."""

    left: Scaled
    right: Scaled
    divisor: float


def sum_of_bytes(number: Expr) -> Sum | None:
    """The sum of two scaled bytes that a number is; None for anything else."""
    match number:
        case Binary("/", Cast("float32", Binary("+", left, right)), Const(divisor, "float32")):
            pass
        case Binary("/", Binary("+", left, right), Const(divisor, "float32")):
            pass
        case _:
            return None
    first, second = _scaled(left), _scaled(right)
    return None if first is None or second is None else Sum(first, second, float(divisor))


def _scaled(expr: Expr) -> Scaled | None:
    match expr:
        case Binary("*", Cast("float32", Binary("+", Cast("int32", byte), Const(added, "int32"))), scale):
            pass
        case Binary("*", Cast("float32", Cast("int32", byte)), scale):
            added = 0
        case _:
            return None
    if byte.dtype not in ("int8", "uint8") or not isinstance(scale, Const) or scale.dtype != "float32":
        return None
    return Scaled(byte, int(added), float(scale.value)) if abs(added) <= 255 else None


@functools.lru_cache(maxsize=1024)
def factors(
    left: tuple[int, int, float], right: tuple[int, int, float], divisor: float, low: int, high: int
) -> tuple[float, float, float] | None:
    """(A, B, C) for all pairs of bytes, within low to high; None where none of those tried is right
    or scales are far from 1. No sum of those found is further from 0 than `WITHIN`.

    left, right: the least of the 256 integers that an operand may be, what is added to it, its scale.
    """
    scales = (left[2], right[2], divisor, left[2] / divisor, right[2] / divisor) if divisor else (0.0,)
    if not all(LEAST <= number <= MOST for number in scales):
        return None
    a, b = (np.arange(least, least + 256).astype(np.float32) for least, _, _ in (left, right))
    first, second = (
        (values + np.float32(added)) * np.float32(scale)
        for values, (_, added, scale) in ((a, left), (b, right))
    )
    quotient = (first[:, None] + second[None, :]) / np.float32(divisor)
    want = np.clip(np.rint(quotient), low, high)
    ratios = [np.float32(scale / divisor) for _, _, scale in (left, right)]
    constant = np.float32(sum(added * scale / divisor for _, added, scale in (left, right)))
    largest = 256.0 * float(ratios[0] + ratios[1]) + abs(float(constant))
    if largest > WITHIN:
        return None
    near = np.abs(quotient - np.floor(quotient) - 0.5) < ERRORS * np.spacing(np.float32(largest))
    rows, columns = np.nonzero(near & (quotient > low - 1) & (quotient < high + 1))
    unit = np.spacing(np.float32(max(abs(float(constant)), 2.0**-8)))
    for step, up, down in itertools.product(_outwards(TRIED), _outwards(1), _outwards(1)):
        found = (
            ratios[0] + up * np.spacing(ratios[0]),
            ratios[1] + down * np.spacing(ratios[1]),
            constant + np.float32(step * unit),
        )
        if np.array_equal(_rounded(a[rows], b[columns], found, low, high), want[rows, columns]):
            everything = _rounded(np.repeat(a, b.size), np.tile(b, a.size), found, low, high)
            if np.array_equal(everything, want.ravel()):
                return float(found[0]), float(found[1]), float(found[2])
    return None


def _rounded(
    a: NDArray[np.float32],
    b: NDArray[np.float32],
    found: tuple[np.float32, np.float32, np.float32],
    low: int,
    high: int,
) -> NDArray[np.float32]:
    inner = fused(b, found[1], np.full(b.shape, found[2], np.float32))
    return np.clip(np.rint(fused(a, found[0], inner)), low, high)


def _outwards(most: int) -> list[int]:
    """0, 1, -1, 2, -2, ... most, -most."""
    return sorted(range(-most, most + 1), key=lambda step: (abs(step), -step))
