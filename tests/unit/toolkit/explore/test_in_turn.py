"""Proposers in turn: what is given comes first, and no configuration is asked for twice."""

from __future__ import annotations

import numpy as np

from tests.synthetic_space import TilingSpace, everything
from toolkit.explore.baselines import GridProposer
from toolkit.explore.in_turn import InTurn
from toolkit.explore.rounds import RoundsProposer

SPACE = TilingSpace()
POINTS = everything(SPACE)
NONE = POINTS[:0]


def rounds(*found: np.ndarray) -> RoundsProposer:
    return RoundsProposer(SPACE, lambda _: iter(found), waits=False, patience=None)


def test_given_configurations_come_first_and_fill_up_with_what_follows() -> None:
    proposer = InTurn(SPACE, POINTS[5:7], [GridProposer(SPACE)])
    assert np.array_equal(proposer.ask(4), POINTS[[5, 6, 0, 1]])
    assert np.array_equal(proposer.ask(4), POINTS[[2, 3, 4, 7]])


def test_given_configurations_that_were_told_are_not_asked_for() -> None:
    proposer = InTurn(SPACE, POINTS[5:7], [GridProposer(SPACE)])
    proposer.tell(POINTS[5:6], np.ones(1))
    assert np.array_equal(proposer.ask(3), POINTS[[6, 0, 1]])


def test_the_next_proposer_follows_the_rounds_and_repeats_nothing_that_is_being_measured() -> None:
    proposer = InTurn(SPACE, NONE, [rounds(POINTS[:3], POINTS[2:5]), GridProposer(SPACE)])
    assert [proposer.ask(8).tolist() for _ in range(3)] == [
        POINTS[:3].tolist(),
        POINTS[3:5].tolist(),
        POINTS[5:13].tolist(),
    ]


def test_every_proposer_hears_every_cost() -> None:
    first, second = rounds(POINTS[:3]), GridProposer(SPACE)
    proposer = InTurn(SPACE, NONE, [first, second])
    proposer.tell(POINTS[:4], np.ones(4))
    assert len(first.ask(8)) == 0
    assert np.array_equal(second.ask(2), POINTS[4:6])
