"""The genetic baseline: founders at random, children of the fastest, no child twice."""

from __future__ import annotations

import numpy as np

from tests.synthetic_space import TilingSpace, best_after
from toolkit.explore.baselines import GeneticOptions, GeneticProposer, RandomProposer

SPACE = TilingSpace()


def test_evolution_beats_random_search() -> None:
    bred = np.mean(
        [best_after(SPACE, GeneticProposer(SPACE, np.random.default_rng(s)), 192) for s in range(6)]
    )
    blind = np.mean(
        [best_after(SPACE, RandomProposer(SPACE, np.random.default_rng(s)), 192) for s in range(6)]
    )
    assert bred < blind


def test_children_take_their_knobs_from_the_parents() -> None:
    options = GeneticOptions(population=2, tournament=1, mutation=0.0)
    proposer = GeneticProposer(SPACE, np.random.default_rng(0), options)
    parents = np.array([[2, 3, 1, 0, 0], [5, 4, 2, 1, 2]])
    assert SPACE.valid(parents).all()
    proposer.tell(parents, SPACE.cost_s(parents))
    children = proposer.ask(8)
    assert len(children) == 8
    own = (children == parents[0]) | (children == parents[1])
    assert own.all(axis=1).sum() >= 4  # the others are copies of a parent with one knob drawn anew
    assert (own.sum(axis=1) >= 4).all()


def test_the_founders_are_drawn_at_random() -> None:
    proposer = GeneticProposer(SPACE, np.random.default_rng(3), GeneticOptions(population=24))
    blind = RandomProposer(SPACE, np.random.default_rng(3))
    first = proposer.ask(16)
    assert np.array_equal(first, blind.ask(16))
    proposer.tell(first, SPACE.cost_s(first))
    assert len(proposer.ask(16)) == 16
