"""Of configurations that make the same program one is asked for, and the search learns of the others."""

from __future__ import annotations

import numpy as np

from tests.synthetic_space import TilingSpace
from toolkit.explore.distinct import DistinctPrograms
from toolkit.explore.grid import GridProposer
from toolkit.explore.proposer import History
from toolkit.explore.space import Batch

SPACE = TilingSpace()


def third(row: np.ndarray) -> int:
    """Configurations that differ in other knobs than the first three make the same program."""
    return hash(tuple(row[:3].tolist()))


class Told(GridProposer):
    """The grid, with what it was told."""

    def __init__(self) -> None:
        super().__init__(SPACE)
        self.history = History(SPACE)

    def tell(self, batch: Batch, costs_s: np.ndarray) -> None:
        super().tell(batch, costs_s)
        self.history.told(batch, costs_s)


def test_every_program_is_asked_for_once_and_all_of_its_configurations_are_told() -> None:
    inner = Told()
    proposer = DistinctPrograms(SPACE, inner, third)
    seen: dict[int, float] = {}
    for _ in range(6):
        rows = proposer.ask(8)
        programs = [third(row) for row in rows]
        assert len(set(programs)) == len(programs)
        if not seen.keys() & set(programs):
            costs_s = np.arange(len(rows)) + 10.0 * len(seen) + 1.0
            seen.update(zip(programs, costs_s.tolist(), strict=True))
        proposer.tell(rows, np.array([seen[program] for program in programs]))
    assert len(inner.history) > len(seen)
    for row, cost_s in zip(inner.history.batch, inner.history.costs_s, strict=True):
        assert cost_s == seen[third(row)]


def test_what_is_being_measured_is_told_when_its_cost_is_known() -> None:
    inner = Told()
    proposer = DistinctPrograms(SPACE, inner, third)
    first, second = proposer.ask(4), proposer.ask(4)
    assert not {third(row) for row in first} & {third(row) for row in second}
    asked = len(inner.history)
    assert asked == 0
    proposer.tell(first, np.full(len(first), 2.0))
    assert set(inner.history.costs_s.tolist()) == {2.0}
    assert len(inner.history) > len(first)


def test_a_search_of_one_program_still_ends() -> None:
    proposer = DistinctPrograms(SPACE, GridProposer(SPACE), lambda row: 0)
    total, rows = 0, proposer.ask(512)
    while len(rows):
        total += len(rows)
        proposer.tell(rows, np.ones(len(rows)))
        rows = proposer.ask(512)
    assert total > 1
