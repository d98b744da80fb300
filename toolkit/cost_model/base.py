"""The contract of a cost model: fit on what was measured, score what was not."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Protocol, get_args

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.float32]
"""Features [N, F], scores [N] or offsets [N]."""
Costs = NDArray[np.float64]
"""Seconds per call [N]; NaN where the run failed."""
Groups = NDArray[np.int64]
"""Which operator (on which target) each row is from [N]."""

Objective = Literal["rank", "regression"]


class CostModel(Protocol):
    """f̂ of the papers, seen from the search: only the order of its scores matters."""

    def fit(
        self, features: Rows, costs_s: Costs, groups: Groups | None = None, offsets: Rows | None = None
    ) -> None:
        """Learn from every measurement so far, replacing what was learnt before.

        features: float32 [N, F], N >= 1; costs_s: float64 [N], seconds per call, NaN where the run failed.
        A failure is worse than every measured time of its group.
        groups: int64 [N]; None: all rows are from one operator. Times of different groups are never compared:
        each is taken relative to the best of its group, and ranks are learnt within groups.
        offsets: float32 [N], scores that another model gives already; this one learns what to add to them,
        and `predict` gives what it adds. Raises ValueError when the lengths differ.
        """
        ...

    def predict(self, features: Rows) -> Rows:
        """Scores, float32 [N], of features float32 [N, F]: higher is predicted faster."""
        ...


class Saveable(CostModel, Protocol):
    """A cost model that can be written to a file (model_file.py)."""

    kind: ClassVar[str]

    def state(self) -> dict[str, Any]:
        """Everything that predicts, as msgpack-able data; `restore` of the class makes the model of it again.

        Models inside this one are under "members", as a list of their kinds and states.
        """
        ...


def throughput(costs_s: Costs, groups: Groups | None = None) -> NDArray[np.float64]:
    """The labels of models: best time of the group over each time, float64 [N] in (0, 1]; 0 for failures."""
    worked = np.isfinite(costs_s)
    labels = np.zeros(len(costs_s))
    group = np.zeros(len(costs_s), np.int64) if groups is None else np.unique(groups, return_inverse=True)[1]
    best_s = np.full(int(group.max(initial=0)) + 1, np.inf)
    np.minimum.at(best_s, group[worked], costs_s[worked])
    labels[worked] = best_s[group[worked]] / costs_s[worked]
    return labels


def check_lengths(
    features: Rows, costs_s: Costs, groups: Groups | None = None, offsets: Rows | None = None
) -> None:
    """Raise ValueError unless there is one cost, group and offset for each row of features."""
    rows = features.shape[:1]
    if features.ndim != 2 or costs_s.shape != rows or not len(costs_s):
        raise ValueError(
            "a cost model is fitted on features [N, F] and costs [N] with N >= 1: "
            f"found {features.shape} and {costs_s.shape}"
        )
    for name, given in (("groups", groups), ("offsets", offsets)):
        if given is not None and given.shape != rows:
            raise ValueError(f"a cost model is fitted with {name} {rows}, one a row: found {given.shape}")


def check_objective(objective: str) -> None:
    """Raise ValueError for what is no objective."""
    known = get_args(Objective)
    if objective not in known:
        expected = " or ".join(repr(name) for name in known)
        raise ValueError(f"objective: expected {expected}, found {objective!r}")
