"""The rule by which a reduced space is chosen: some choices of every knob, good and bad ones.

Each algorithm gets an equal share of the configurations. Its knobs begin with the choices of its fastest
measured program, and grow one choice at a time while the share allows it: next is the knob that has fewest
for its length (number of choices / log2(1 + length)). The first choice is that of the fastest measured
program, the second that of the untuned one; after these every so many-th one (`Size.random_every`) is drawn
at random and the others are those of the next fastest programs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from cross.schedule.knobs import Knob
from cross.schedule.space import Configuration, ScheduleSpace
from toolkit.explore.space import enumerated

RULE: Final = (
    "at most {most} configurations around {tuned} trials, an equal share for each algorithm; knobs grow "
    "evenly for their length while the share allows it; the fastest measured program's choice first, the "
    "untuned one's second, then {rest}"
)
Kept = dict[str, tuple[tuple[int, ...], ...]]


@dataclass(frozen=True, slots=True)
class Size:
    """At most `most` configurations around the fastest of `tuned` trials in the full space."""

    most: int
    tuned: int = 96
    random_every: int = 1

    @property
    def rule(self) -> str:
        """For people, and for the table's provenance."""
        mixed = f"those of the next fastest programs, but every {self.random_every}. at random"
        rest = mixed if self.random_every > 1 else "choices at random"
        return RULE.format(most=self.most, tuned=self.tuned, rest=rest)


def reduced_choices(
    space: ScheduleSpace, fastest: Sequence[Configuration], size: Size, rng: np.random.Generator
) -> Kept:
    """Choices by knob name for `ScheduleSpace.restricted`.

    fastest: measured configurations of the space, the fastest first.
    """
    kept: Kept = {}
    share = replace(size, most=size.most // len(space.parts))
    rows = space.batch(list(fastest))
    for part in space.parts:
        own = [part.space.configuration(row) for row in part.of(rows[part.has(rows)])]
        grown = _grown(part.space, own, share, rng)
        prefix = "" if part.number is None else f"{part.label} "
        kept.update({f"{prefix}{name}": choices for name, choices in grown.items()})
    return kept


def _grown(
    space: ScheduleSpace, fastest: Sequence[Configuration], size: Size, rng: np.random.Generator
) -> Kept:
    wanted = [*fastest[:1], space.default(), *fastest[1:]]
    orders = [
        _order(knob, [item.indices[position] for item in wanted], size.random_every, rng)
        for position, knob in enumerate(space.knobs)
    ]
    counts = [1] * len(orders)
    while True:
        growable = [place for place, order in enumerate(orders) if counts[place] < len(order)]
        growable.sort(key=lambda place: counts[place] / math.log2(1 + len(orders[place])))
        for place in growable:
            larger = [count + (place == position) for position, count in enumerate(counts)]
            if _valid(space.restricted(_kept(space, orders, larger)), size.most) <= size.most:
                counts = larger
                break
        else:
            return _kept(space, orders, counts)


def _order(knob: Knob, wanted: Sequence[int], random_every: int, rng: np.random.Generator) -> list[int]:
    """Every choice of a knob once: two wanted ones, then wanted ones but for every `random_every`-th."""
    shuffled = rng.permutation(len(knob.choices)).tolist()
    rest = list(dict.fromkeys(wanted[2:]))
    steps = range(len(rest)) if random_every > 1 else range(0)
    between = random_every - 1
    mixed = [
        choice
        for step in steps
        for choice in [*rest[step * between : (step + 1) * between], *shuffled[step : step + 1]]
    ]
    return list(dict.fromkeys([*wanted[:2], *mixed, *shuffled]))


def _kept(space: ScheduleSpace, orders: Sequence[list[int]], counts: Sequence[int]) -> Kept:
    """The first choices of each knob, as values in the order of the full space."""
    return {
        knob.name: tuple(knob.choices[index] for index in sorted(order[:count]))
        for knob, order, count in zip(space.knobs, orders, counts, strict=True)
    }


def _valid(space: ScheduleSpace, most: int) -> int:
    """How many configurations are valid, counted until there are more than `most`."""
    total = 0
    for rows in enumerated(space):
        total += len(rows)
        if total > most:
            break
    return total
