"""The arrays that a kernel is checked and timed on: random inputs and the reference output, in three sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.dtypes import FLOATS
from cross.expression.language.operations import BYTE_BOUNDS, BYTE_PRODUCTS
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import Read
from cross.expression.language.terms import Call, Term, walk
from cross.expression.reference import evaluate
from device_runtime.protocol import unwritten_byte

Array = NDArray[Any]

LARGE: Final = 256.0
"""Beyond the thresholds of activations (6) and of exp() (104). Not far beyond: an activation of a sum of such
numbers shows what the sum was rounded by, which Winograd's algorithms do more than others."""
SOME: Final = 4.0  # of a sparse array, and of a large one of float16, whose largest number is 65504
SMALL: Final = 1e-3
ZEROS: Final = 0.75  # of a sparse array; half of them are negative zeros
FEW_BYTES: Final = 4  # the magnitude of bytes of the plain set: sums do not saturate
ENDS: Final = 0.2  # of random bytes
FEW: Final = (
    512  # elements of an output say little, those of more sets say more; so few constants cost little
)


@dataclass(frozen=True, slots=True)
class TrialData:
    """One run of an operator: inputs in its order, and what the last argument of its program must be then."""

    inputs: tuple[Array, ...]
    expected: Array


def trial_data(operator: Operator, rng: np.random.Generator) -> tuple[TrialData, ...]:
    """Random data for an operator, evaluated by the numpy reference: plain, large and sparse.

    Kernels are timed on the plain set; an output or integers (indices) of less than FEW elements get more
    sets. Constants of FEW elements or more are the same in all of them: a packing is uploaded once.
    """
    changes = [_large, _sparse]
    integers = [
        tensor for tensor in operator.inputs if not np.issubdtype(np.dtype(tensor.dtype), np.floating)
    ]
    if any(tensor.elements < FEW for tensor in (operator.output, *integers)):
        changes += [_small, _negative, _reversed, _whole, _large, _reversed]
    bounds = byte_bounds(operator)
    plain = [
        random_bytes(tensor.shape, tensor.dtype, FEW_BYTES, rng)
        if place in bounds
        else _plain(tensor.shape, tensor.dtype, rng)
        for place, tensor in enumerate(operator.inputs)
    ]

    def changed(change: Callable[[Array, np.random.Generator], Array]) -> list[Array]:
        return [
            array
            if position in operator.constants and array.size >= FEW
            else random_bytes(array.shape, array.dtype, bounds[position], rng)
            if position in bounds and change in (_large, _reversed)
            else change(array, rng)
            for position, array in enumerate(plain)
        ]

    return tuple(
        TrialData(tuple(inputs), _written(operator, inputs)) for inputs in (plain, *map(changed, changes))
    )


def _written(operator: Operator, inputs: Sequence[Array]) -> Array:
    """What the operator's program makes of a tensor of unwritten bytes."""
    output = evaluate(operator, inputs)
    if operator.destination is None:
        return output
    whole = np.full(operator.written, 0, output.dtype)
    whole.view(np.uint8)[...] = unwritten_byte(str(output.dtype))
    whole[operator.part] = output
    return whole


def byte_bounds(operator: Operator) -> dict[int, int]:
    """The inputs, by position, that hold several bytes an element, and how large a byte of them may be."""
    bounds: dict[int, int] = {}
    for stage in operator.stages:
        for term in walk(stage.body) if stage.body is not None else ():
            if isinstance(term, Call) and term.function in BYTE_PRODUCTS:
                for argument, bound in zip(
                    term.arguments, (128, BYTE_BOUNDS.get(term.function, 128)), strict=True
                ):
                    for position in _inputs_of(argument, operator):
                        bounds[position] = min(bound, bounds.get(position, 128))
    return bounds


def _inputs_of(term: Term, operator: Operator) -> set[int]:
    """The inputs that a term reads, and that the stages that it reads were computed from."""
    found: set[int] = set()
    for part in walk(term):
        if isinstance(part, Read) and part.tensor.body is not None:
            found |= _inputs_of(part.tensor.body, operator)
        elif isinstance(part, Read):
            found.add(operator.inputs.index(part.tensor))
    return found


def random_bytes(shape: tuple[int, ...], dtype: Any, bound: int, rng: np.random.Generator) -> Array:
    """Words of random bytes of a magnitude up to a bound, the ends of that range among them."""
    count = np.dtype(dtype).itemsize
    low, high = max(-bound, -128), min(bound, 127)
    values = rng.choice([low, high, 0], (*shape, count)).astype(np.int8)
    drawn = rng.integers(low, high, (*shape, count), np.int8, endpoint=True)
    found: Array = np.where(rng.random((*shape, count)) < ENDS, values, drawn).view(dtype).reshape(shape)
    return found


def _plain(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Floats in [-1, 1), small integers: sums neither vanish nor overflow."""
    if dtype in FLOATS:
        return rng.uniform(-1.0, 1.0, shape).astype(dtype)
    low = 0 if np.dtype(dtype).kind in "ub" else -4
    return rng.integers(low, 2 if dtype == "bool" else 5, shape).astype(dtype)


def _large(plain: Array, rng: np.random.Generator) -> Array:
    """Floats of all magnitudes up to LARGE, as functions differ between 1 and 2, too: positive in the first
    half, negative in the second, the extremes at the ends, so that a reduction that starts from a wrong value
    or leaves one out is wrong. Integers up to their type's end or 1000."""
    if str(plain.dtype) in FLOATS:
        largest = SOME if plain.dtype.itemsize == 2 else LARGE
        values = np.abs(_other(plain, rng).ravel()) * largest ** rng.random(plain.size)
        values[plain.size // 2 :] *= -1
        values[-1], values[0] = -largest, largest
        return values.reshape(plain.shape).astype(plain.dtype)
    if plain.dtype == np.bool_:
        return ~plain
    limits = np.iinfo(plain.dtype)
    low, high = max(limits.min, -1000), min(limits.max, 1000)
    return rng.integers(low, high, plain.shape, plain.dtype, endpoint=True)


def _reversed(plain: Array, rng: np.random.Generator) -> Array:
    """Large values with the order of the elements reversed."""
    return _large(plain, rng).ravel()[::-1].reshape(plain.shape)


def _sparse(plain: Array, rng: np.random.Generator) -> Array:
    """Most of them zero, floats of the others up to SOME."""
    values = _other(plain, rng)
    if str(plain.dtype) in FLOATS:
        values = (SOME * values).astype(plain.dtype)
    zeros = np.where(rng.random(plain.shape) < 0.5, 0.0, -0.0).astype(plain.dtype)
    return np.where(rng.random(plain.shape) < ZEROS, zeros, values)


def _small(plain: Array, rng: np.random.Generator) -> Array:
    """Positive: a minimum is not that of a wrong start, and functions are near their values at 0."""
    if str(plain.dtype) in FLOATS:
        return (SMALL * rng.uniform(0.5, 2.0, plain.shape)).astype(plain.dtype)
    return np.maximum(np.abs(_other(plain, rng)), 1).astype(plain.dtype)


def _negative(plain: Array, rng: np.random.Generator) -> Array:
    """Negative numbers near zero; positive ones where the type is unsigned."""
    small = _small(plain, rng)
    return small if plain.dtype.kind in "bu" else -small


def _whole(plain: Array, rng: np.random.Generator) -> Array:
    """Whole numbers: where functions have corners, and indices of either sign, more of them out of range."""
    low = 0 if plain.dtype.kind in "ub" else -3
    return rng.integers(low, 2 if plain.dtype == np.bool_ else 4, plain.shape).astype(plain.dtype)


def _other(plain: Array, rng: np.random.Generator) -> Array:
    """The values of an array in another order."""
    return rng.permutation(plain.ravel()).reshape(plain.shape)
