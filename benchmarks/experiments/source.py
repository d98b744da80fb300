"""The source domain of transfer: what was measured for other operators, and models fitted on it."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.collected import HERE, collected
from benchmarks.experiments.landscapes import Rows, pool
from toolkit.cost_model.base import Saveable
from toolkit.cost_model.choose import make_cost_model
from toolkit.cost_model.names import TREE_MODELS
from toolkit.features.tree import CHANNELS


def cost_model(name: str, seed: int, *, patient: bool = False) -> Saveable:
    """The model of this name, a `patient` one for what is fitted once; tree models read "tree" features."""
    return make_cost_model(name, seed, channels=len(CHANNELS), patient=patient)


def available(name: str) -> bool:
    """Whether a model of this name can be made here: tree models need the extra [neural]."""
    return name not in TREE_MODELS or find_spec("jax") is not None


@dataclass(frozen=True, slots=True)
class Source:
    """Operators on a target whose measurements a global model learns from."""

    operators: tuple[str, ...]
    target: str = HERE

    @property
    def text(self) -> str:
        """For cells and people: host C1 C2."""
        return " ".join((self.target, *self.operators))


@dataclass(frozen=True, slots=True)
class Global:
    """A fitted global model that reads rows of `width` columns; narrower ones are padded with zeros."""

    model: Saveable
    width: int

    def padded(self, rows: Rows) -> Rows:
        """Rows [N, F] with at least `width` columns."""
        return padded(rows, max(self.width, rows.shape[1]))


def padded(rows: Rows, width: int) -> Rows:
    """[N, F] -> [N, width], zeros on the right."""
    result = np.zeros((len(rows), width), dtype=np.float32)
    result[:, : rows.shape[1]] = rows
    return result


@lru_cache(maxsize=8)
def global_model(source: Source, model: str, features: str, width: int, work: Path) -> Global:
    """The model fitted on all measurements of the source, each operator a group of its own.

    width: columns of the target's features; all rows are padded to the widest.
    """
    landscapes = [pool(collected(name, work, source.target)) for name in source.operators]
    tables = [landscape.matrix(features) for landscape in landscapes]
    widest = max(width, *(table.shape[1] for table in tables))
    groups: NDArray[np.int64] = np.repeat(np.arange(len(tables)), [len(table) for table in tables])
    fitted = cost_model(model, seed=0, patient=True)
    fitted.fit(
        np.concatenate([padded(table, widest) for table in tables]),
        np.concatenate([landscape.costs_s for landscape in landscapes]),
        groups,
    )
    return Global(fitted, widest)


@cache
def source_digest(source: Source, work: Path) -> str:
    """Changes when the measurements of the source do."""
    return " ".join(pool(collected(name, work, source.target)).digest for name in source.operators)
