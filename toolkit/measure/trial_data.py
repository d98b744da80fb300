"""The arrays that a kernel is checked and timed on: random inputs and the reference output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cross.expression.operator import Operator
from cross.expression.reference import evaluate

Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class TrialData:
    """One run of an operator: inputs in the operator's order, and what it must return."""

    inputs: tuple[Array, ...]
    expected: Array


def trial_data(operator: Operator, rng: np.random.Generator) -> TrialData:
    """Random data for an operator, evaluated by the numpy reference."""
    inputs = [_values(tensor.shape, tensor.dtype, rng) for tensor in operator.inputs]
    return TrialData(tuple(inputs), evaluate(operator, inputs))


def _values(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Array:
    """Floats in [-1, 1), small integers: sums neither vanish nor overflow."""
    if np.issubdtype(np.dtype(dtype), np.floating):
        return rng.uniform(-1.0, 1.0, shape).astype(dtype)
    low = 0 if np.dtype(dtype).kind in "ub" else -4
    return rng.integers(low, 2 if dtype == "bool" else 5, shape).astype(dtype)
