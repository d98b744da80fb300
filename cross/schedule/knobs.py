"""Knobs: the decisions of a schedule space."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from cross.errors import ScheduleError


class Knob(msgspec.Struct, frozen=True):
    """One decision: each choice gives an integer to every field.

    A tile-size knob of an axis has one field per tile level; a structural knob has one field that names
    a way to build the loops, described by `labels`. `preferred`: the values that the untuned program has, or
    the nearest choice to them; empty: the first choice.
    """

    name: str
    fields: tuple[str, ...]
    choices: tuple[tuple[int, ...], ...]
    structural: bool = False
    labels: tuple[str, ...] = ()
    preferred: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.choices:
            raise ScheduleError(f"knob {self.name} has no choice")

    def restricted(self, choices: Sequence[tuple[int, ...]]) -> Knob:
        """The same knob with only these choices. Raises ScheduleError for one that it has not."""
        kept = tuple(tuple(choice) for choice in choices)
        for choice in kept:
            if choice not in self.choices:
                raise ScheduleError(
                    f"knob {self.name}: {list(choice)} is none of its {len(self.choices)} choices"
                )
        labels = tuple(self.labels[self.choices.index(choice)] for choice in kept) if self.labels else ()
        return replace(self, choices=kept, labels=labels)

    def distances(self, wanted: Sequence[int]) -> NDArray[np.float64]:
        """How far the choices are from some values, [C]: the factors between them in log2, added up."""
        return ratios(np.array(self.choices), wanted)

    def nearest(self, wanted: Sequence[int]) -> int:
        """The choice whose values are nearest to the wanted ones in ratio, the first of equal ones."""
        return int(self.distances(wanted).argmin())


def structural(name: str, labels: tuple[str, ...], preferred: int = 0) -> Knob:
    """A knob that names one of several ways to build the loops."""
    return Knob(name, (name,), tuple((way,) for way in range(len(labels))), True, labels, (preferred,))


def single(name: str, values: Iterable[int], preferred: int, field: str = "") -> Knob:
    """A knob of one field, called as the knob is unless it is named."""
    return Knob(name, (field or name,), tuple((value,) for value in values), preferred=(preferred,))


def ratios(choices: NDArray[np.int64], wanted: Sequence[int]) -> NDArray[np.float64]:
    """How far each row, [C, V], is from some values: the factors between them in log2, added up, [C]."""
    table = np.log2(np.maximum(choices.astype(np.float64), 0.5))
    goal = np.log2(np.maximum(np.array(wanted, dtype=np.float64), 0.5))
    return np.asarray(np.abs(table - goal).sum(axis=1))
