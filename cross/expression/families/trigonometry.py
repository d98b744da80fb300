"""Trigonometric and hyperbolic functions and their inverses as formulas over arithmetic, exp, log and sqrt.

The formulas hold in float32 within a few units in the last place, and as well in the reference's float64.
`sine` and `cosine` lose digits as |x| grows: their error stays below 1e-6 up to |x| = 1e4.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from cross.expression.language.functions import absolute, equal, exp, floor, log, sqrt, tanh
from cross.expression.language.terms import Term, constant, select

# pi in two parts: the first has 9 significant bits, its products with half integers up to 2**14 are exact
PI_HIGH = 3.140625
PI_LOW = math.pi - PI_HIGH
# sin(r) / r in powers of r * r for |r| <= pi / 2, interpolated at Chebyshev points; the error is below 7e-9
SINE = (0.99999999570734, -0.16666657956126, 0.00833305028233, -0.00019809021019, 2.605107605547e-06)
# atan(u) / u in powers of u * u for |u| <= 1, error below 2e-8: Abramowitz and Stegun 4.4.49
ARC_TANGENT = (
    *(1.0, -0.3333314528, 0.1999355085, -0.1420889944, 0.1065626393),
    *(-0.0752896400, 0.0429096138, -0.0161657367, 0.0028662257),
)


def log_1_plus(x: Term) -> Term:
    """log(1 + x) for x >= 0; the Taylor series where the sum would lose digits of x."""
    return select(x < 0.03, x * (1.0 - x * (0.5 - x * (1.0 / 3.0))), log(x + 1.0))


def sine(x: Term) -> Term:
    """sin(x): x = k * pi + r with |r| <= pi / 2, and sin(x) = sin(r) for even k, -sin(r) for odd k."""
    turns = floor(x * (1.0 / math.pi) + 0.5)
    value = _sine_near_zero(x - turns * PI_HIGH - turns * PI_LOW)
    return value * select(_even(turns), constant(1.0, x.dtype), constant(-1.0, x.dtype))


def cosine(x: Term) -> Term:
    """cos(x): x = (k + 1/2) * pi + r with |r| <= pi / 2, and cos(x) = -sin(r) for even k."""
    turns = floor(x * (1.0 / math.pi))
    middle = turns + 0.5
    value = _sine_near_zero(x - middle * PI_HIGH - middle * PI_LOW)
    return value * select(_even(turns), constant(-1.0, x.dtype), constant(1.0, x.dtype))


def arc_tangent(x: Term) -> Term:
    """atan(x), by its series up to |x| = 1 and as pi / 2 - atan(1 / x), with the sign of x, beyond."""
    beyond = absolute(x) > 1.0
    value = _odd(select(beyond, -1.0 / x, x), ARC_TANGENT)
    return value + select(
        beyond, select(x < 0.0, constant(-math.pi / 2, x.dtype), constant(math.pi / 2, x.dtype)), 0.0
    )


def hyperbolic_sine(x: Term) -> Term:
    """sinh(x); 2 t / (1 - t * t) with t = tanh(x / 2) where the difference of exponentials loses digits."""
    t = tanh(x * 0.5)
    return select(absolute(x) < 1.0, t * 2.0 / (1.0 - t * t), (exp(x) - exp(-x)) * 0.5)


def hyperbolic_cosine(x: Term) -> Term:
    """cosh(x)."""
    return (exp(x) + exp(-x)) * 0.5


def inverse_hyperbolic_sine(x: Term) -> Term:
    """asinh(x) = log(1 + |x| + x * x / (1 + sqrt(x * x + 1))) with the sign of x."""
    size = absolute(x)
    value = log_1_plus(size + x * x / (sqrt(x * x + 1.0) + 1.0))
    return select(x < 0.0, -value, value)


def inverse_hyperbolic_cosine(x: Term) -> Term:
    """acosh(x) = log(x + sqrt((x - 1) * (x + 1)))."""
    return log(x + sqrt((x - 1.0) * (x + 1.0)))


def inverse_hyperbolic_tangent(x: Term) -> Term:
    """atanh(x) = log(1 + 2 |x| / (1 - |x|)) / 2 with the sign of x."""
    size = absolute(x)
    value = log_1_plus(size * 2.0 / (1.0 - size)) * 0.5
    return select(x < 0.0, -value, value)


def round_half_even(x: Term) -> Term:
    """The nearest integer, of two the even one."""
    below = floor(x)
    rest = x - below
    even = select(_even(below), below, below + 1.0)
    return select(rest < 0.5, below, select(rest > 0.5, below + 1.0, even))


def _even(whole: Term) -> Term:
    """Whether a float without a fraction is even."""
    half = whole * 0.5
    return equal(floor(half), half)


def _sine_near_zero(r: Term) -> Term:
    return _odd(r, SINE)


def _odd(x: Term, coefficients: Sequence[float]) -> Term:
    """x times the polynomial in x * x."""
    square = x * x
    result: Term = square * coefficients[-1] + coefficients[-2]
    for coefficient in reversed(coefficients[:-2]):
        result = result * square + coefficient
    return x * result
