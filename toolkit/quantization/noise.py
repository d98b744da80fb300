"""What a quantized model changes: power of the values, and of their differences from those of floats."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from toolkit.quantization.samples import Array, Feeds
from toolkit.quantization.sessions import ModelSession


@dataclass(frozen=True, slots=True)
class Change:
    """How far values are from those of the model of floats, over all samples."""

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


def changes(
    reference: Iterable[Mapping[str, Array]], session: ModelSession, samples: Iterable[Feeds],
    names: Mapping[str, str],
) -> dict[str, Change]:  # fmt: skip
    """The change of each value; `names`: of a value of the reference, that of the session's model."""
    found = dict.fromkeys(names, Change())
    for expected, feeds in zip(reference, samples, strict=True):
        values = session.run(feeds)
        for name, own in names.items():
            found[name] = found[name].with_sample(expected[name], values[own])
    return found


def worst_db(found: Iterable[Change]) -> float | None:
    """The lowest ratio of signal to noise; None where nothing changed."""
    return min((item.sqnr_db for item in found if item.sqnr_db is not None), default=None)


def quantized_names(model: Any, values: Sequence[str]) -> dict[str, str]:
    """What a quantized model (onnx.ModelProto) calls values of that of floats, as their readers see them."""
    nodes = model.graph.node
    known = {item for node in nodes for item in node.output}
    seen = {value: f"{value}_DequantizeLinear_Output" for value in values}
    return {value: name if name in known else value for value, name in seen.items() if {name, value} & known}
