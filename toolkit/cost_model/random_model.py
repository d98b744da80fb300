"""A cost model that knows nothing: the baseline that every learning model must beat."""

from __future__ import annotations

import json
from typing import Any, ClassVar

import numpy as np

from toolkit.cost_model.base import Costs, Groups, Rows, check_lengths


class RandomModel:
    """Scores drawn from `rng`, whatever was measured."""

    kind: ClassVar = "random"

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng

    def fit(
        self, features: Rows, costs_s: Costs, groups: Groups | None = None, offsets: Rows | None = None
    ) -> None:
        check_lengths(features, costs_s, groups, offsets)

    def predict(self, features: Rows) -> Rows:
        return self._rng.random(len(features), dtype=np.float32)

    def state(self) -> dict[str, Any]:
        """See Saveable.state."""
        return {"rng": json.dumps(self._rng.bit_generator.state)}  # its integers are too long for msgpack

    @classmethod
    def restore(cls, state: dict[str, Any]) -> RandomModel:
        """The model that goes on drawing where the saved one was."""
        rng = np.random.default_rng(0)
        rng.bit_generator.state = json.loads(state["rng"])
        return cls(rng)
