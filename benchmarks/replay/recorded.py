"""The recorded spaces as searches see them, and what a search on one finds. Start at `open_replay`."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.replay.operators import TABLES, operator
from cross.expression import Operator
from cross.loopnest.program import Programs
from cross.schedule.space import ScheduleSpace
from toolkit.errors import ReplayError
from toolkit.explore.proposer import Proposer
from toolkit.explore.space import Batch, SearchSpace
from toolkit.measure.replay import SUFFIX, ReplayTable
from toolkit.measure.runner import ReplayRunner

FOLDER = Path(__file__).parent


@dataclass(frozen=True)
class Replay:
    """One recorded space: `space` and `programs` are the real ones, `runner` looks measurements up."""

    table: ReplayTable
    operator: Operator
    space: ScheduleSpace

    @cached_property
    def programs(self) -> Programs:
        """The loop nests, for features."""
        return Programs(self.space)

    @cached_property
    def runner(self) -> ReplayRunner:
        """A Runner on the table."""
        return self.table.runner(self.space)

    @cached_property
    def best_s(self) -> float:
        """Seconds per call of the fastest configuration there is."""
        return float(np.nanmin(self.table.costs_s))

    def costs(self, batch: Batch) -> NDArray[np.float64]:
        """Seconds of the rows of a batch, NaN for failures."""
        return np.array([measurement.cost_s for measurement in self.runner.prepare(batch)])


def open_replay(name: str, path: Path | None = None) -> Replay:
    """The recorded space of this name, from its table in this folder or at `path`.

    Raises ReplayError: an unknown name, no table, a damaged one, or one of another version or space.
    """
    if name not in TABLES:
        raise ReplayError(f"no replay table is called {name!r}: expected one of {', '.join(TABLES)}")
    table = ReplayTable.read(path or FOLDER / f"{name}{SUFFIX}")
    made = operator(name)
    return Replay(table, made, table.space(made))


class Known(Protocol):
    """Configurations whose times are known: a Replay, or a landscape of the studies."""

    @property
    def space(self) -> SearchSpace: ...

    def costs(self, batch: Batch) -> NDArray[np.float64]:
        """Seconds of the rows of a batch, NaN for failures."""
        ...


def course(
    known: Known, proposer: Proposer, trials: int, *, batch: int = 64
) -> tuple[Batch, NDArray[np.float64]]:
    """Search until so many trials are spent or nothing is left: configurations [T, K] and seconds [T].

    Failures cost NaN. The first batches are smaller, as they are in tuning: batch / 8, then growing.
    """
    asked: list[Batch] = [np.zeros((0, len(known.space.shape)), np.int64)]
    costs_s: NDArray[np.float64] = np.zeros(0)
    while len(costs_s) < trials:
        wanted = min(batch, max(1, batch // 8, len(costs_s) // 2), trials - len(costs_s))
        rows = proposer.ask(wanted)
        if not len(rows):
            break
        found = known.costs(rows)
        proposer.tell(rows, found)
        asked.append(rows)
        costs_s = np.concatenate([costs_s, found])
    return np.concatenate(asked), costs_s
