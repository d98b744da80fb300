"""Elementwise functions in float32 vectors: exp, what is made of it, and log.

The C library knows scalars only, and calling it lane by lane costs more than all arithmetic around it. So
exp, log, tanh and erf are written out; sigmoid is made of exp. Largest errors, measured by
tests/unit/cross/test_functions.py: exp 3 ulp, log 1 ulp, the others 4e-7 relative.
"""

from __future__ import annotations

import math

from cross.codegen.instructions import Instruction, Value, binary, conversion, literal, selection
from cross.codegen.llvm.arithmetic import Arithmetic

FLOAT = "float32"
ROUNDER = 1.5 * 2.0**23  # adding it leaves the nearest integer in the low bits of a float32
ROUNDER_BITS = 0x4B400000  # of ROUNDER as a float32
LN2_HIGH = 0.693359375  # exact in 12 bits, so that its product with a small integer is exact
LN2_LOW = math.log(2.0) - LN2_HIGH
EXP_IS_ZERO = -103.99  # e^x is nearer to 0 than to 2^-149, the smallest float32
EXP_TERMS = tuple(1.0 / math.factorial(power) for power in range(8))
SQRT_HALF_BITS = 0x3F3504F3  # of sqrt(1/2) as a float32
SMALLEST_NORMAL = 2.0**-126
LOG_TERMS = (0.0, 2.0 / 3.0, 2.0 / 5.0, 2.0 / 7.0, 2.0 / 9.0)  # the next, 2/11 z^5, is below 5e-9: z < 0.0295
ERF_SMALL = 1.0  # below, the series; above, Abramowitz and Stegun 7.1.26
ERF_SERIES = tuple(
    2.0 / math.sqrt(math.pi) * (-1.0) ** n / (math.factorial(n) * (2 * n + 1)) for n in range(11)
)
ERF_P = 0.3275911  # p of 7.1.26, and a1 to a5
ERF_TAIL = (0.254829592, -0.284496736, 1.421413741, -1.453152027, 1.061405429)
TANH_SMALL = 0.55  # below, the Taylor series of tanh(x) / x in x^2, whose coefficients follow
TANH_SERIES = (
    1.0,
    -1.0 / 3.0,
    2.0 / 15.0,
    -17.0 / 315.0,
    62.0 / 2835.0,
    -1382.0 / 155925.0,
    21844.0 / 6081075.0,
    -929569.0 / 638512875.0,
)


class Functions:
    """Writes elementwise functions of float32 scalars or vectors."""

    def __init__(self, arithmetic: Arithmetic) -> None:
        self.arithmetic = arithmetic
        self.table = {"exp": self.exp, "log": self.log, "tanh": self.tanh, "erf": self.erf}

    def exp(self, x: Value) -> Value:
        """2^n * e^r with n the integer nearest to x / ln 2; inf and 0 beyond the range."""
        x = self.arithmetic.extreme("max", x, self._constant(-104.0, x))
        x = self.arithmetic.extreme("min", x, self._constant(89.0, x))
        shifted = self._fma(x, self._constant(1.0 / math.log(2.0), x), self._constant(ROUNDER, x))
        n = self._float("-", shifted, self._constant(ROUNDER, x))
        r = self._fma(n, self._constant(-LN2_HIGH, x), x)
        r = self._fma(n, self._constant(-LN2_LOW, x), r)
        power = self._polynomial(r, EXP_TERMS)
        bits = self.arithmetic.writer.value(conversion("bitcast", shifted, "int32"))
        exponent = self._integer("sub", bits, ROUNDER_BITS)
        # Two factors, because 2^n alone leaves the range of normal floats at both ends.
        half = self._integer("ashr", exponent, 1)
        rest = self.arithmetic.writer.value(binary("sub", exponent, half))
        first, second = self._power_of_two(half), self._power_of_two(rest)
        # What is masked away in attention: a product that underflows takes an x86 core over 100 cycles.
        underflows = self._float("<", x, self._constant(EXP_IS_ZERO, x))
        first = self._choose(underflows, self._constant(0.0, x), first)
        return self._float("*", self._float("*", power, first), second)

    def log(self, x: Value) -> Value:
        """k ln 2 + log(1 + f) with x = 2^k (1 + f) and 1 + f from sqrt(1/2) to sqrt(2); by atanh
        log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + 2/3 s^2 + 2/5 s^4 + ...) with s = f / (2 + f)."""
        value, one, zero = self.arithmetic.writer.value, self._constant(1.0, x), self._constant(0.0, x)
        small = self._float("<", x, self._constant(SMALLEST_NORMAL, x))
        normal = self._choose(small, self._float("*", x, self._constant(2.0**23, x)), x)
        bits = value(conversion("bitcast", normal, "int32"))
        k = self._integer("ashr", self._integer("sub", bits, SQRT_HALF_BITS), 23)
        mantissa = value(binary("sub", bits, self._integer("shl", k, 23)))
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
        """1 - 2 / (exp(2x) + 1), and the series near 0, where that difference would lose digits."""
        one, two = self._constant(1.0, x), self._constant(2.0, x)
        grown = self.exp(self._float("*", x, two))
        far = self._float("-", one, self._float("/", two, self._float("+", grown, one)))
        near = self._float("*", x, self._polynomial(self._float("*", x, x), TANH_SERIES))
        return self._choose(self._float("<", self._absolute(x), self._constant(TANH_SMALL, x)), near, far)

    def erf(self, x: Value) -> Value:
        """Abramowitz and Stegun 7.1.26 away from 0, the Maclaurin series near it."""
        one, size = self._constant(1.0, x), self._absolute(x)
        t = self._float("/", one, self._fma(size, self._constant(ERF_P, x), one))
        square = self._float("*", x, x)
        tail = self._float("*", self._polynomial(t, (0.0, *ERF_TAIL)), self.exp(self._negated(square)))
        far = self.arithmetic.intrinsic("llvm.copysign", [self._float("-", one, tail), x])
        near = self._float("*", x, self._polynomial(square, ERF_SERIES))
        return self._choose(self._float("<", size, self._constant(ERF_SMALL, x)), near, far)

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

    def _absolute(self, x: Value) -> Value:
        return self.arithmetic.intrinsic("llvm.fabs", [x])

    def _negated(self, x: Value) -> Value:
        return self.arithmetic.writer.value(Instruction("fneg", FLOAT, x.lanes, (x,)))

    def _choose(self, condition: Value, then: Value, otherwise: Value) -> Value:
        return self.arithmetic.writer.value(selection(condition, then, otherwise))

    def _integer(self, operation: str, left: Value, right: int) -> Value:
        other = self.arithmetic.writer.splat(literal(right, "int32"), left.lanes)
        return self.arithmetic.writer.value(binary(operation, left, other))

    def _power_of_two(self, exponent: Value) -> Value:
        """2^exponent for -126 <= exponent <= 127, by its bits."""
        bits = self._integer("shl", self._integer("add", exponent, 127), 23)
        return self.arithmetic.writer.value(conversion("bitcast", bits, FLOAT))
