"""The contract of a search: ask for configurations, tell what they cost.

Every proposer keeps to this, and tests/conformance/test_proposers.py runs one suite over all of them:
- `ask(n)` returns at most n valid, distinct configurations that were neither asked for nor told before, fewer
  near the end of a space and none when it is exhausted. A batch may be asked for while the one before is
  still being measured; fewer, or none, then also says that there will be more when its costs are told.
- `tell` accepts any configurations of the space, measured in this run or in an earlier one.
- The same seed and the same calls give the same answers.
- `predicted`, right after `ask`, says what a cost model thought of what was asked for.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.space import Batch, Identify, Ids, SearchSpace


class Predicted(NamedTuple):
    """Scores of configurations, float32 [M], higher is faster, by a model fitted to so many measured ones."""

    scores: NDArray[np.float32]
    fitted_to: int


class Proposer(Protocol):
    """Decides what to measure next."""

    def ask(self, n: int) -> Batch:
        """Up to n new configurations, int64 [M, K] with M <= n."""
        ...

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """Seconds per call of measured configurations, float64 [M], NaN where the run failed."""
        ...

    def predicted(self, batch: Batch) -> Predicted | None:
        """The scores of configurations, by the model that chose the last batch; None without one."""
        ...


class History:
    """What a proposer asked for and was told.

    `batch` and `costs_s` hold the told configurations in order, each once: one that is told again keeps its
    place and takes the new cost. `seen` holds the ids of all that must not be asked for any more. `identify`
    says which configurations count as the same; None: equal ones.
    """

    def __init__(self, space: SearchSpace, identify: Identify | None = None) -> None:
        self._space = space
        self.identify = identify or space.ids
        self.batch: Batch = np.zeros((0, len(space.shape)), np.int64)
        self.seen: Ids = np.zeros(0, np.uint64)
        self._ids: Ids = np.zeros(0, np.uint64)
        self.costs_s: NDArray[np.float64] = np.zeros(0)

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def pending(self) -> bool:
        """Whether a cost is still to be told."""
        return len(self.seen) > len(self._ids)

    def asked(self, batch: Batch) -> Batch:
        """Remember a batch as asked for; returns it."""
        self.seen = np.union1d(self.seen, self.identify(batch))
        return batch

    def told(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """Raises ValueError when a batch is not [M, K] with one cost for each row."""
        knobs = len(self._space.shape)
        if batch.ndim != 2 or batch.shape[1] != knobs or costs_s.shape != batch.shape[:1]:
            raise ValueError(
                f"tell: expected configurations [M, {knobs}] and costs [M], "
                f"found {batch.shape} and {costs_s.shape}"
            )
        ids = np.concatenate([self._ids, self.identify(batch)])
        costs = np.concatenate([self.costs_s, costs_s.astype(np.float64)])
        last = {int(key): cost for key, cost in zip(ids, costs, strict=True)}
        keep = np.sort(np.unique(ids, return_index=True)[1])
        self.batch = np.concatenate([self.batch, batch])[keep]
        self._ids = ids[keep]
        self.costs_s = np.array([last[int(key)] for key in self._ids], dtype=np.float64)
        self.seen = np.union1d(self.seen, ids)

    def fastest(self, n: int) -> Batch:
        """The at most n fastest configurations, fastest first; failures are never among them."""
        worked = np.flatnonzero(np.isfinite(self.costs_s))
        return self.batch[worked[np.argsort(self.costs_s[worked], kind="stable")[:n]]]


class Remembering:
    """The base of proposers that keep a History of all that they asked for and were told."""

    def __init__(self, space: SearchSpace, programs: Identify | None = None) -> None:
        self._space = space
        self._history = History(space, programs)

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """See Proposer.tell."""
        self._history.told(batch, costs_s)

    def predicted(self, batch: Batch) -> Predicted | None:
        """See Proposer.predicted."""
        return None
