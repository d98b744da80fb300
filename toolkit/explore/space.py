"""What the search needs from a schedule space, and the two ways to draw from one without repeating.

A batch of configurations is an int64 matrix [N, K]: one row a configuration, one column a knob, each entry
the index of a choice. `cross.schedule.ScheduleSpace` is such a space.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import Part

Batch = NDArray[np.int64]
Ids = NDArray[np.uint64]
Score = Callable[[Batch], NDArray[np.float32]]

Identify = Callable[[Batch], Ids]
"""One number for each configuration, [N, K], equal for those that count as the same."""

ENUMERATED_AT_ONCE: Final = 8192
_DRAWS: Final = 12  # rounds of sampling before a space counts as nearly exhausted
ENUMERABLE: Final = 1 << 18  # a nearly exhausted space up to this size is searched through instead


class SearchSpace(Protocol):
    """The part of ScheduleSpace that the search uses."""

    @property
    def size(self) -> int:
        """Number of configurations, valid or not; may exceed 64 bits."""
        ...

    @property
    def parts(self) -> Sequence[Part]:
        """The spaces side by side that it consists of; itself where it is one."""
        ...

    @property
    def shape(self) -> tuple[int, ...]:
        """Number of choices of each knob."""
        ...

    def sample(self, rng: np.random.Generator, n: int) -> Batch:
        """n valid configurations, repetitions allowed; fewer (even none) when valid ones are that rare."""
        ...

    def mutate(self, rng: np.random.Generator, batch: Batch) -> Batch:
        """A valid neighbour of each row: one knob drawn anew (the row itself where it has no neighbour)."""
        ...

    def valid(self, batch: Batch) -> NDArray[np.bool_]:
        """Which rows satisfy the constraints on the knobs."""
        ...

    def ids(self, batch: Batch) -> Ids:
        """One number for each row, equal for equal rows only."""
        ...


def components(space: SearchSpace, batch: Batch) -> Batch:
    """The choices that each row makes, int64 [N, K]: -1 in the columns of other parts than its own."""
    result = batch.copy()
    for part in space.parts:
        result[np.ix_(part.has(batch), ~part.own)] = -1
    return result


def enumerated(space: SearchSpace) -> Iterator[Batch]:
    """Every valid configuration in index order, the last knob fastest, in blocks of bounded size."""
    for part in space.parts:
        for start in range(0, part.space.size, ENUMERATED_AT_ONCE):
            stop = min(start + ENUMERATED_AT_ONCE, part.space.size)
            yield part.embedded(block(part.space, start, stop))


def block(space: SearchSpace, start: int, stop: int) -> Batch:
    """The valid ones among the configurations with mixed-radix index in [start, stop)."""
    index = np.arange(stop - start).astype(object) + start if stop > 1 << 62 else np.arange(start, stop)
    columns = []
    for choices in reversed(space.shape):
        columns.append((index % choices).astype(np.int64))
        index = index // choices
    batch = np.stack(columns[::-1], axis=1) if columns else np.zeros((stop - start, 0), np.int64)
    return batch[space.valid(batch)]


def first_of_each(ids: Ids) -> NDArray[np.intp]:
    """Positions of the first occurrence of each id, in order of appearance."""
    return np.sort(np.unique(ids, return_index=True)[1])


def draw_unseen(space: SearchSpace, rng: np.random.Generator, n: int, seen: Ids) -> Batch:
    """Up to n distinct random configurations whose ids are not in `seen`; fewer when no more can be found."""
    rows = np.zeros((0, len(space.shape)), np.int64)
    for _ in range(_DRAWS):
        if len(rows) >= n:
            break
        drawn = np.concatenate([rows, space.sample(rng, 2 * (n - len(rows)) + 8)])
        rows = fresh(space, drawn, seen)
    if len(rows) < n and space.size <= ENUMERABLE:
        everything = np.concatenate(list(enumerated(space)))
        left = fresh(space, everything, seen)
        rows = fresh(space, np.concatenate([rows, rng.permutation(left)]), seen)
    return rows[:n]


def fresh(space: SearchSpace, batch: Batch, seen: Ids) -> Batch:
    """The rows of a batch that are not in `seen`, each once, in order."""
    return unseen(batch, space.ids(batch), seen)


def unseen(batch: Batch, ids: Ids, seen: Ids) -> Batch:
    """The rows whose ids, [N], are not in `seen`, the first of each id, in order."""
    keep = first_of_each(ids)
    return batch[keep[~np.isin(ids[keep], seen)]]
