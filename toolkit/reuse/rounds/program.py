"""A program to reuse, and what it says in the space of another operator."""

from __future__ import annotations

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cross.schedule.space import Configuration, Part, ScheduleSpace


class Program(msgspec.Struct, frozen=True):
    """A space and one of its configurations."""

    space: ScheduleSpace
    configuration: Configuration

    @property
    def row(self) -> NDArray[np.int64]:
        """The configuration, int64 [K]."""
        found: NDArray[np.int64] = self.space.batch([self.configuration])[0]
        return found


def same_algorithm(space: ScheduleSpace, reused: Program) -> tuple[Part, Program]:
    """The algorithm of the reused program in `space`, and that program within its own algorithm's space.

    If `space` does not have it: its last algorithm with the same knobs, such as Winograd's with other tiles,
    or else its first one.
    """
    source = reused.space.part_of(reused.row)
    row = source.of(reused.row[None])[0]
    program = replace(reused, space=source.space, configuration=source.space.configuration(row))
    same = [part for part in space.parts if part.label == source.label]
    alike = [part for part in space.parts if _knob_names(part.space) == _knob_names(source.space)]
    return (same or alike[-1:] or space.parts)[0], program


def _knob_names(space: ScheduleSpace) -> set[str]:
    """The names of a space's knobs, without the operator's."""
    return {bare_name(knob.name, space) for knob in space.knobs}


def inherited(space: ScheduleSpace, reused: Program) -> NDArray[np.int64]:
    """The configuration of `space` nearest to the reused one, knob by knob, int64 [K].

    Knobs are told by their names without the operator's; one that the reused program does not have keeps
    its untuned choice. Not always valid.
    """
    row: NDArray[np.int64] = space.batch([space.default()])[0]
    pairs = zip(reused.space.knobs, reused.configuration.indices, strict=True)
    known = {bare_name(knob.name, reused.space): knob.choices[index] for knob, index in pairs}
    for column, knob in enumerate(space.knobs):
        wanted = known.get(bare_name(knob.name, space))
        if wanted is not None and len(wanted) == len(knob.choices[0]):
            row[column] = knob.nearest(wanted)
    return row


def bare_name(name: str, space: ScheduleSpace) -> str:
    """A knob's name without the name of the operator's output, which stages are called after."""
    return name.removeprefix(space.program.output.name)
