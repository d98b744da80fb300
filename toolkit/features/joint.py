"""Two kinds of features side by side, for a global and a local model (AutoTVM, section 4, eq. 4)."""

from __future__ import annotations

import numpy as np

from cross.schedule.space import Batch
from toolkit.features.base import Features, Table


class JointFeatures:
    """The columns of `shared`, which mean the same for every operator, then those of `own`."""

    def __init__(self, shared: Features, own: Features) -> None:
        self.shared = shared
        self.own = own

    @property
    def kind(self) -> str:
        """The names of the two kinds, for messages."""
        return f"{self.shared.kind}+{self.own.kind}"

    @property
    def width(self) -> int:
        """Number of columns."""
        return self.shared.width + self.own.width

    @property
    def names(self) -> list[str]:
        """A name for each column."""
        return [*self.shared.names, *self.own.names]

    def __call__(self, batch: Batch) -> Table:
        """float32 [N, width] for int64 [N, K]."""
        return np.concatenate([self.shared(batch), self.own(batch)], axis=1)
