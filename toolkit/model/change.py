"""What another computation of a model changes: power of the values, and of their differences."""

from __future__ import annotations

import math

import msgspec
import numpy as np

from toolkit.model.graph import Array


class Change(msgspec.Struct, frozen=True):
    """How far values are from those of a reference, over all samples."""

    signal: float = 0.0
    """Sum of squares."""
    noise: float = 0.0
    """Sum of squares of the differences."""
    rows: int = 0
    """Of the last axis, of values of two or more dimensions."""
    same_rows: int = 0
    """Those with the largest element where it was."""

    @property
    def sqnr_db(self) -> float | None:
        """10 log10(signal / noise); None where nothing changed, or there is no signal."""
        return 10 * math.log10(self.signal / self.noise) if self.signal and self.noise else None

    @property
    def agreement(self) -> float | None:
        """Share of the rows with the largest element where it was: the same class. None without rows."""
        return self.same_rows / self.rows if self.rows else None

    def with_sample(self, reference: Array, found: Array) -> Change:
        wide, difference = reference.astype(np.float64), found.astype(np.float64) - reference
        rows = same = 0
        if reference.ndim > 1 and reference.shape[-1] > 1:
            places = reference.argmax(-1) == found.argmax(-1)
            rows, same = places.size, int(places.sum())
        return Change(
            self.signal + float((wide**2).sum()), self.noise + float((difference**2).sum()),
            self.rows + rows, self.same_rows + same,
        )  # fmt: skip
