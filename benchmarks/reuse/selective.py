"""Selective Tuning, ETO's baseline: tune a few operators, replay their best programs for the others.

After the RFC of that name for TVM: operators whose tile sizes have enough in common form a graph; those that
cover it are tuned, each of the others tries the TOP programs of the most similar one of them, as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cross.schedule.space import ScheduleSpace
from cross.schedule.tiles import divisors
from toolkit.explore.in_turn import InTurn
from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.explore.space import Batch, fresh
from toolkit.reuse.rounds.program import Program, inherited, same_algorithm

TOP: Final = 3
SIMILAR: Final = 0.5
"""Least part of an operator's tile sizes that those of another one must have."""


def similarity(target: MajorLoops, source: MajorLoops) -> float:
    """Part of the target's tile sizes, over all loops, that the source has too; 0 for another kind."""
    if target.kind != source.kind or len(target.extents) != len(source.extents):
        return 0.0
    own = [divisors(extent) for extent in target.extents]
    others = [set(divisors(extent)) for extent in source.extents]
    common = sum(len(others[number].intersection(sizes)) for number, sizes in enumerate(own))
    return common / sum(len(sizes) for sizes in own)


def representatives(loops: Sequence[MajorLoops]) -> list[int | None]:
    """For each operator the tuned one whose programs it replays; None for those that are tuned.

    Tuned is, again and again, the operator that most of the others left are similar to, the first of equals.
    """
    count = len(loops)
    alike = np.array([[similarity(target, source) for source in loops] for target in loops])
    left = np.ones(count, np.bool_)
    tuned: list[int] = []
    while left.any():
        covers = (alike[left] >= SIMILAR).sum(axis=0) * left
        chosen = int(covers.argmax())
        tuned.append(chosen)
        left &= alike[:, chosen] < SIMILAR
        left[chosen] = False
    best = [tuned[int(alike[number, tuned].argmax())] for number in range(count)]
    return [None if number in tuned else best[number] for number in range(count)]


def replaying(space: ScheduleSpace, programs: Sequence[Program]) -> InTurn:
    """A search that asks for the replayed programs, and for no others."""
    none = np.zeros((0, len(space.knobs)), np.int64)
    rows = np.concatenate([none, *(replayed(space, program) for program in programs)])
    return InTurn(space, fresh(space, rows, np.zeros(0, np.uint64)), ())


def replayed(space: ScheduleSpace, program: Program) -> Batch:
    """The program in another space, knob by knob, int64 [1, K]; none where that is not valid."""
    part, source = same_algorithm(space, program)
    rows = inherited(part.space, source)[None]
    return part.embedded(rows[part.space.valid(rows)])
