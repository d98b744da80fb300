"""Tensors that depend on where elements stand: places of extremes, running sums, sums over named axes."""

from __future__ import annotations

from collections.abc import Sequence

from cross.errors import ExpressionError
from cross.expression.families.pool import COMBINERS, reduce
from cross.expression.language import functions
from cross.expression.language.functions import equal, reduce_axis
from cross.expression.language.operations import neutral_value
from cross.expression.language.tensor import Axis, Tensor, compute
from cross.expression.language.terms import Term, cast, constant, select


def arg_extreme(data: Tensor, dimension: int, combiner: str, last: bool = False) -> Tensor:
    """The first or last index (int64) of the "max" or "min" along a dimension, which keeps extent 1."""
    extent = data.shape[dimension]
    extreme = reduce(data, (dimension,), combiner, name="extreme")
    place = reduce_axis(extent, "place")

    def body(*axes: Term) -> Term:
        here = data[(*axes[:dimension], place, *axes[dimension + 1 :])]
        absent = constant(-1 if last else extent, "int64")
        found = select(equal(here, extreme[axes]), cast("int64", place), absent)
        return COMBINERS["max" if last else "min"](found, place)

    return compute(extreme.shape, body, name="arg_extreme")


def running(
    data: Tensor, dimension: int, combiner: str, exclusive: bool = False, reverse: bool = False
) -> Tensor:
    """The "sum" or "prod" up to each element along a dimension.

    `exclusive` leaves the element itself out, `reverse` begins at the end.
    """
    place = reduce_axis(data.shape[dimension], "place")

    def body(*axes: Term) -> Term:
        here = axes[dimension]
        first, second = (here, place) if reverse else (place, here)
        counted = first < second if exclusive else first <= second
        element = data[(*axes[:dimension], place, *axes[dimension + 1 :])]
        neutral = constant(neutral_value(combiner, data.dtype), data.dtype)
        return COMBINERS[combiner](select(counted, element, neutral), place)

    return compute(data.shape, body, name=f"running_{combiner}")


def sum_over_names(operands: Sequence[Tensor], names: Sequence[str], result: str) -> Tensor:
    """numpy.einsum: `names` has a letter for each dimension of each operand; sums over those not in `result`.

    An operand without letters is a scalar, which tensors store as (1,).

    Raises:
        ExpressionError: a letter stands for dimensions of different extents, or only in the result.
    """
    extents: dict[str, int] = {}
    for operand, letters in zip(operands, names, strict=True):
        for letter, extent in zip(letters, operand.shape, strict=bool(letters)):
            if extents.setdefault(letter, extent) not in (extent, 1) and extent != 1:
                raise ExpressionError(
                    f"einsum: {letter} is {extents[letter]} and {extent}; expected one extent"
                )
            extents[letter] = max(extents[letter], extent)
    if not set(result) <= extents.keys():
        raise ExpressionError(f"einsum: {result} names dimensions that no operand of {list(names)} has")
    reduced = {letter: reduce_axis(extents[letter], letter) for letter in extents if letter not in result}

    def body(*axes: Term) -> Term:
        places: dict[str, Term] = {**dict(zip(result, axes, strict=False)), **reduced}
        product: Term | None = None
        for operand, letters in zip(operands, names, strict=True):
            own = zip(letters, operand.shape, strict=bool(letters))
            element = operand[tuple(0 if extent == 1 else places[letter] for letter, extent in own) or (0,)]
            product = element if product is None else product * element
        assert product is not None
        loops: tuple[Axis, ...] = tuple(reduced.values())
        return functions.sum(product, loops) if loops else product

    return compute(tuple(extents[letter] for letter in result) or (1,), body, name="einsum")
