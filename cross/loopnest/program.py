"""Programs of a space: every structure is lowered once, every configuration is only bound."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Final, TypeVar

from msgspec.structs import replace

from cross.loopnest.bind import ParametricNest, bind
from cross.loopnest.lower import lower
from cross.loopnest.margins import with_margins
from cross.loopnest.nodes import LoopNest
from cross.schedule.space import Batch, Configuration, ScheduleSpace

BOUND_PROGRAMS: Final = 256  # a few batches of 64
S = TypeVar("S")


class Programs:
    """g(e, s) up to code generation: the loop nests of a schedule space, lowered on demand and kept.

    Of concrete programs the latest BOUND_PROGRAMS are kept: a search binds a batch to tell which
    configurations make the same program, and whoever measures it asks for the same programs again.
    """

    def __init__(self, space: ScheduleSpace) -> None:
        self.space = space
        self._lowered: dict[tuple[int, ...], ParametricNest] = {}
        self._described: dict[tuple[tuple[int, ...], Callable[[LoopNest], Any]], Any] = {}
        self._bound = functools.lru_cache(BOUND_PROGRAMS)(self._bind)

    def structure(self, configuration: Configuration) -> tuple[int, ...]:
        """The choices of the structural knobs, which name a lowered nest."""
        return tuple(configuration.indices[position] for position in self.space.structural)

    def structures(self, batch: Batch) -> Batch:
        """The choices of the structural knobs for each row of a batch, int64 [N, structural knobs]."""
        return batch[:, list(self.space.structural)]

    def parametric(self, structure: tuple[int, ...]) -> ParametricNest:
        """The nest of a structure, with knobs open."""
        if structure not in self._lowered:
            space, inner = self.space.alternative(structure)
            fields: dict[str, int] = {}
            for position, choice in zip(space.structural, inner, strict=True):
                knob = space.knobs[position]
                fields.update(zip(knob.fields, knob.choices[choice], strict=True))
            lowered = lower(space.program, space.schedule(fields))
            nest = replace(lowered.nest, flops=self.space.operator.flops)
            self._lowered[structure] = replace(lowered, nest=nest)
        return self._lowered[structure]

    def described(self, structure: tuple[int, ...], describe: Callable[[LoopNest], S]) -> S:
        """What `describe` makes of a structure's nest: made once, whoever asks for it."""
        key = structure, describe
        if key not in self._described:
            self._described[key] = describe(self.parametric(structure).nest)
        found: S = self._described[key]
        return found

    def nest(self, configuration: Configuration) -> LoopNest:
        """The concrete program of a configuration.

        Raises:
            ScheduleError: the configuration does not belong to the space.
        """
        return self._bound(configuration)

    def _bind(self, configuration: Configuration) -> LoopNest:
        bound = bind(self.parametric(self.structure(configuration)), self.space.fields(configuration))
        return with_margins(bound)
