"""Spaces of several algorithms for one operator: the search chooses between them by measurement.

A configuration names an algorithm and has the choices of that algorithm's own space; the columns of the other
algorithms are 0. So every row stands for one program, and programs are compared whatever computes them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from boards.target import Target
from cross.errors import ScheduleError
from cross.expression.operator import Operator
from cross.schedule.primitives import Schedule
from cross.schedule.space import (
    SPACE_VERSION,
    Batch,
    Choices,
    Configuration,
    Knob,
    ScheduleSpace,
)

ALGORITHM = "algorithm"
SWITCHED = 1 / 16  # of the neighbours in a mutation


class AlternativeSpaces(ScheduleSpace):
    """The spaces of an operator's algorithms by name; the untuned program is the first one's."""

    def __init__(self, operator: Operator, target: Target, spaces: Mapping[str, ScheduleSpace]) -> None:
        labels = tuple(spaces)
        choices = tuple((number,) for number in range(len(labels)))
        knobs = [Knob(ALGORITHM, (ALGORITHM,), choices, True, labels)]
        self.spaces = tuple(spaces.values())
        self._columns: dict[int, slice] = {}
        # The first algorithm's knobs come last, where enumerating in index order starts.
        for number in reversed(range(len(labels))):
            self._columns[number] = slice(len(knobs), len(knobs) + len(self.spaces[number].knobs))
            knobs += [
                Knob(f"{labels[number]} {knob.name}", knob.fields, knob.choices, knob.structural, knob.labels)
                for knob in self.spaces[number].knobs
            ]
        super().__init__(operator, target, tuple(knobs), (), self._no_schedule, {})

    @staticmethod
    def _no_schedule(structure: Mapping[str, int]) -> Schedule:
        raise ScheduleError("a schedule belongs to one algorithm: ask the space of the configuration for it")

    @cached_property
    def size(self) -> int:
        """Number of configurations before constraints."""
        return sum(space.size for space in self.spaces)

    @cached_property
    def key(self) -> str:
        """Sixteen hex digits: the algorithms and the keys of their spaces."""
        content = [SPACE_VERSION, self.knobs[0].labels, [space.key for space in self.spaces]]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:16]

    def restricted(self, choices: Choices) -> AlternativeSpaces:
        """See ScheduleSpace.restricted. Every algorithm stays."""
        unknown = choices.keys() - {knob.name for knob in self.knobs[1:]}
        if unknown:
            raise ScheduleError(f"unknown knobs {', '.join(sorted(unknown))}")
        spaces = {}
        for label, space in zip(self.knobs[0].labels, self.spaces, strict=True):
            names = {f"{label} {knob.name}": knob.name for knob in space.knobs}
            own = {names[name]: kept for name, kept in choices.items() if name in names}
            spaces[label] = space.restricted(own)
        return AlternativeSpaces(self.operator, self.target, spaces)

    def columns(self, number: int) -> slice:
        """The columns of an algorithm's knobs."""
        return self._columns[number]

    def alternative(self, structure: tuple[int, ...]) -> tuple[ScheduleSpace, tuple[int, ...]]:
        """The space of a structure's algorithm, and the structure within it."""
        columns = self._columns[structure[0]]
        places = zip(self.structural, structure, strict=True)
        return self.spaces[structure[0]], tuple(
            value for position, value in places if columns.start <= position < columns.stop
        )

    def structures(self) -> Iterator[tuple[int, ...]]:
        """Every combination of structural choices, algorithm by algorithm."""
        for number, space in enumerate(self.spaces):
            columns = self._columns[number]
            for inner in space.structures():
                chosen = iter(inner)
                own = (columns.start <= position < columns.stop for position in self.structural[1:])
                yield number, *(next(chosen) if mine else 0 for mine in own)

    def values(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """The value of every field, [N] each, of rows of one algorithm.

        Raises:
            ScheduleError: rows of several algorithms, whose fields differ.
        """
        numbers = np.unique(batch[:, 0])
        if len(numbers) != 1:
            raise ScheduleError(f"values of one algorithm at a time, found rows of {len(numbers)}")
        number = int(numbers[0])
        return self.spaces[number].values(batch[:, self._columns[number]])

    def valid(self, batch: Batch) -> NDArray[np.bool_]:
        """Which rows obey their algorithm's constraints and have 0 in the columns of the others, [N]."""
        result = np.zeros(len(batch), dtype=np.bool_)
        for number, rows in self._by_algorithm(batch):
            foreign = np.ones(len(self.knobs), dtype=np.bool_)
            foreign[0] = foreign[self._columns[number]] = False
            inner = batch[rows, self._columns[number]]
            result[rows] = self.spaces[number].valid(inner) & ~batch[rows][:, foreign].any(axis=1)
        return result

    def ids(self, batch: Batch) -> NDArray[np.uint64]:
        """A number per configuration, [N]: the algorithms' ids one after the other."""
        result = np.zeros(len(batch), dtype=np.uint64)
        start = 0
        for number, space in enumerate(self.spaces):
            rows = np.flatnonzero(batch[:, 0] == number)
            with np.errstate(over="ignore"):
                result[rows] = space.ids(batch[rows, self._columns[number]]) + np.uint64(start % 2**64)
            start += space.size
        return result

    def sample(self, rng: np.random.Generator, count: int, attempts: int = 200) -> Batch:
        """Up to `count` valid configurations, as many of each algorithm (but for one), [N, K]."""
        turns = (np.arange(count) + rng.integers(len(self.spaces))) % len(self.spaces)
        shares = np.bincount(turns, minlength=len(self.spaces))
        drawn = [
            self.embedded(number, space.sample(rng, int(share), attempts))
            for (number, space), share in zip(enumerate(self.spaces), shares, strict=True)
        ]
        return rng.permutation(np.concatenate(drawn))

    def mutate(self, rng: np.random.Generator, batch: Batch, attempts: int = 4) -> Batch:
        """A valid neighbour of every configuration: a knob redrawn, or now and then another algorithm."""
        result = batch.copy()
        for number, rows in self._by_algorithm(batch):
            inner = self.spaces[number].mutate(rng, batch[rows, self._columns[number]], attempts)
            result[rows] = self.embedded(number, inner)
        switched = np.flatnonzero(rng.random(len(batch)) < SWITCHED)
        drawn = self.sample(rng, len(switched))
        result[switched[: len(drawn)]] = drawn
        return result

    def default(self) -> Configuration:
        """The untuned program of the first algorithm."""
        return self.defaults()[0]

    def defaults(self) -> list[Configuration]:
        """The untuned program of every algorithm."""
        found = []
        for number, space in enumerate(self.spaces):
            row = self.embedded(number, space.batch([space.default()]))[0]
            found.append(self.configuration(row))
        return found

    def fields(self, configuration: Configuration) -> dict[str, int]:
        """The value of every field of the configuration's algorithm."""
        number = configuration.indices[0]
        return self.spaces[number].fields(self._inner(configuration))

    def describe(self, configuration: Configuration) -> dict[str, list[int]]:
        """The algorithm's number, and knob values by knob name."""
        number = configuration.indices[0]
        return {ALGORITHM: [number], **self.spaces[number].describe(self._inner(configuration))}

    def parse(self, described: Mapping[str, object]) -> Configuration:
        """The configuration that `describe` described.

        Raises:
            ScheduleError: an unknown algorithm, or what its space refuses.
        """
        chosen = described.get(ALGORITHM)
        numbers = [[number] for number in range(len(self.spaces))]
        if not isinstance(chosen, list | tuple) or list(chosen) not in numbers:
            raise ScheduleError(f"knob {ALGORITHM}: {chosen!r} is none of its {len(numbers)} choices")
        number = int(chosen[0])
        rest = {name: value for name, value in described.items() if name != ALGORITHM}
        inner = self.spaces[number].batch([self.spaces[number].parse(rest)])
        return self.configuration(self.embedded(number, inner)[0])

    def _inner(self, configuration: Configuration) -> Configuration:
        return Configuration(configuration.indices[self._columns[configuration.indices[0]]])

    def embedded(self, number: int, rows: Batch) -> Batch:
        """Rows of one algorithm's space as rows of this one."""
        result = np.zeros((len(rows), len(self.knobs)), dtype=np.int64)
        result[:, 0] = number
        result[:, self._columns[number]] = rows
        return result

    def _by_algorithm(self, batch: Batch) -> Iterator[tuple[int, NDArray[np.intp]]]:
        for number in range(len(self.spaces)):
            rows = np.flatnonzero(batch[:, 0] == number)
            if len(rows):
                yield number, rows
