"""The contract of features, their version, and the base of those that are read off loop nests."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from cross.loopnest.program import Programs
from cross.schedule.space import Batch

FEATURE_VERSION: Final = 2  # of the meaning of columns: a stored model is refused under another one

Knobs = Mapping[str, NDArray[np.int64]]
Table = NDArray[np.float32]


class Features(Protocol):
    """Numbers that describe configurations: call it with a batch, int64 [N, K] -> float32 [N, width]."""

    @property
    def kind(self) -> str:
        """One of toolkit.features.names.KINDS."""
        ...

    @property
    def width(self) -> int:
        """Number of columns."""
        ...

    @property
    def names(self) -> list[str]:
        """A name for each column."""
        ...

    def __call__(self, batch: Batch) -> Table: ...


class StructureFeatures(Protocol):
    """The features of all configurations that share one lowered nest."""

    @property
    def width(self) -> int: ...

    def features(self, knobs: Knobs, count: int) -> Table:
        """float32 [count, width] from one int64 [count] column for each knob."""
        ...


S = TypeVar("S", bound=StructureFeatures)


class NestFeatures(Generic[S]):
    """Features of the configurations of one space that are read off their nests: call it with a batch.

    Each structure has a describer, made when a row of that structure appears.
    """

    width: int

    def __init__(self, programs: Programs, describe: Callable[[tuple[int, ...]], S]) -> None:
        self.programs = programs
        self._describe = describe
        self._known: dict[tuple[int, ...], S] = {}

    def __call__(self, batch: Batch) -> Table:
        """float32 [N, width] for int64 [N, K]; rows of structures that have fewer columns end in zeros."""
        space = self.programs.space
        result = np.zeros((len(batch), self.width), dtype=np.float32)
        number = np.zeros(len(batch), dtype=np.int64)
        for position in space.structural:
            number = number * space.shape[position] + batch[:, position]
        for index, first in zip(*np.unique(number, return_index=True), strict=True):
            rows = np.flatnonzero(number == index)
            describer = self.describer(tuple(int(batch[first, place]) for place in space.structural))
            result[rows, : describer.width] = describer.features(space.values(batch[rows]), len(rows))
        return result

    def describer(self, structure: tuple[int, ...]) -> S:
        """The describer of a structure."""
        if structure not in self._known:
            self._known[structure] = self._describe(structure)
        return self._known[structure]

    def all(self) -> list[S]:
        """The describers of every structure of the space."""
        return [self.describer(structure) for structure in self.programs.space.structures()]
