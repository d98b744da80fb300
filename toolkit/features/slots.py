"""Buffers in a fixed number of places, so that the features of all operators have one width.

Place 0 is the buffer written, 1 and 2 are the first two buffers read, in order of appearance (data and weight
of a convolution, left and right of a product); all further ones share place 3.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from toolkit.features.tape import Values

SLOTS: Final = ("written", "read1", "read2", "others")


def slot_of(access: int) -> int:
    """The place of an access of a chain."""
    return min(access, len(SLOTS) - 1)


def slotted(values: Values) -> Values:
    """[A, L, N] -> [len(SLOTS), L, N]: empty places are 0, the last one holds the largest of the others."""
    result = np.zeros((len(SLOTS), *values.shape[1:]))
    last = len(SLOTS) - 1
    result[: min(len(values), last)] = values[:last]
    if len(values) > last:
        result[last] = values[last:].max(axis=0)
    return result
