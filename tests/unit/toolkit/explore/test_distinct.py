"""Of configurations that make the same program one is asked for, and the search learns of the others."""

from __future__ import annotations

import numpy as np

from tests.synthetic_space import TilingSpace
from toolkit.explore.baselines import GridProposer, RandomProposer
from toolkit.explore.distinct import ATTEMPTS, DistinctPrograms
from toolkit.explore.proposer import History, Proposer
from toolkit.explore.space import Batch, Identify, Ids

SPACE = TilingSpace()


def third(rows: Batch) -> Ids:
    """Configurations that differ in other knobs than the first three make the same program."""
    first = np.zeros_like(rows)
    first[:, :3] = rows[:, :3]
    return SPACE.ids(first)


def one(rows: Batch) -> Ids:
    return np.zeros(len(rows), np.uint64)


def distinct(inner: Proposer, programs: Identify, space: TilingSpace = SPACE) -> DistinctPrograms:
    return DistinctPrograms(space, inner, programs, np.random.default_rng(0))


class Told(GridProposer):
    """The grid, with what it was asked for and told."""

    def __init__(self) -> None:
        super().__init__(SPACE)
        self.history = History(SPACE)
        self.asked: list[int] = []
        self.tells = 0

    def ask(self, n: int) -> Batch:
        self.asked.append(n)
        return super().ask(n)

    def tell(self, batch: Batch, costs_s: np.ndarray) -> None:
        super().tell(batch, costs_s)
        self.history.told(batch, costs_s)
        self.tells += 1


class InRounds(Told):
    """The grid in rounds of six, each of which waits for the costs of the one before."""

    def ask(self, n: int) -> Batch:
        due = 6 - len(self.history) % 6 if len(self.history) == sum(self.given) else 0
        rows = super().ask(min(n, due))
        self.given.append(len(rows))
        return rows

    def __init__(self) -> None:
        super().__init__()
        self.given: list[int] = []


def test_every_program_is_asked_for_once_and_all_of_its_configurations_are_told() -> None:
    inner = Told()
    proposer = distinct(inner, third)
    seen: dict[int, float] = {}
    for _ in range(6):
        rows = proposer.ask(8)
        programs = third(rows).tolist()
        assert len(rows) and len(set(programs)) == len(programs)
        assert not seen.keys() & set(programs)
        costs_s = np.arange(len(rows)) + 10.0 * len(seen) + 1.0
        seen.update(zip(programs, costs_s.tolist(), strict=True))
        proposer.tell(rows, costs_s)
    assert len(inner.history) > len(seen)
    costs_s = np.array([seen[program] for program in third(inner.history.batch).tolist()])
    assert np.array_equal(inner.history.costs_s, costs_s)


def test_what_is_being_measured_is_told_when_its_cost_is_known() -> None:
    inner = Told()
    proposer = distinct(inner, third)
    first, second = proposer.ask(4), proposer.ask(4)
    assert not np.isin(third(first), third(second)).any()
    assert len(inner.history) == 0
    proposer.tell(first, np.full(len(first), 2.0))
    assert set(inner.history.costs_s.tolist()) == {2.0}
    assert len(inner.history) > len(first)


def test_a_batch_is_filled_as_far_as_some_attempts_go() -> None:
    inner = Told()
    proposer = distinct(inner, third)
    rows = proposer.ask(16)
    assert 0 < len(rows) <= 16
    assert len(rows) == 16 or len(inner.asked) == ATTEMPTS
    assert inner.asked[0] == 16 and inner.asked == sorted(inner.asked, reverse=True)
    proposer = distinct(RandomProposer(SPACE, np.random.default_rng(0)), third)
    assert len(proposer.ask(16)) == 16


def test_a_search_that_wants_to_know_costs_first_hears_them() -> None:
    inner = InRounds()
    proposer = distinct(inner, lambda rows: SPACE.ids(rows) // np.uint64(2))
    first = proposer.ask(8)
    assert 3 <= len(first) <= 4 and inner.given == [6]
    assert len(proposer.ask(8)) == 0
    proposer.tell(first, np.ones(len(first)))
    assert len(inner.history) == 6
    assert 3 <= len(proposer.ask(8)) <= 4


def test_repetitions_without_anything_new_end_a_large_space() -> None:
    space = TilingSpace((64, 64, 64), 4, 4, footprint=1e9)
    proposer = distinct(RandomProposer(space, np.random.default_rng(0)), one, space)
    rows = proposer.ask(64)
    assert len(rows) == 1
    proposer.tell(rows, np.ones(1))
    assert len(proposer.ask(64)) == 0


def test_a_search_on_a_plateau_goes_on_elsewhere() -> None:
    """Where it would walk through a thousand configurations of one program others are drawn."""
    plateau = set(SPACE.ids(GridProposer(SPACE).ask(1000)).tolist())

    def programs(rows: Batch) -> Ids:
        return np.array([0 if key in plateau else key + 1 for key in SPACE.ids(rows).tolist()], np.uint64)

    proposer = distinct(GridProposer(SPACE), programs)
    seen: list[int] = []
    for _ in range(3):
        rows = proposer.ask(8)
        assert 1 <= len(rows) <= 8
        seen += programs(rows).tolist()
    assert len(seen) == len(set(seen)) == 17, "the plateau's own, then whole batches"


def test_a_search_of_one_program_ends() -> None:
    proposer = distinct(GridProposer(SPACE), one)
    rows = proposer.ask(512)
    assert len(rows) == 1
    proposer.tell(rows, np.ones(1))
    assert len(proposer.ask(512)) == 0
