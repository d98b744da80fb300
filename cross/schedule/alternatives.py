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
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.target import Target
from cross.errors import ScheduleError
from cross.expression.language.operator import Operator
from cross.schedule.knobs import structural
from cross.schedule.primitives import Schedule
from cross.schedule.space import (
    SPACE_VERSION,
    Batch,
    Choices,
    Configuration,
    Part,
    ScheduleSpace,
)

ALGORITHM = "algorithm"
SWITCHED = 1 / 16  # of the neighbours in a mutation
FEWER = 0.97
"""Of the first algorithm's cycles, because the others round more. Measured on 53 convolutions of six networks
on a Zen 4: choices lose 0.4 % in the mean with it, and with 0.9 1.8 %, up to half of the time of one."""


class AlternativeSpaces(ScheduleSpace):
    """The spaces of an operator's algorithms by name; the untuned program is that of the one that is expected
    to be fastest, the first one where that is not known."""

    def __init__(self, operator: Operator, target: Target, spaces: Mapping[str, ScheduleSpace]) -> None:
        labels = tuple(spaces)
        knobs = [structural(ALGORITHM, labels)]
        width = 1 + sum(len(space.knobs) for space in spaces.values())
        parts = []
        # The first algorithm's knobs come last, where enumerating in index order starts.
        for number, (label, space) in reversed(list(enumerate(spaces.items()))):
            columns = slice(len(knobs), len(knobs) + len(space.knobs))
            parts.append(Part(label, space, number, columns, width))
            knobs += [replace(knob, name=f"{label} {knob.name}") for knob in space.knobs]
        self._parts = tuple(reversed(parts))
        super().__init__(operator, target, tuple(knobs), (), self._no_schedule)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The algorithms, in the order of the knob that names them."""
        return self._parts

    def part_of(self, row: NDArray[np.int64]) -> Part:
        """See ScheduleSpace.part_of."""
        return self.parts[int(row[0])]

    @staticmethod
    def _no_schedule(structure: Mapping[str, int]) -> Schedule:
        raise ScheduleError("a schedule belongs to one algorithm: ask the space of the configuration for it")

    @cached_property
    def size(self) -> int:
        """Number of configurations before constraints."""
        return sum(part.space.size for part in self.parts)

    @cached_property
    def key(self) -> str:
        """Sixteen hex digits: the algorithms and the keys of their spaces."""
        content = [SPACE_VERSION, self.knobs[0].labels, [part.space.key for part in self.parts]]
        return hashlib.sha256(json.dumps(content, separators=(",", ":")).encode()).hexdigest()[:16]

    def restricted(self, choices: Choices) -> AlternativeSpaces:
        """See ScheduleSpace.restricted. Every algorithm stays."""
        unknown = choices.keys() - {knob.name for knob in self.knobs[1:]}
        if unknown:
            raise ScheduleError(f"unknown knobs {', '.join(sorted(unknown))}")
        spaces = {}
        for part in self.parts:
            names = {f"{part.label} {knob.name}": knob.name for knob in part.space.knobs}
            own = {names[name]: kept for name, kept in choices.items() if name in names}
            spaces[part.label] = part.space.restricted(own)
        return AlternativeSpaces(self.operator, self.target, spaces)

    def alternative(self, structure: tuple[int, ...]) -> tuple[ScheduleSpace, tuple[int, ...]]:
        """The space of a structure's algorithm, and the structure within it."""
        part = self.parts[structure[0]]
        places = zip(self.structural, structure, strict=True)
        return part.space, tuple(
            value for position, value in places if part.columns.start <= position < part.columns.stop
        )

    def structures(self) -> Iterator[tuple[int, ...]]:
        """Every combination of structural choices, algorithm by algorithm."""
        for number, part in enumerate(self.parts):
            columns = part.columns
            for inner in part.space.structures():
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
        part = self.parts[int(numbers[0])]
        return part.space.values(part.of(batch))

    def valid(self, batch: Batch) -> NDArray[np.bool_]:
        """Which rows obey their algorithm's constraints and have 0 in the columns of the others, [N]."""
        result = np.zeros(len(batch), dtype=np.bool_)
        for part, rows in self._by_algorithm(batch):
            mine = batch[rows]
            result[rows] = part.space.valid(part.of(mine)) & ~mine[:, ~part.own].any(axis=1)
        return result

    def ids(self, batch: Batch) -> NDArray[np.uint64]:
        """A number per configuration, [N]: the algorithms' ids one after the other."""
        result = np.zeros(len(batch), dtype=np.uint64)
        start = 0
        for part in self.parts:
            rows = np.flatnonzero(part.has(batch))
            with np.errstate(over="ignore"):
                result[rows] = part.space.ids(part.of(batch[rows])) + np.uint64(start % 2**64)
            start += part.space.size
        return result

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        """Up to `count` valid configurations, as many of each algorithm (but for one), [N, K]."""
        turns = (np.arange(count) + rng.integers(len(self.parts))) % len(self.parts)
        shares = np.bincount(turns, minlength=len(self.parts))
        drawn = [
            part.embedded(part.space.sample(rng, int(share)))
            for part, share in zip(self.parts, shares, strict=True)
        ]
        return rng.permutation(np.concatenate(drawn))

    def mutate(self, rng: np.random.Generator, batch: Batch) -> Batch:
        """A valid neighbour of every configuration: a knob redrawn, or now and then another algorithm."""
        result = batch.copy()
        for part, rows in self._by_algorithm(batch):
            result[rows] = part.embedded(part.space.mutate(rng, part.of(batch[rows])))
        switched = np.flatnonzero(rng.random(len(batch)) < SWITCHED)
        drawn = self.sample(rng, len(switched))
        result[switched[: len(drawn)]] = drawn
        return result

    def default(self) -> Configuration:
        """The untuned program of the first algorithm, or of one that is estimated to take clearly less."""
        cycles = [part.space.cycles for part in self.parts]
        number = int(np.argmin([cycles[0] * FEWER, *cycles[1:]])) if all(cycles) else 0
        return self.defaults()[number]

    def defaults(self) -> list[Configuration]:
        """The untuned program of every algorithm."""
        rows = [part.embedded(part.space.batch([part.space.default()]))[0] for part in self.parts]
        return [self.configuration(row) for row in rows]

    def fields(self, configuration: Configuration) -> dict[str, int]:
        """The value of every field of the configuration's algorithm."""
        space, inner = self._inner(configuration)
        return space.fields(inner)

    def describe(self, configuration: Configuration) -> dict[str, list[int]]:
        """The algorithm's number, and knob values by knob name."""
        space, inner = self._inner(configuration)
        return {ALGORITHM: [configuration.indices[0]], **space.describe(inner)}

    def parse(self, described: Mapping[str, object]) -> Configuration:
        """The configuration that `describe` described.

        Raises:
            ScheduleError: an unknown algorithm, or what its space refuses.
        """
        chosen = described.get(ALGORITHM)
        numbers = [[number] for number in range(len(self.parts))]
        if not isinstance(chosen, list | tuple) or list(chosen) not in numbers:
            raise ScheduleError(f"knob {ALGORITHM}: {chosen!r} is none of its {len(numbers)} choices")
        part = self.parts[int(chosen[0])]
        rest = {name: value for name, value in described.items() if name != ALGORITHM}
        inner = part.space.batch([part.space.parse(rest)])
        return self.configuration(part.embedded(inner)[0])

    def _inner(self, configuration: Configuration) -> tuple[ScheduleSpace, Configuration]:
        """The space of the configuration's algorithm, and the configuration there."""
        part = self.parts[configuration.indices[0]]
        return part.space, Configuration(configuration.indices[part.columns])

    def _by_algorithm(self, batch: Batch) -> Iterator[tuple[Part, NDArray[np.intp]]]:
        for part in self.parts:
            rows = np.flatnonzero(part.has(batch))
            if len(rows):
                yield part, rows
