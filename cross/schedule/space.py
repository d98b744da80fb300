"""The SPACE of ways: knobs, constraints on them, and batches of configurations as integer matrices.

A configuration is one choice per knob. A batch of N configurations of K knobs is an int64 matrix [N, K] of
choice indices; everything a search does to configurations is done to such matrices at once.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property

import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.target import Target
from cross.errors import ScheduleError
from cross.expression.language.operator import Operator
from cross.schedule.knobs import Knob
from cross.schedule.primitives import Schedule
from cross.schedule.tiling import StageKnobs, TiledStage

SPACE_VERSION = 2
DRAWS = 200  # of random configurations, until valid ones count as all but impossible to hit
MUTATIONS = 4  # of one configuration, until it stays as it is
DIRECT = "direct"  # the algorithm that is the definition of the operator

Batch = NDArray[np.int64]
Values = Mapping[str, NDArray[np.int64]]
Choices = Mapping[str, Sequence[tuple[int, ...]]]
"""Some choices of knobs, as values, by knob name."""


class Constraint(msgspec.Struct, frozen=True):
    """A rule that every legal configuration obeys, evaluated for a whole batch at once.

    `needed` is what of a limit configurations are expected to take, [N], where the rule is about that.
    """

    name: str
    rule: str
    holds: Callable[[Values], NDArray[np.bool_]]
    needed: Callable[[Values], NDArray[np.int64]] | None = None


class Configuration(msgspec.Struct, frozen=True):
    """s in the AutoTVM paper: the index of the choice of every knob, in knob order."""

    indices: tuple[int, ...]


class Part(msgspec.Struct, frozen=True, eq=False):
    """One algorithm of a space: its name, its own space, and where the knobs of that stand among the whole's.

    `number` is its choice of the knob that names the algorithm, the whole's first one; None where the space
    knows one algorithm only and so has no such knob.
    """

    label: str
    space: ScheduleSpace
    number: int | None
    columns: slice
    width: int

    def of(self, batch: Batch) -> Batch:
        """Rows of the whole, [N, K], as rows of the part; they must be the part's."""
        return batch[:, self.columns]

    def has(self, batch: Batch) -> NDArray[np.bool_]:
        """Which rows of the whole are the part's, [N]."""
        if self.number is None:
            return np.ones(len(batch), np.bool_)
        return np.asarray(batch[:, 0] == self.number)

    @property
    def own(self) -> NDArray[np.bool_]:
        """The columns that say something of the part's configurations, [K]: its knobs, and its choice."""
        found = np.zeros(self.width, np.bool_)
        found[self.columns] = True
        if self.number is not None:
            found[0] = True
        return found

    def embedded(self, rows: Batch) -> Batch:
        """Rows of the part as rows of the whole, [N, K]: 0 in the columns of other parts."""
        if self.number is None:
            return rows
        result = np.zeros((len(rows), self.width), np.int64)
        result[:, 0] = self.number
        result[:, self.columns] = rows
        return result


class ScheduleSpace:
    """S_e: all schedules of an operator for a target.

    Args:
        operator: what is computed.
        target: what for.
        knobs: the decisions.
        constraints: rules between knobs; an illegal configuration is never compiled.
        build: the schedule for given values of the structural fields; its factors name the other fields.
        program: the operator as the schedule sees it, where rules have rewritten it; None: as it is.
        tiled: the stages whose loops knobs tile, in program order.
    """

    def __init__(
        self,
        operator: Operator,
        target: Target,
        knobs: tuple[Knob, ...],
        constraints: tuple[Constraint, ...],
        build: Callable[[Mapping[str, int]], Schedule],
        *,
        program: Operator | None = None,
        tiled: Sequence[StageKnobs] = (),
    ) -> None:
        self.operator = operator
        self.program = operator if program is None else program
        self.target = target
        self.knobs = knobs
        self.constraints = constraints
        self._build = build
        self._tiled = tuple(tiled)
        self.cycles = 0.0  # of the untuned program on one core, where its sketch estimates them
        self._tables = [np.array(knob.choices, dtype=np.int64) for knob in knobs]

    def __len__(self) -> int:
        return min(self.size, 2**63 - 1)

    @cached_property
    def shape(self) -> tuple[int, ...]:
        """Number of choices per knob."""
        return tuple(len(knob.choices) for knob in self.knobs)

    @cached_property
    def size(self) -> int:
        """Number of configurations before constraints."""
        return math.prod(self.shape)

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The algorithms of the space; a space of one algorithm is its own part."""
        width = len(self.knobs)
        return (Part(DIRECT, self, None, slice(0, width), width),)

    def part_of(self, row: NDArray[np.int64]) -> Part:
        """The algorithm of a configuration, int64 [K]."""
        (part,) = self.parts
        return part

    @cached_property
    def key(self) -> str:
        """Sixteen hex digits of the space: the operator and the program that computes it, knobs and their
        choices, and SPACE_VERSION."""
        content = [
            [knob.name, list(knob.fields), [list(choice) for choice in knob.choices]] for knob in self.knobs
        ]
        programs = dict.fromkeys((self.operator.key, self.program.key))  # in most spaces one and the same
        text = json.dumps([SPACE_VERSION, *programs, content], separators=(",", ":"))
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @cached_property
    def structural(self) -> tuple[int, ...]:
        """Positions of the knobs that change the structure of the loops."""
        return tuple(position for position, knob in enumerate(self.knobs) if knob.structural)

    def structures(self) -> Iterator[tuple[int, ...]]:
        """Every combination of structural choices."""
        yield from itertools.product(*(range(self.shape[position]) for position in self.structural))

    def alternative(self, structure: tuple[int, ...]) -> tuple[ScheduleSpace, tuple[int, ...]]:
        """The space that lowers a structure, and the structure within it: see alternatives.py."""
        return self, structure

    def restricted(self, choices: Choices) -> ScheduleSpace:
        """This space with only the given choices of the knobs that are named, in the order given.

        Raises:
            ScheduleError: there is no such knob, or it has no such choice.
        """
        unknown = choices.keys() - {knob.name for knob in self.knobs}
        if unknown:
            raise ScheduleError(f"unknown knobs {', '.join(sorted(unknown))}")
        knobs = tuple(
            knob.restricted(choices[knob.name]) if knob.name in choices else knob for knob in self.knobs
        )
        space = ScheduleSpace(
            self.operator,
            self.target,
            knobs,
            self.constraints,
            self._build,
            program=self.program,
            tiled=self._tiled,
        )
        space.cycles = self.cycles
        return space

    def schedule(self, structure: Mapping[str, int]) -> Schedule:
        """The schedule of a structure; factors that name fields are left open."""
        return self._build(structure)

    def values(self, batch: Batch) -> dict[str, NDArray[np.int64]]:
        """The value of every field, [N] each."""
        result: dict[str, NDArray[np.int64]] = {}
        for position, knob in enumerate(self.knobs):
            chosen = self._tables[position][batch[:, position]]
            for column, field in enumerate(knob.fields):
                result[field] = chosen[:, column]
        return result

    def valid(self, batch: Batch) -> NDArray[np.bool_]:
        """Which configurations obey every constraint, [N]."""
        result = np.ones(len(batch), dtype=np.bool_)
        values = self.values(batch)
        for constraint in self.constraints:
            result &= constraint.holds(values)
        return result

    def needs(self, configuration: Configuration) -> dict[str, int]:
        """How much of its limit each constraint expects a configuration to take, by the constraint's name."""
        constraints = self.part_of(np.array(configuration.indices)).space.constraints
        values = self.values(self.batch([configuration]))
        return {item.name: int(item.needed(values)[0]) for item in constraints if item.needed is not None}

    def ids(self, batch: Batch) -> NDArray[np.uint64]:
        """A number per configuration, [N]: mixed radix, unique in spaces of fewer than 2**64 points."""
        result = np.zeros(len(batch), dtype=np.uint64)
        with np.errstate(over="ignore"):
            for position, count in enumerate(self.shape):
                # An odd multiplier beyond 2**64 points keeps every knob visible in the hash.
                radix = count if self.size < 2**64 else count | 1
                result = result * np.uint64(radix) + batch[:, position].astype(np.uint64)
        return result

    def sample(self, rng: np.random.Generator, count: int) -> Batch:
        """Up to `count` valid configurations drawn uniformly, with repetition, [N, K].

        Fewer than `count` rows come back only where random draws all but never hit a valid one.
        """
        found: list[Batch] = []
        have = 0
        for _ in range(DRAWS):
            drawn = self._draw(rng, max(4 * (count - have), 64))
            drawn = drawn[self.valid(drawn)]
            found.append(drawn[: count - have])
            have += len(found[-1])
            if have >= count:
                break
        return np.concatenate(found)

    def _draw(self, rng: np.random.Generator, count: int) -> Batch:
        batch = np.zeros((count, len(self.shape)), np.int64)
        for position, choices in enumerate(self.shape):
            batch[:, position] = rng.integers(0, choices, count)
        return batch

    def mutate(self, rng: np.random.Generator, batch: Batch) -> Batch:
        """A valid neighbour of every configuration: one knob redrawn, [N, K]. Rows without luck stay."""
        result = batch.copy()
        free = np.array([position for position, count in enumerate(self.shape) if count > 1])
        if len(free) == 0:
            return result
        counts = np.array(self.shape)
        pending = np.arange(len(batch))
        for _ in range(MUTATIONS):
            rows = batch[pending]
            knob = free[rng.integers(0, len(free), len(pending))]
            here = np.arange(len(pending))
            shift = rng.integers(1, counts[knob])
            rows[here, knob] = (rows[here, knob] + shift) % counts[knob]
            good = self.valid(rows)
            result[pending[good]] = rows[good]
            pending = pending[~good]
            if len(pending) == 0:
                break
        return result

    def neighbours(self, row: NDArray[np.int64], column: int, most: int) -> Batch:
        """The configuration, int64 [K], with the nearest other choices of one knob: valid ones of `most`."""
        knob, own = self.knobs[column], int(row[column])
        order = np.argsort(knob.distances(knob.choices[own]), kind="stable")
        return self.varied(row, column, order[order != own][:most])

    def varied(self, row: NDArray[np.int64], column: int, choices: Sequence[int] | NDArray[np.intp]) -> Batch:
        """The configuration, int64 [K], with each of these choices of one knob, where that is valid."""
        rows = np.repeat(row[None], len(choices), axis=0)
        rows[:, column] = choices
        return rows[self.valid(rows)]

    @cached_property
    def tiles(self) -> tuple[TiledStage, ...]:
        """The stages whose loops knobs tile, in program order."""
        return tuple(stage.tiles(self.knobs) for stage in self._tiled)

    def default(self) -> Configuration:
        """The untuned program: the preferred choices, made smaller only where a constraint asks for it."""
        row = [knob.nearest(knob.preferred or knob.choices[0]) for knob in self.knobs]
        batch = np.array([row], dtype=np.int64)
        for position, knob in enumerate(self.knobs):
            if self.valid(batch)[0]:
                break
            if not knob.structural:
                batch[0, position] = np.maximum(knob.choices, 1).prod(axis=1).argmin()
        for position, index in enumerate(row):  # what need not have been made smaller
            larger = batch.copy()
            larger[0, position] = index
            if self.valid(larger)[0]:
                batch = larger
        if not self.valid(batch)[0]:
            batch = self.sample(np.random.default_rng(0), 1)
        if len(batch) == 0:
            raise ScheduleError(f"operator {self.operator.name}: no configuration obeys the constraints")
        return self.configuration(batch[0])

    def defaults(self) -> list[Configuration]:
        """The untuned program of every algorithm that the space knows: see alternatives.py."""
        return [self.default()]

    def configuration(self, row: NDArray[np.int64]) -> Configuration:
        """One row of a batch."""
        return Configuration(tuple(int(index) for index in row))

    def batch(self, configurations: list[Configuration]) -> Batch:
        """Configurations as a matrix [N, K]."""
        rows = [item.indices for item in configurations]
        return np.array(rows, dtype=np.int64).reshape(len(rows), len(self.knobs))

    def fields(self, configuration: Configuration) -> dict[str, int]:
        """The value of every field of one configuration."""
        values = self.values(self.batch([configuration]))
        return {name: int(column[0]) for name, column in values.items()}

    def describe(self, configuration: Configuration) -> dict[str, list[int]]:
        """Knob values by knob name: what records store, stable while the knobs keep their names."""
        return {
            knob.name: list(knob.choices[index])
            for knob, index in zip(self.knobs, configuration.indices, strict=True)
        }

    def parse(self, described: Mapping[str, object]) -> Configuration:
        """The configuration that `describe` described.

        Raises:
            ScheduleError: a knob is missing, unknown, or has no such choice.
        """
        unknown = described.keys() - {knob.name for knob in self.knobs}
        if unknown:
            raise ScheduleError(f"unknown knobs {', '.join(sorted(unknown))}")
        indices = []
        for knob in self.knobs:
            value = described.get(knob.name)
            choice = tuple(value) if isinstance(value, list | tuple) else None
            if choice not in knob.choices:
                raise ScheduleError(f"knob {knob.name}: {value!r} is none of its {len(knob.choices)} choices")
            indices.append(knob.choices.index(choice))
        return Configuration(tuple(indices))
