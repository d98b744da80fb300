"""What is tuned: an operator, its schedule space, the features of its programs, the key of its records."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from cross.expression.language.operator import Operator
from cross.loopnest.program import Programs
from toolkit.explore.annealing import Features
from toolkit.explore.proposer import Proposer
from toolkit.explore.space import Batch, Identify, SearchSpace
from toolkit.records import RecordKey


class TunableSpace(SearchSpace, Protocol):
    """What tuning needs of a schedule space beyond what the search does."""

    def default(self) -> Any:
        """The configuration to use when nothing was measured."""
        ...

    def defaults(self) -> list[Any]:
        """`default` and the untuned configurations of the other algorithms, to be measured first."""
        ...

    def configuration(self, row: NDArray[np.int64]) -> Any:
        """One row of a batch."""
        ...

    def batch(self, configurations: list[Any]) -> Batch:
        """Configurations as rows."""
        ...

    def describe(self, configuration: Any) -> dict[str, Any]:
        """A configuration as JSON-able data."""
        ...

    def parse(self, described: dict[str, Any]) -> Any:
        """The configuration that `describe` wrote. Raises ScheduleError."""
        ...


@dataclass(frozen=True, slots=True)
class Task:
    """One operator to tune; `name` is for messages.

    `weight`: how often the model computes it. Operators of one `kind` reach similar throughputs.
    `description`: the operator as text (cross.expression.description), kept beside its records, or empty.
    `identify` tells which configurations make the same program; None: all make different ones.
    `rounds` begins the rounds that come before the search (toolkit.explore.rounds), or, with `rounds_alone`,
    instead of it; `reused`, the key of the operator whose program they begin with, goes into the records, and
    so does `bridge`: no model has the operator.
    """

    name: str
    flops: int
    space: TunableSpace
    features: Features
    key: RecordKey
    weight: float = 1.0
    kind: str = ""
    description: str = ""
    identify: Identify | None = None
    rounds: Callable[[], Proposer] | None = None
    rounds_alone: bool = False
    reused: str = ""
    bridge: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorTask(Task):
    """A task whose space is the schedule space of an operator; `programs` are that space's loop nests."""

    programs: Programs

    @property
    def operator(self) -> Operator:
        """Whose schedule space it is."""
        return self.programs.space.operator
