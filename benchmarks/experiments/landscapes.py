"""What is searched: configurations of an operator whose times are known already.

A `table` is a replay table: a reduced space of which every configuration was measured (benchmarks.replay). A
`pool` is what live tuning runs measured in the full space (collect.py): a search may only choose among those,
so that finding the best one there is easier than in the full space.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Final, Literal, cast

import numpy as np
from numpy.typing import NDArray

from benchmarks.experiments.collected import Collected, collected
from benchmarks.replay import open_replay
from cross.loopnest.program import Programs
from cross.schedule.space import Part, ScheduleSpace
from toolkit.explore.space import Batch, Ids, SearchSpace
from toolkit.features.choose import make_features

TABLE: Final = "table"
POOL: Final = "pool"

Rows = NDArray[np.float32]


@dataclass(frozen=True)
class Landscape:
    """A search space of M known configurations.

    space: what the search draws from; place: which of the M known ones the rows of a batch are. batch,
    costs_s: the known configurations in the operator's own space [M, K], seconds or NaN [M].
    """

    name: str
    kind: Literal["table", "pool"]
    flops: int
    space: SearchSpace
    place: Callable[[Batch], NDArray[np.intp]]
    programs: Programs
    batch: Batch
    costs_s: NDArray[np.float64]
    _matrices: dict[str, Rows] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """Sixteen hex digits of the configurations and their times."""
        content = self.batch.astype("<i8").tobytes() + self.costs_s.astype("<f8").tobytes()
        key = f"{self.name} {self.kind} {self.programs.space.key} {self.batch.shape}".encode()
        return hashlib.sha256(key + content).hexdigest()[:16]

    def matrix(self, kind: str) -> Rows:
        """The features of all known configurations, float32 [M, F]."""
        if kind not in self._matrices:
            self._matrices[kind] = make_features(kind, self.programs)(self.batch)
        return self._matrices[kind]

    def features(self, kind: str) -> Callable[[Batch], Rows]:
        """Features as a search asks for them, looked up."""
        table = self.matrix(kind)
        return lambda batch: table[self.place(batch)]

    def costs(self, batch: Batch) -> NDArray[np.float64]:
        """Seconds of the rows of a batch, NaN for failures."""
        return np.asarray(self.costs_s[self.place(batch)])


class PoolSpace:
    """M configurations without knobs: neighbours are any others."""

    def __init__(self, count: int) -> None:
        self.shape: tuple[int, ...] = (count,)
        self.size = count
        self.parts = (Part("", cast(ScheduleSpace, self), None, slice(None), 1),)

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        return rng.integers(0, self.shape[0], (n, 1))

    def mutate(self, rng: np.random.Generator, batch: Batch) -> Batch:
        return self.sample(rng, len(batch))

    def valid(self, batch: Batch) -> NDArray[np.bool_]:
        return np.ones(len(batch), dtype=np.bool_)

    def ids(self, batch: Batch) -> Ids:
        return batch[:, 0].astype(np.uint64)


@lru_cache(maxsize=16)
def open_landscape(name: str, work: Path) -> Landscape:
    """The landscape "table C6" or "pool C7"; pools are read from the records in the folder `work`.

    Raises ReplayError or RecordsError that says how to record it.
    """
    kind, operator = name.split(" ")
    if kind == POOL:
        return pool(collected(operator, work))
    replay = open_replay(operator)
    space, table = replay.space, replay.table
    ids = space.ids(table.batch)
    order = np.argsort(ids)
    ordered = ids[order]

    def place(rows: Batch) -> NDArray[np.intp]:
        return order[np.searchsorted(ordered, space.ids(rows))]

    return Landscape(operator, TABLE, table.flops, space, place, replay.programs, table.batch, table.costs_s)


def pool(found: Collected) -> Landscape:
    """The landscape of what was collected for an operator; of repeated configurations the first counts."""
    _, first = np.unique(found.programs.space.ids(found.batch), return_index=True)
    first = np.sort(first)
    return Landscape(
        name=found.name,
        kind=POOL,
        flops=found.programs.space.operator.flops,
        space=PoolSpace(len(first)),
        place=lambda rows: rows[:, 0].astype(np.intp),
        programs=found.programs,
        batch=found.batch[first],
        costs_s=found.costs_s[first],
    )
