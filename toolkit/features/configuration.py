"""Configuration features: the values of the knobs themselves. They say nothing across spaces.

A knob has one column for each of its fields, log2(1 + |value|) with the sign of the value.
"""

from __future__ import annotations

import numpy as np

from cross.loopnest.program import Programs
from cross.schedule.space import Batch
from toolkit.features.base import Table


class ConfigurationFeatures:
    """Features of the configurations of one space: call it with a batch."""

    kind = "configuration"

    def __init__(self, programs: Programs) -> None:
        self._knobs = programs.space.knobs
        values = [np.array(knob.choices, dtype=np.float64) for knob in self._knobs]
        self._tables = [(np.sign(item) * np.log2(1.0 + np.abs(item))).astype(np.float32) for item in values]
        self.width = sum(len(knob.fields) for knob in self._knobs)

    @property
    def names(self) -> list[str]:
        """A name per column: the knob, and which of its fields."""
        return [f"{knob.name} {field}" for knob in self._knobs for field in knob.fields]

    def __call__(self, batch: Batch) -> Table:
        """float32 [N, width] for int64 [N, K]."""
        columns = [table[batch[:, position]] for position, table in enumerate(self._tables)]
        return np.concatenate([np.zeros((len(batch), 0), np.float32), *columns], axis=1)
