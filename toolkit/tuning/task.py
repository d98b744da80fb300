"""What is tuned: an operator, its schedule space, the features of its programs, the key of its records."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cross.expression.language.operator import Operator
from cross.loopnest.program import Programs
from cross.schedule.space import ScheduleSpace
from toolkit.explore.annealing import Features
from toolkit.explore.proposer import Proposer
from toolkit.explore.space import Identify
from toolkit.records import RecordKey


class Task(msgspec.Struct, frozen=True):
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
    space: ScheduleSpace
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


class OperatorTask(Task, frozen=True, kw_only=True):
    """A task whose space is the schedule space of an operator; `programs` are that space's loop nests."""

    programs: Programs

    @property
    def operator(self) -> Operator:
        """Whose schedule space it is."""
        return self.programs.space.operator
