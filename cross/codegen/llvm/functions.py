"""Elementwise functions in float32 vectors: exp, what is made of it, and log.

The C library knows scalars only, and calling it lane by lane costs more than all arithmetic around it. So
exp, sigmoid, log, tanh and erf are written out. Largest errors, measured by
tests/unit/cross/test_functions.py: exp 3 ulp, log 1 ulp, the others 4e-7 relative, erf and sigmoid 5e-7 on
cores without fused multiply-adds, sigmoid on Arm's, too. What exp would have below normal numbers is 0, and
what sigmoid would have is 0 or that.

With AVX-512 a power of e is one of 32 powers of 2 in an octave, looked up in two registers, times one near
1, which takes a polynomial of degree 2 in place of 5. Of erf(x) / x the coefficients are looked up, each in
one register.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from numpy.typing import NDArray

from cross.codegen.instructions import (
    Value,
    binary,
    call,
    conversion,
    element_pointer,
    integer,
    literal,
    load_from,
    selection,
)
from cross.codegen.llvm.arithmetic import WHOLE_LANES, Arithmetic
from cross.expression.language.dtypes import SMALLEST_NORMAL

FLOAT = "float32"
ROUNDER = 1.5 * 2.0**23  # adding it leaves the nearest integer in the low bits of a float32
MANTISSA_BITS = 23
LN2 = float(np.float32(math.log(2.0)))  # whose product is rounded once, in a fused multiply-add
LN2_HIGH = 0.693359375  # exact in 12 bits, so that its product with a small integer is exact
LN2_LOW = math.log(2.0) - LN2_HIGH
# of e^r for |r| <= ln(2) / 2: the polynomial of degree 5 with the least relative error, as XNNPACK has it
EXP_TERMS = (
    1.0,
    float.fromhex("0x1.FFFFF6p-1"),
    float.fromhex("0x1.FFFDC6p-2"),
    float.fromhex("0x1.555A80p-3"),
    float.fromhex("0x1.573A1Ap-5"),
    float.fromhex("0x1.0F9F9Cp-7"),
)
EXP_LARGEST = float.fromhex("0x1.62E42Ep+6")  # float32 with the largest e^x below infinity
EXP_SMALLEST = float.fromhex("-0x1.5D589Ep+6")  # with the smallest normal one
# exp looks up 32/33 of e^x, which is finite for every e^x that is, and a normal number down to 2^-125.94;
# between that and 2^-126, where normal numbers end, e^x is taken to be 2^-125.94, which is up to 5 % more.
POWER_SHARE = 32 / 33
LOOKED_UP_LARGEST = 88.73  # above EXP_LARGEST, where 33/32 of the power is infinite and the power is not
LOOKED_UP_SMALLEST = -87.295  # 2^-125.94: the next entry below would be no normal number
LOOKUP = "llvm.x86.avx512.permvar.sf.512"  # of each lane in a register, by the low bits of a number
LOOKUP_IN_TWO = "llvm.x86.avx512.vpermi2var.ps.512"
ROOT_LARGEST = 174.0  # of x, where e^(x/2) and e^(-x/2) are normal, and the squares infinite and 0
SIGMOID_ONE = 32.0  # far above 17.4, from which on sigmoid is 1 as float32
ENTRIES_BITS = 5  # 32 entries of a table: what two registers of 16 lanes hold
# of e^r for |r| <= ln(2) / 64, with the least error but for the 1, 5.4e-8: found by Lawson's iteration
NEAR_ONE_TERMS = (1.0, float.fromhex("0x1.0000F6p+0"), float.fromhex("0x1.FFFFFEp-2"))
SQRT_HALF_BITS = 0x3F3504F3  # of sqrt(1/2) as a float32
LOG_TERMS = (0.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0)  # the next, 2/11 z^5, is below 5e-9: z < 0.0295
# erf(x) and tanh(x) are x P(x^2) / Q(x^2) up to a size of x where they are 1 as float32; P and Q as in
# Eigen (generic_fast_erf_float, generic_fast_tanh_float)
ERF_MOST = 3.8325
ERF_ABOVE = (
    -1.60960333262415e-02,
    -2.95459980854025e-03,
    -7.34990630326855e-04,
    -5.69250639462346e-05,
    -2.10102402082508e-06,
    2.77068142495902e-08,
    -2.72614225801306e-10,
)
ERF_BELOW = (
    -1.42647390514189e-02,
    -7.37332916720468e-03,
    -1.68282697438203e-03,
    -2.13374055278905e-04,
    -1.45660718464996e-05,
)
# Polynomials that are erf(x) / x, each about a multiple of the width, at most 2.8e-7 off. From the last
# multiple on erf is taken to be 1, which is 1.2e-7 off there.
PIECES, PIECE_WIDTH, PIECE_DEGREE = 16, 0.25, 4
TANH_MOST = 7.90531110763549805
TANH_ABOVE = (
    4.89352455891786e-03,
    6.37261928875436e-04,
    1.48572235717979e-05,
    5.12229709037114e-08,
    -8.60467152213735e-11,
    2.00018790482477e-13,
    -2.76076847742355e-16,
)
TANH_BELOW = (4.89352518554385e-03, 2.26843463243900e-03, 1.18534705686654e-04, 1.19825839466702e-06)


class Functions:
    """Writes elementwise functions of float32 scalars or vectors."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.table = {
            "exp": self.exp, "sigmoid": self.sigmoid, "log": self.log, "tanh": self.tanh, "erf": self.erf,
        }  # fmt: skip

    def exp(self, x: Value) -> Value:
        """e^x; inf beyond the range, 0 below normal numbers."""
        if self.arithmetic.is_whole(x):
            return self._looked_up_exp(x)
        found = self._choose(
            self._float("<", x, self._constant(EXP_SMALLEST, x)), self._constant(0.0, x), self._power(x)
        )
        beyond = self._float("*", x, self._constant(math.inf, x))  # not a number where x is none
        return self._choose(self._float("<=", x, self._constant(EXP_LARGEST, x)), found, beyond)

    def _looked_up_exp(self, x: Value) -> Value:
        """e^x by a power that is always finite; see POWER_SHARE."""
        limited = self.arithmetic.extreme("max", x, self._constant(LOOKED_UP_SMALLEST, x))
        limited = self.arithmetic.extreme("min", limited, self._constant(LOOKED_UP_LARGEST, x))
        power, near_one = self._looked_up_power(limited, POWER_SHARE)
        found = self._float("*", power, near_one)
        below = self._float("<", x, self._constant(EXP_SMALLEST, x))
        return self._choose(below, self._constant(0.0, x), found)

    def sigmoid(self, x: Value) -> Value:
        """1 / (1 + e^-x), where the power has a range of its own; 0 below."""
        return self.times_sigmoid(self._constant(1.0, x), x)

    def times_sigmoid(self, factor: Value, x: Value) -> Value:
        """factor * sigmoid(x) of float32: factor / (1 + e^-x), but where quotients are estimated."""
        zero, one = self._constant(0.0, x), self._constant(1.0, x)
        if not self.arithmetic.is_whole(x):
            # e^-x as a square, which becomes infinite or 0 by itself
            limited = self.arithmetic.extreme("min", x, self._constant(ROOT_LARGEST, x))
            limited = self.arithmetic.extreme("max", limited, self._constant(-ROOT_LARGEST, x))
            root = self._power(limited, -0.5)
            if factor != x:  # 0 times a NaN is added, because `_power` of a NaN may be a number
                one = self._fma(limited, zero, one)
            return self._float("/", factor, self._fma(root, root, one))
        below = self._float("<", x, self._constant(EXP_SMALLEST, x))
        limited = self.arithmetic.extreme("min", x, self._constant(SIGMOID_ONE, x))
        power, near_one = self._looked_up_power(self.arithmetic.negative(limited), 1.0)
        total = self._fma(power, near_one, one)  # where x is below: any number, which is not chosen
        if not self.arithmetic.is_estimated(x):
            total = self._choose(below, self._constant(math.inf, x), total)
            # An infinite factor over infinity is NaN, as its product with 0 is.
            return self._float("/", factor, total)
        # Estimated, the quotient of an infinite factor would always be NaN.
        found = self._choose(below, zero, self.arithmetic.quotient(one, total))
        return self._float("*", factor, found)

    def _looked_up_power(self, x: Value, factor: float) -> tuple[Value, Value]:
        """factor 2^n and e^r / factor, whose product is e^x, with n the multiple of 1/32 nearest to x / ln 2.
        For x where factor 2^n is a normal number; of a NaN the second is NaN."""
        value = self.arithmetic.writer.value
        rounder = self._constant(ROUNDER / 2**ENTRIES_BITS, x)
        shifted = self._fma(x, self._constant(1.0 / math.log(2.0), x), rounder)
        n = self._float("-", shifted, rounder)
        r = self._fma(n, self._constant(-LN2, x), x)
        r = self._fma(n, self._constant(LN2 - math.log(2.0), x), r)
        # The low bits of `shifted` are the entry's number. Above them is the integer below n, which goes to
        # the exponent; what the number adds below the exponent is taken off the entry.
        places = value(conversion("bitcast", shifted, "int32"))
        low, high = self._tables(_powers(factor))
        self.arithmetic.writer.declare(f"{x.type} @{LOOKUP_IN_TWO}({x.type}, {places.type}, {x.type})")
        entry = value(call(LOOKUP_IN_TWO, FLOAT, x.lanes, (low, places, high)))
        moved = self._integer("shl", places, MANTISSA_BITS - ENTRIES_BITS)
        bits = value(binary("add", value(conversion("bitcast", entry, "int32")), moved))
        power = value(conversion("bitcast", bits, FLOAT))
        # Not power + power r (...): a product below normal numbers takes long on some cores.
        return power, self._polynomial(r, tuple(term / factor for term in NEAR_ONE_TERMS))

    def _tables(self, entries: NDArray[np.float32]) -> list[Value]:
        """Registers with the entries, loaded where the function begins."""
        writer, found = self.arithmetic.writer, []
        table = self.arithmetic.array([literal(float(entry), FLOAT) for entry in entries.flat])
        for place in range(0, entries.size, WHOLE_LANES):
            address = writer.value(element_pointer(table, FLOAT, integer(place)), depth=0)
            found.append(writer.value(load_from(address, FLOAT, WHOLE_LANES, 64), depth=0))
        return found

    def _power(self, x: Value, factor: float = 1.0) -> Value:
        """e^(factor x) = 2^n e^(factor r) with n the integer nearest to factor x / ln 2, for what is from
        EXP_SMALLEST to EXP_LARGEST; the factor is a power of 2, by which nothing is rounded."""
        value = self.arithmetic.writer.value
        shifted = self._fma(x, self._constant(factor / math.log(2.0), x), self._constant(ROUNDER, x))
        n = self._float("-", shifted, self._constant(ROUNDER, x))
        r = self._fma(n, self._constant(-LN2_HIGH / factor, x), x)
        r = self._fma(n, self._constant(-LN2_LOW / factor, x), r)
        terms = tuple(term * factor**degree for degree, term in enumerate(EXP_TERMS))
        # fewer instructions than by Horner's rule where every one overwrites an addend
        rule = self._in_pairs if self.arithmetic.overwrites_addends else self._polynomial
        power = value(conversion("bitcast", rule(r, terms), "int32"))
        # n, in the low bits of `shifted`, goes to the exponent of e^r: as a factor, 2^128 would be infinite.
        exponent = self._integer("shl", value(conversion("bitcast", shifted, "int32")), MANTISSA_BITS)
        return value(conversion("bitcast", value(binary("add", power, exponent)), FLOAT))

    def log(self, x: Value) -> Value:
        """k ln 2 + log(1 + f) with x = 2^k (1 + f) and 1 + f from sqrt(1/2) to sqrt(2); by atanh
        log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + 2/3 s^2 + 2/5 s^4 + ...) with s = f / (2 + f)."""
        value, one, zero = self.arithmetic.writer.value, self._constant(1.0, x), self._constant(0.0, x)
        small = self._float("<", x, self._constant(SMALLEST_NORMAL, x))
        normal = self._choose(small, self._float("*", x, self._constant(2.0**23, x)), x)
        bits = value(conversion("bitcast", normal, "int32"))
        k = self._integer("ashr", self._integer("sub", bits, SQRT_HALF_BITS), MANTISSA_BITS)
        mantissa = value(binary("sub", bits, self._integer("shl", k, MANTISSA_BITS)))
        f = self._float("-", value(conversion("bitcast", mantissa, FLOAT)), one)
        s = self._float("/", f, self._float("+", f, self._constant(2.0, x)))
        half = self._float("*", self._float("*", f, f), self._constant(0.5, x))
        series = self._polynomial(self._float("*", s, s), LOG_TERMS)
        powers = value(conversion("sitofp", k, FLOAT))
        powers = self._choose(small, self._float("-", powers, self._constant(23.0, x)), powers)
        low = self._fma(
            powers, self._constant(LN2_LOW, x), self._float("*", s, self._float("+", half, series))
        )
        near = self._float("+", self._float("-", low, half), f)
        found = self._fma(powers, self._constant(LN2_HIGH, x), near)
        found = self._choose(self._float("<", x, self._constant(math.inf, x)), found, x)
        never = self._choose(
            self._float("==", x, zero), self._constant(-math.inf, x), self._constant(math.nan, x)
        )
        return self._choose(self._float("<", zero, x), found, never)

    def tanh(self, x: Value) -> Value:
        """A quotient of polynomials."""
        return self._odd_quotient(x, TANH_MOST, TANH_ABOVE, TANH_BELOW)

    def erf(self, x: Value) -> Value:
        """A quotient of polynomials, or one of several polynomials."""
        if self.arithmetic.is_whole(x):
            return self._odd_pieces(x, _erf_pieces())
        return self._odd_quotient(x, ERF_MOST, ERF_ABOVE, ERF_BELOW)

    # ------------------------------------------------------------------------------------- pieces

    def _constant(self, value: float, like: Value) -> Value:
        return self.arithmetic.writer.splat(literal(value, FLOAT), like.lanes)

    def _float(self, op: str, left: Value, right: Value) -> Value:
        return self.arithmetic.apply(op, [left, right])

    def _fma(self, a: Value, b: Value, c: Value) -> Value:
        return self.arithmetic.multiply_add(a, b, c)

    def _polynomial(self, x: Value, terms: tuple[float, ...]) -> Value:
        """terms[0] + terms[1] x + ..., by Horner's rule."""
        result = self._constant(terms[-1], x)
        for term in reversed(terms[:-1]):
            result = self._fma(result, x, self._constant(term, x))
        return result

    def _in_pairs(self, x: Value, terms: tuple[float, ...]) -> Value:
        """`_polynomial` by Estrin's rule: of 6 terms 1.9e-7 off, by Horner's 1.5e-7, but fewer sums wait for
        another."""
        pairs = [
            self._fma(self._constant(high, x), x, self._constant(low, x))
            for low, high in zip(terms[::2], terms[1::2], strict=True)
        ]
        square = self._float("*", x, x)
        result = pairs.pop()
        for pair in reversed(pairs):
            result = self._fma(result, square, pair)
        return result

    def _odd_quotient(
        self, x: Value, most: float, above: tuple[float, ...], below: tuple[float, ...]
    ) -> Value:
        """x above(x^2) / below(x^2), and exactly 1 with the sign of x beyond +-most: GELU multiplies its
        distance from 1 by x."""
        square = self._float("*", x, x)
        product = self._float("*", x, self._polynomial(square, above))
        near = self.arithmetic.quotient(product, self._polynomial(square, below))
        one = self.arithmetic.intrinsic("llvm.copysign", [self._constant(1.0, x), x])
        size = self.arithmetic.intrinsic("llvm.fabs", [x])
        return self._choose(self._float("<", self._constant(most, x), size), one, near)

    def _odd_pieces(self, x: Value, terms: NDArray[np.float32]) -> Value:
        """x times one of PIECES polynomials of the distance of |x| from the multiple of PIECE_WIDTH that is
        nearest, by `terms` [degree + 1, PIECES]; of an x beyond the last multiple, of that multiple."""
        writer, most = self.arithmetic.writer, (PIECES - 1) * PIECE_WIDTH
        limited = self.arithmetic.extreme("min", x, self._constant(most, x))
        limited = self.arithmetic.extreme("max", limited, self._constant(-most, x))
        size = self.arithmetic.intrinsic("llvm.fabs", [limited])
        rounder = self._constant(ROUNDER * PIECE_WIDTH, x)
        shifted = self._float("+", size, rounder)
        r = self._float("-", size, self._float("-", shifted, rounder))
        places = writer.value(conversion("bitcast", shifted, "int32"))
        tables = self._tables(terms)
        writer.declare(f"{x.type} @{LOOKUP}({x.type}, {places.type})")
        found = [writer.value(call(LOOKUP, FLOAT, x.lanes, (table, places))) for table in tables]
        result = found[-1]
        for term in reversed(found[:-1]):
            result = self._fma(result, r, term)
        return self._float("*", limited, result)

    def _choose(self, condition: Value, then: Value, otherwise: Value) -> Value:
        return self.arithmetic.writer.value(selection(condition, then, otherwise))

    def _integer(self, operation: str, left: Value, right: int) -> Value:
        other = self.arithmetic.writer.splat(literal(right, "int32"), left.lanes)
        return self.arithmetic.writer.value(binary(operation, left, other))


@functools.cache
def _powers(factor: float) -> NDArray[np.float32]:
    """factor 2^(i / 32) for i = 0 to 31, less the bits of i below the exponent."""
    numbers = np.arange(2**ENTRIES_BITS, dtype=np.int32)
    bits = (factor * np.exp2(numbers / 2**ENTRIES_BITS)).astype(np.float32).view(np.int32)
    entries: NDArray[np.float32] = (bits - (numbers << (MANTISSA_BITS - ENTRIES_BITS))).view(np.float32)
    return entries


@functools.cache
def _erf_pieces() -> NDArray[np.float32]:
    """Coefficients [PIECE_DEGREE + 1, PIECES] of polynomials through erf(x) / x at Chebyshev's points of a
    piece; of the last one so that erf is 1 at its multiple."""
    count = PIECE_DEGREE + 1
    points = PIECE_WIDTH / 2 * np.cos(np.pi * (np.arange(count) + 0.5) / count)
    middles = PIECE_WIDTH * np.arange(PIECES)
    values = np.array([[_erf_over(middle + point) for middle in middles] for point in points])
    terms = np.linalg.solve(np.vander(points, increasing=True), values)
    terms[1::2, 0] = 0.0  # of an even function
    terms[0, -1] = 1.0 / middles[-1]
    return terms.astype(np.float32)


def _erf_over(x: float) -> float:
    """erf(x) / x."""
    return math.erf(x) / x if x else 2.0 / math.sqrt(math.pi)
