"""Elementwise functions and reductions: what a body is written with beside Python's operators.

sum(exp(data[i, k]) * weight[k, j], k)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cross.errors import ExpressionError
from cross.expression.language.dtypes import DTYPES, ITEM_BYTES
from cross.expression.language.operations import BYTE_BOUNDS, INTEGER
from cross.expression.language.tensor import Axis, AxisKind, Reduce
from cross.expression.language.terms import Const, Operand, Term, call, cast


def _function(name: str) -> Callable[[Operand], Term]:
    def build(value: Operand) -> Term:
        return call(name, value)

    build.__name__ = name
    build.__doc__ = f"Elementwise {name}."
    return build


exp = _function("exp")
log = _function("log")
sqrt = _function("sqrt")
tanh = _function("tanh")
sigmoid = _function("sigmoid")
erf = _function("erf")
floor = _function("floor")
ceil = _function("ceil")
absolute = _function("abs")
logical_not = _function("not")


def power(base: Term, exponent: Operand) -> Term:
    """base ** exponent on floats."""
    return call("pow", base, exponent)


def minimum(left: Operand, right: Operand) -> Term:
    """The smaller of two terms, elementwise."""
    return call("min", left, right)


def maximum(left: Operand, right: Operand) -> Term:
    """The larger of two terms, elementwise."""
    return call("max", left, right)


def equal(left: Operand, right: Operand) -> Term:
    """left == right as a bool term."""
    return call("==", left, right)


def logical_and(*conditions: Term) -> Term:
    """All conditions hold."""
    return _chain("and", conditions)


def logical_or(*conditions: Term) -> Term:
    """At least one condition holds."""
    return _chain("or", conditions)


def _chain(op: str, conditions: Sequence[Term]) -> Term:
    result: Term | None = None
    for condition in conditions:
        result = condition if result is None else call(op, result, condition)
    return Const(op == "and", "bool") if result is None else result


def reduce_axis(extent: int, name: str = "k") -> Axis:
    """An axis to reduce over, 0 <= name < extent.

    Raises:
        ExpressionError: extent is not positive.
    """
    if extent < 1:
        raise ExpressionError(f"reduce axis {name}: expected an extent of at least 1, found {extent}")
    return Axis(name, extent, AxisKind.REDUCE)


def summand(left: Term, right: Term) -> Term:
    """left * right in the dtype that their products are summed in: int32 for integers of 8 or 16 bits."""
    if all(DTYPES[side.dtype].kind in INTEGER and ITEM_BYTES[side.dtype] < 4 for side in (left, right)):
        return cast("int32", left) * cast("int32", right)
    return left * right


def dot4(words: Term, weights: Term) -> Term:
    """The sum of the products of four bytes of each of two int32; those of `words` have no sign."""
    return call("dot4", words, weights)


def signed_dot4(words: Term, weights: Term) -> Term:
    """`dot4` of words whose bytes have signs."""
    return call("sdot4", words, weights)


def dot2(words: Term, weights: Term, bound: int = 128) -> Term:
    """The sum, int32, of the products of two bytes with signs of each of two int16.

    `bound`, of `BYTE_BOUNDS`: no byte of the weights is larger in magnitude, so that steps may share 16 bits.
    """
    return call(next(name for name, most in BYTE_BOUNDS.items() if most == bound), words, weights)


def _reduction(combiner: str) -> Callable[[Term, Axis | Sequence[Axis]], Term]:
    def build(body: Term, axis: Axis | Sequence[Axis]) -> Term:
        axes = (axis,) if isinstance(axis, Axis) else tuple(axis)
        for item in axes:
            if item.kind is not AxisKind.REDUCE:
                raise ExpressionError(
                    f"{combiner}() reduces over reduce_axis(), found space axis {item.name}"
                )
        return Reduce(combiner, body, axes)

    build.__name__ = combiner
    build.__doc__ = f"{combiner} of the body over one or several reduce axes."
    return build


sum = _reduction("sum")
product = _reduction("prod")
max = _reduction("max")
min = _reduction("min")
