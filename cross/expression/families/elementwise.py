"""Elementwise functions of networks: scalar formulas, and the stages that apply them to tensors.

`UNARY` and `BINARY` are tables from ONNX's name to the formula on terms, so that a model importer, a fused
epilogue and a test all read one definition.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence

from cross.errors import ExpressionError
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.expression.language.functions import (
    absolute,
    ceil,
    equal,
    erf,
    exp,
    floor,
    log,
    logical_and,
    logical_not,
    logical_or,
    maximum,
    minimum,
    power,
    sigmoid,
    sqrt,
    tanh,
)
from cross.expression.language.operations import BITS, TRIGONOMETRY
from cross.expression.language.tensor import Tensor, compute
from cross.expression.language.terms import Cast, Operand, Term, call, cast, constant, select


def integer_power(x: Term, y: Operand) -> Term:
    """x ** y of integers in float64; libraries' powers may be a little less than the integer."""
    found = power(x, y)
    return select(constant(y, x.dtype) < 0, found, call("round", found))


def relu(x: Term) -> Term:
    """max(x, 0)."""
    return maximum(x, 0.0)


def magnitude(x: Term) -> Term:
    """|x|; of the least signed integer that integer itself."""
    if x.dtype in FLOATS:
        return absolute(x)
    return x if x.dtype.startswith("u") else maximum(x, -x)


def quotient(x: Term, y: Operand) -> Term:
    """x / y; of integers towards 0, and 0 where y is 0: a division that traps would end the process."""
    if x.dtype in FLOATS:
        return x / y
    divisor = constant(y, x.dtype)
    if x.dtype.startswith("u"):
        return select(equal(divisor, 0), 0, x // maximum(divisor, 1))
    # the least integer divided by -1 traps, too
    usable = select(logical_or(equal(divisor, 0), equal(divisor, -1)), 1, divisor)
    down = x // usable
    uneven = logical_not(equal(x % usable, 0))
    towards_0 = select(logical_and(down < 0, uneven), down + 1, down)
    return select(equal(divisor, 0), 0, select(equal(divisor, -1), -x, towards_0))


def remainder(x: Term, y: Operand) -> Term:
    """x minus the quotient rounded down times y, with the sign of y; 0 where y is the integer 0."""
    divisor = constant(y, x.dtype)
    if x.dtype in FLOATS:
        rest = truncated_remainder(x, divisor)
        return select(rest * sign(divisor) < 0.0, rest + divisor, rest)
    usable = select(equal(divisor, 0), 1, divisor)
    if not x.dtype.startswith("u"):  # the remainder of the least integer by -1 traps
        usable = select(equal(divisor, -1), 1, usable)
    return x % usable


def truncated_remainder(x: Term, y: Operand) -> Term:
    """What is left of x after the quotient rounded towards 0, with the sign of x (C's fmod and %)."""
    divisor = constant(y, x.dtype)
    if x.dtype not in FLOATS:
        return x - quotient(x, select(equal(divisor, 0), 1, divisor)) * divisor
    return call("fmod", x, divisor)


def sign(x: Term) -> Term:
    """1, 0 or -1; NaN of NaN."""
    negative = x if x.dtype.startswith("u") else select(x < 0, constant(-1, x.dtype), x)
    return select(x > 0, constant(1, x.dtype), negative)


def shift(op: str) -> Callable[[Term, Operand], Term]:
    """x << y or x >> y; by more bits than x has, 0, or to the right of a negative number -1."""

    def shifted(x: Term, y: Operand) -> Term:
        bits, distance = 8 * ITEM_BYTES[x.dtype], constant(y, x.dtype)
        signed = not x.dtype.startswith("u")
        inside = logical_and(distance < bits, distance >= 0) if signed else distance < bits
        value = call(op, x, select(inside, distance, bits - 1))
        return value if signed and op == ">>" else select(inside, value, 0)

    return shifted


def is_infinite(x: Term, negative: float = 1.0, positive: float = 1.0) -> Term:
    """Whether x is one of the infinities that are asked for."""
    found = []
    if negative:
        found.append(equal(x, -math.inf))
    if positive:
        found.append(equal(x, math.inf))
    return logical_or(*found)


def convert(x: Term, dtype: str) -> Term:
    """x in another dtype; a truth value is whether x is not 0."""
    return logical_not(equal(x, 0)) if dtype == "bool" != x.dtype else cast(dtype, x)


def elu(x: Term, alpha: float = 1.0, scale: float | None = None) -> Term:
    """x where x >= 0, else alpha * (exp(scale * x) - 1).

    exp(y) - 1 is 2 t / (1 - t) with t = tanh(y / 2): the difference loses digits near 0.
    """
    down = minimum(x, 0.0)
    t = tanh((down if scale is None else down * scale) * 0.5)
    return select(x < 0.0, t * 2.0 / (1.0 - t) * alpha, x)


def clip(x: Term, low: float | None = None, high: float | None = None) -> Term:
    """min(max(x, low), high); a bound that is None does not bind."""
    if low is not None:
        x = maximum(x, low)
    return x if high is None else minimum(x, high)


def hard_sigmoid(x: Term, alpha: float = 0.2, beta: float = 0.5) -> Term:
    """max(0, min(1, alpha * x + beta))."""
    return clip(x * alpha + beta, 0.0, 1.0)


def log_1_plus(x: Term) -> Term:
    """log(1 + x) for x >= 0; the Taylor series where the sum would lose digits of x."""
    return select(x < 0.03, x * (1.0 - x * (0.5 - x * (1.0 / 3.0))), log(x + 1.0))


def softplus(x: Term) -> Term:
    """log(1 + exp(x)), without overflow for large x."""
    return maximum(x, 0.0) + log_1_plus(exp(-absolute(x)))


def gelu(x: Term) -> Term:
    """x times the normal distribution function at x."""
    return x * 0.5 * (erf(x * math.sqrt(0.5)) + 1.0)


def gelu_tanh(x: Term) -> Term:
    """The approximation of `gelu` by a hyperbolic tangent: (tanh(y) + 1) / 2 is sigmoid(2 y), which loses no
    digits where y is negative."""
    factor = 2.0 * math.sqrt(2.0 / math.pi)
    return x * sigmoid(x * (x * x * (0.044715 * factor) + factor))


def mish(x: Term) -> Term:
    """x * tanh(log(1 + exp(x))) = x / (1 + 2 / (w (w + 2))) with w = exp(x), which loses no digits."""
    w = exp(minimum(x, 20.0))  # where the quotient is x for certain
    return x / (2.0 / (w * (w + 2.0)) + 1.0)


SELU_ALPHA, SELU_GAMMA = 1.67326319217681884765625, 1.05070102214813232421875  # as ONNX states them

UNARY: dict[str, Callable[..., Term]] = {
    "Relu": relu,
    "LeakyRelu": lambda x, alpha=0.01: select(x < 0.0, x * alpha, x),
    "Elu": elu,
    "Clip": clip,
    "Sigmoid": sigmoid,
    "Tanh": tanh,
    "HardSigmoid": hard_sigmoid,
    "HardSwish": lambda x: x * hard_sigmoid(x, 1.0 / 6.0, 0.5),
    "Softplus": softplus,
    "Gelu": gelu,
    "GeluTanh": gelu_tanh,
    "Mish": mish,
    "Selu": lambda x, alpha=SELU_ALPHA, gamma=SELU_GAMMA: elu(x, alpha) * gamma,
    "Celu": lambda x, alpha=1.0: elu(x, alpha, 1.0 / alpha),
    "Softsign": lambda x: x / (absolute(x) + 1.0),
    "Affine": lambda x, alpha=1.0, beta=0.0: x * alpha + beta,
    "ScaledTanh": lambda x, alpha=1.0, beta=1.0: tanh(x * beta) * alpha,
    "ThresholdedRelu": lambda x, alpha=1.0: select(x > alpha, x, 0.0),
    "Exp": exp,
    "Log": log,
    "Sqrt": sqrt,
    "Abs": magnitude,
    "Neg": lambda x: -x,
    "Reciprocal": lambda x: 1.0 / x,
    "Floor": floor,
    "Ceil": ceil,
    "Erf": erf,
    **{name.capitalize(): functools.partial(call, name) for name in (*TRIGONOMETRY, "round")},
    "Sign": sign,
    "IsNaN": lambda x: logical_not(equal(x, x)),
    "IsInf": is_infinite,
    "Identity": lambda x: x,
    "Not": logical_not,
    **{f"As{dtype.capitalize()}": functools.partial(call, f"as_{dtype}") for dtype in BITS},
}

BINARY: dict[str, Callable[[Term, Operand], Term]] = {
    "Add": lambda a, b: a + b,
    "Sub": lambda a, b: a - b,
    "Mul": lambda a, b: a * b,
    "Div": quotient,
    # the integer nearest to x / y, of two the even one; x has been rounded to its dtype
    "RoundedQuotient": lambda x, y: call("round", Cast(x.dtype, x) / y),
    "Max": maximum,
    "Min": minimum,
    "Pow": power,
    "IntegerPow": integer_power,
    "PRelu": lambda x, slope: select(x < 0.0, x * slope, x),
    "Mod": remainder,
    "TruncatedMod": truncated_remainder,
    "BitwiseAnd": lambda a, b: call("&", a, b),
    "BitwiseOr": lambda a, b: call("|", a, b),
    "BitwiseXor": lambda a, b: call("^", a, b),
    "ShiftLeft": shift("<<"),
    "ShiftRight": shift(">>"),
    "And": lambda a, b: logical_and(a, constant(b, "bool")),
    "Or": lambda a, b: logical_or(a, constant(b, "bool")),
    "Xor": lambda a, b: logical_not(equal(a, b)),
    "Equal": equal,
    "Less": lambda a, b: a < b,
    "LessOrEqual": lambda a, b: a <= b,
    "Greater": lambda a, b: a > b,
    "GreaterOrEqual": lambda a, b: a >= b,
}


def apply(function: Callable[[Term], Term], data: Tensor, name: str) -> Tensor:
    """A stage with `function` on every element of `data`."""
    return compute(data.shape, lambda *axes: function(data[axes]), name=name)


def combine(function: Callable[[Term, Term], Term], left: Tensor, right: Tensor, name: str) -> Tensor:
    """A stage with `function` on the pairs of two tensors broadcast to each other as in numpy."""
    shape = broadcast_shape(left.shape, right.shape)
    return compute(
        shape, lambda *axes: function(broadcast_read(left, axes), broadcast_read(right, axes)), name=name
    )


def where(
    condition: Tensor | Term, then: Tensor | Term, otherwise: Tensor | Term, name: str = "where"
) -> Tensor:
    """`then` where the bool `condition` holds, else `otherwise`; all broadcast to each other.

    A literal stands for a tensor of one element.
    """
    operands = (condition, then, otherwise)
    shape = broadcast_shape(*(item.shape for item in operands if isinstance(item, Tensor)))

    def body(*axes: Term) -> Term:
        return select(
            *(broadcast_read(item, axes) if isinstance(item, Tensor) else item for item in operands)
        )

    return compute(shape, body, name=name)


def bias_add(data: Tensor, bias: Tensor, name: str = "bias") -> Tensor:
    """data + bias, where bias is aligned with the last dimensions."""
    return combine(lambda x, b: x + b, data, bias, name)


def broadcast_shape(*shapes: Sequence[int]) -> tuple[int, ...]:
    """numpy's broadcast of shapes.

    Raises:
        ExpressionError: they do not fit.
    """
    rank = max(len(shape) for shape in shapes)
    aligned = [(1,) * (rank - len(shape)) + tuple(shape) for shape in shapes]
    result: list[int] = []
    for position, extents in enumerate(zip(*aligned, strict=True)):
        sizes = {extent for extent in extents if extent != 1}
        if len(sizes) > 1:
            raise ExpressionError(
                f"shapes {', '.join(str(tuple(shape)) for shape in shapes)} do not broadcast: dimension "
                f"{position} of "
                f"the result would be {' and '.join(str(size) for size in sorted(sizes))}"
            )
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def broadcast_read(data: Tensor, axes: Sequence[Term]) -> Term:
    """The element of `data` at `axes`, with numpy's broadcasting."""
    own = axes[len(axes) - len(data.shape) :]
    return data[tuple(0 if extent == 1 else axis for axis, extent in zip(own, data.shape, strict=True))]
