"""Transfer learning: f̂ = f̂_global + f̂_local (AutoTVM, section 4, eq. 4).

The global model was fitted on records of other operators and targets, over features that mean the same for
all of them. The local model learns what to add to it, from the first measurements of the operator at hand on.
The more of these there are, the less the global model counts: it knows which programs are good elsewhere,
and among the good ones of this operator its certainty about small differences misleads (the paper adds it in
full).
"""

from __future__ import annotations

from typing import Any, ClassVar, Final

import numpy as np

from toolkit.cost_model.base import Costs, Groups, Rows, Saveable, check_lengths

HALVED_AFTER: Final = 64
"""Measurements of the operator at hand after which the global model counts half."""


class Transfer:
    """A fitted global model and a local one that is fitted on the residual; any models of this room.

    columns: how many of the leading feature columns the global model reads, the local model the others
    (features.JointFeatures); None: both read all.
    """

    kind: ClassVar = "transfer"

    def __init__(self, global_model: Saveable, local_model: Saveable, *, columns: int | None = None) -> None:
        self.global_model = global_model
        self.local_model = local_model
        self.columns = columns
        self._fitted = False
        self._weight = 1.0

    def fit(
        self, features: Rows, costs_s: Costs, groups: Groups | None = None, offsets: Rows | None = None
    ) -> None:
        """See CostModel.fit. The global model stays as it is."""
        check_lengths(features, costs_s, groups, offsets)
        self._weight = HALVED_AFTER / (HALVED_AFTER + len(features))
        known = self._global(features)
        if offsets is not None:
            known = known + offsets
        self.local_model.fit(self._own(features), costs_s, groups, known)
        self._fitted = True

    def predict(self, features: Rows) -> Rows:
        """See CostModel.predict; the global model's scores alone before the first fit."""
        known = self._global(features)
        return known + self.local_model.predict(self._own(features)) if self._fitted else known

    def _global(self, features: Rows) -> Rows:
        scores: Rows = self.global_model.predict(np.ascontiguousarray(features[:, : self.columns]))
        return scores * np.float32(self._weight)

    def _own(self, features: Rows) -> Rows:
        return features if self.columns is None else np.ascontiguousarray(features[:, self.columns :])

    def state(self) -> dict[str, Any]:
        """See Saveable.state."""
        parts = (self.global_model, self.local_model)
        return {
            "members": [{"kind": part.kind, "state": part.state()} for part in parts],
            "columns": self.columns,
            "fitted": self._fitted,
            "weight": self._weight,
        }

    @classmethod
    def restore(cls, state: dict[str, Any], members: list[Saveable]) -> Transfer:
        """The sum of two models that are restored already."""
        global_model, local_model = members
        result = cls(global_model, local_model, columns=state["columns"])
        result._fitted = bool(state["fitted"])
        result._weight = float(state["weight"])
        return result
