"""Are sums of float32 products right, in whatever order and with whatever instructions they were computed?"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
ROUNDINGS = 64
"""Of half a unit in the last place: a sum of n products has at most 2n - 1, in any order, with fused steps or
without."""


def assert_sums_close(got: Array, exact: Callable[..., Array], *arrays: Array) -> None:
    """`got` is what `exact` makes of float32 arrays, but for ROUNDINGS; it must be linear in each of them.

    A sum may be near zero where its terms cancel: an error counts against the sum of the terms' magnitudes.
    """
    wide = [array.astype(np.float64) for array in arrays]
    error = np.abs(got - exact(*wide))
    allowed = ROUNDINGS * np.finfo(np.float32).eps / 2 * exact(*map(np.abs, wide))
    assert got.shape == allowed.shape and (error <= allowed).all(), (
        f"error {(error - allowed).max()} too large"
    )
