"""Floats that are rounded to integers and kept as bytes, as the end of every quantized operator is.

    byte(round(x) + zero)        =  (clamp(x, low, high) + (1.5 * 2^23 + zero))'s lowest byte
    float(byte(round(x) + zero)) =  round(clamp(x, low, high)) + zero

low and high are the ends of the byte's range less `zero`: integers, so that rounding a number between them
stays between them. Behind the sum a float32 has no digits left for halves; its lowest bits are an integer.

A quotient x / d that is rounded so is often x * s + x * r with the reciprocal r + s of d, the second product
fused with the addition: `reciprocal` looks at every x where the integer changes. A division of 16 floats
takes 16 cycles where each of these takes one. The method: Brisebarre, Muller and Raina, Accelerating
correctly rounded floating-point division when the divisor is known in advance, IEEE Transactions on
Computers 53, 2004.
"""

from __future__ import annotations

import functools

import msgspec
import numpy as np
from numpy.typing import NDArray

from cross.codegen.llvm.functions import ROUNDER
from cross.expression.language.terms import Binary, Call, Cast, Const
from cross.loopnest.nodes import Expr

NEARBY = 4  # floats on either side of a half times the divisor: the quotient has an error of one or two
LEAST, MOST = 2.0**-60, 2.0**60  # of divisors: products with their reciprocals neither over- nor underflow


class RoundedByte(msgspec.Struct, frozen=True):
    """A byte of round(number) + zero."""

    number: Expr
    zero: int
    dtype: str

    @property
    def ends(self) -> tuple[int, int]:
        """The range of round(number) outside of which the byte is an end of its own range."""
        limits = np.iinfo(self.dtype)
        return int(limits.min) - self.zero, int(limits.max) - self.zero


def rounded_byte(expr: Expr) -> RoundedByte | None:
    """What a conversion of float32 to a byte rounds; None where the expression is anything else."""
    match expr:
        case Cast("int8" | "uint8" as dtype, Call("round", (number,))):
            zero = 0.0
        case Cast("int8" | "uint8" as dtype, Binary("+", Call("round", (number,)), Const(zero, "float32"))):
            pass
        case _:
            return None
    if number.dtype != "float32" or not float(zero).is_integer() or abs(zero) > 255:
        return None
    return RoundedByte(number, int(zero), dtype)


def dequantized(expr: Expr) -> tuple[RoundedByte, int] | None:
    """A byte that becomes a float32 again, and the integer that is added to it before; None for all else."""
    match expr:
        case Cast("float32", Cast("int32", byte)):
            added = 0
        case Cast("float32", Binary("+", Cast("int32", byte), Const(int(added), "int32"))):
            pass
        case Cast("float32", byte):
            added = 0
        case _:
            return None
    found = rounded_byte(byte)
    return None if found is None or abs(added) > 255 else (found, added)


def rounder(zero: int) -> tuple[float, int]:
    """What leaves round(x) + zero in the lowest bits of x plus it, and what is still to be added to those.

    Halves go to the even integer of the sum: an odd zero point would turn them the other way.
    """
    return (ROUNDER + zero, 0) if zero % 2 == 0 else (ROUNDER, zero)


@functools.lru_cache(maxsize=1024)
def reciprocal(divisor: float, low: int, high: int) -> tuple[float, float] | None:
    """(r, s) with round(fma(x, r, x * s)) = round(x / divisor) for all float32 x of low * divisor to high *
    divisor; None where there is none.

    Both sides grow with x, so they are equal if they are where round(x / divisor) changes.
    """
    if not LEAST <= divisor <= MOST:
        return None
    exact = np.float32(divisor)
    first = np.float32(1.0 / float(exact))
    second = np.float32((1.0 - float(first) * float(exact)) / float(exact))
    halves = np.arange(low, high, dtype=np.float64) + 0.5
    bits = np.append((halves * float(exact)), [low * float(exact), high * float(exact)]).astype(np.float32)
    places = bits.view(np.int32)[:, None] + np.arange(-NEARBY, NEARBY + 1, dtype=np.int32)
    x = places.view(np.float32)
    x = x[np.isfinite(x)]
    same = np.array_equal(np.rint(fused(x, first, x * second)), np.rint(x / exact))
    return (float(first), float(second)) if same else None


def fused(a: NDArray[np.float32], b: np.float32, c: NDArray[np.float32]) -> NDArray[np.float32]:
    """a * b + c rounded once: the float64 sum of the exact product is made odd where it is not exact."""
    product, added = a.astype(np.float64) * float(b), c.astype(np.float64)
    total = product + added
    back = total - product
    error = (product - (total - back)) + (added - back)
    even = (total.view(np.int64) & 1) == 0
    odd = np.where((error != 0) & even, np.nextafter(total, np.copysign(np.inf, error)), total)
    return odd.astype(np.float32)
