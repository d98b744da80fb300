"""The arrays that a kernel is checked and timed on: random inputs and the reference output, in three sets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from cross.expression.operator import Operator
from cross.expression.reference import evaluate

Array = NDArray[Any]

LARGE: Final = 64.0
"""Beyond the thresholds of activations (6 and less); exp() of it and sums of its squares are finite."""
LARGE_HALF: Final = 4.0  # for float16, whose largest number is 65504
ZEROS: Final = 0.75  # of a sparse array; half of them are negative zeros


@dataclass(frozen=True, slots=True)
class TrialData:
    """One run of an operator: inputs in the operator's order, and what it must return."""

    inputs: tuple[Array, ...]
    expected: Array


def trial_data(operator: Operator, rng: np.random.Generator) -> tuple[TrialData, ...]:
    """Random data for an operator, evaluated by the numpy reference: plain, large and sparse.

    Kernels are timed on the plain set. Constants are the same in all of them: a packing is uploaded once.
    """
    plain = [_plain(tensor.shape, tensor.dtype, rng) for tensor in operator.inputs]

    def changed(change: Callable[[Array, np.random.Generator], Array]) -> list[Array]:
        return [
            array if position in operator.constants else change(array, rng)
            for position, array in enumerate(plain)
        ]

    return tuple(
        TrialData(tuple(inputs), evaluate(operator, inputs))
        for inputs in (plain, changed(_large), changed(_sparse))
    )


def _plain(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Floats in [-1, 1), small integers: sums neither vanish nor overflow."""
    if np.issubdtype(np.dtype(dtype), np.floating):
        return rng.uniform(-1.0, 1.0, shape).astype(dtype)
    low = 0 if np.dtype(dtype).kind in "ub" else -4
    return rng.integers(low, 2 if dtype == "bool" else 5, shape).astype(dtype)


def _large(plain: Array, rng: np.random.Generator) -> Array:
    """Other values of the same signs and zeros, up to LARGE; integers to their type's end or 1000."""
    if np.issubdtype(plain.dtype, np.floating):
        largest = LARGE_HALF if plain.dtype.itemsize == 2 else LARGE
        return (rng.permutation(plain.ravel()).reshape(plain.shape) * largest).astype(plain.dtype)
    if plain.dtype == np.bool_:
        return ~plain
    limits = np.iinfo(plain.dtype)
    low, high = max(limits.min, -1000), min(limits.max, 1000)
    return rng.integers(low, high, plain.shape, plain.dtype, endpoint=True)


def _sparse(plain: Array, rng: np.random.Generator) -> Array:
    """Other values, most of them zero."""
    values = rng.permutation(plain.ravel()).reshape(plain.shape)
    zeros = np.where(rng.random(plain.shape) < 0.5, 0.0, -0.0).astype(plain.dtype)
    return np.where(rng.random(plain.shape) < ZEROS, zeros, values)
