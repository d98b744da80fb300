"""Inputs whose elements are words of several integers, as products of bytes read them: what they may hold."""

from __future__ import annotations

from typing import Any, Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cross.expression.language.operations import BYTE_PRODUCTS, DOT_BYTES, WEIGHT_BOUNDS, WIDENED_BOUND
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read
from cross.expression.language.terms import Call, Term, walk

Array = NDArray[Any]

ENDS: Final = 0.2  # of random bytes


class Numbers(msgspec.Struct, frozen=True):
    """What an element of an input holds: so many integers with signs, up to a magnitude."""

    count: int
    bound: int

    def words(self, shape: tuple[int, ...], dtype: Any, rng: np.random.Generator) -> Array:
        """Words of random numbers, the ends of their range among them."""
        number = np.dtype(f"i{np.dtype(dtype).itemsize // self.count}")
        limits, shape_of_numbers = np.iinfo(number), (*shape, self.count)
        low, high = max(-self.bound, limits.min), min(self.bound, limits.max)
        ends = rng.choice([low, high, 0], shape_of_numbers).astype(number)
        drawn = rng.integers(low, high, shape_of_numbers, number.type, endpoint=True)
        at_end = rng.random(shape_of_numbers) < ENDS
        found: Array = np.where(at_end, ends, drawn).view(dtype).reshape(shape)
        return found


def numbers_in_words(operator: Operator) -> dict[int, Numbers]:
    """The inputs, by position, that hold several numbers an element."""
    found: dict[int, Numbers] = {}
    for stage in operator.stages:
        for term in walk(stage.body) if stage.body is not None else ():
            if isinstance(term, Call) and term.function in BYTE_PRODUCTS:
                count, most = DOT_BYTES[term.function], _largest_number(term.function)
                bounds = most, WEIGHT_BOUNDS.get(term.function, most)
                for argument, bound in zip(term.arguments, bounds, strict=True):
                    for position in _inputs_of(argument, operator):
                        known = found.get(position, Numbers(count, bound))
                        found[position] = replace(known, bound=min(bound, known.bound))
    return found


def _largest_number(function: str) -> int:
    return WIDENED_BOUND if function == "wide_dot2" else 128


def _inputs_of(term: Term, operator: Operator) -> set[int]:
    """The inputs that a term reads, and that the stages that it reads were computed from."""
    found: set[int] = set()
    for part in walk(term):
        if isinstance(part, Read) and part.tensor.body is not None:
            found |= _inputs_of(part.tensor.body, operator)
        elif isinstance(part, Read):
            found.add(operator.inputs.index(part.tensor))
    return found
