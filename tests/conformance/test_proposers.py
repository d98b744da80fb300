"""One suite for every Proposer (toolkit/explore/proposer.py holds the contract)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from msgspec.structs import replace

from tests.quick import others_slow
from tests.synthetic_space import TilingSpace, everything
from toolkit.cost_model.gbt import GradientBoostedTrees, TreeOptions
from toolkit.cost_model.random_model import RandomModel
from toolkit.explore.annealing import AnnealingOptions, AnnealingProposer
from toolkit.explore.baselines import GeneticOptions, GeneticProposer, GridProposer, RandomProposer
from toolkit.explore.distinct import DistinctPrograms
from toolkit.explore.in_turn import InTurn
from toolkit.explore.proposer import Proposer

Make = Callable[[TilingSpace, int], Proposer]
NARROW = AnnealingOptions(chains=64, steps=6, patience=4)


def annealing(space: TilingSpace, seed: int) -> Proposer:
    model = GradientBoostedTrees(seed=seed, options=TreeOptions(rounds=20, threads=1))
    return AnnealingProposer(space, space.features, model, np.random.default_rng(seed), NARROW)


def aimless_annealing(space: TilingSpace, seed: int) -> Proposer:
    model = RandomModel(np.random.default_rng(seed))
    return AnnealingProposer(space, space.features, model, np.random.default_rng(seed), NARROW)


def diverse_annealing(space: TilingSpace, seed: int) -> Proposer:
    model = GradientBoostedTrees(seed=seed, options=TreeOptions(rounds=20, threads=1))
    options = replace(NARROW, alpha=1.0, spare=4.0)
    return AnnealingProposer(space, space.features, model, np.random.default_rng(seed), options)


def informed_annealing(space: TilingSpace, seed: int) -> Proposer:
    model, rng = RandomModel(np.random.default_rng(seed)), np.random.default_rng(seed)
    return AnnealingProposer(space, space.features, model, rng, NARROW, informed=True)


PROPOSERS: dict[str, Make] = {
    "annealing": annealing,
    "annealing with a random model": aimless_annealing,
    "annealing with diversity": diverse_annealing,
    "annealing with a model that knows": informed_annealing,
    "genetic": lambda space, seed: GeneticProposer(
        space, np.random.default_rng(seed), GeneticOptions(population=12)
    ),
    "random": lambda space, seed: RandomProposer(space, np.random.default_rng(seed)),
    "the default first": lambda space, seed: InTurn(
        space, np.zeros((1, 5), np.int64), [RandomProposer(space, np.random.default_rng(seed))]
    ),
    "distinct programs": lambda space, seed: DistinctPrograms(
        space, RandomProposer(space, np.random.default_rng(seed)), space.ids, np.random.default_rng(seed)
    ),
    "grid": lambda space, seed: GridProposer(space),
}


# diversity is annealing with another choice among the same candidates
QUICK = [name for name in PROPOSERS if name != "annealing with diversity"]


@pytest.fixture(params=others_slow(PROPOSERS, *QUICK), name="make")
def _make(request: pytest.FixtureRequest) -> Make:
    return PROPOSERS[request.param]


def run(proposer: Proposer, space: TilingSpace, rounds: int, n: int) -> np.ndarray:
    asked = []
    for _ in range(rounds):
        batch = proposer.ask(n)
        proposer.tell(batch, space.cost_s(batch))
        asked.append(batch)
    return np.concatenate(asked)


def test_asks_for_distinct_valid_configurations_of_the_right_type(make: Make) -> None:
    space = TilingSpace()
    asked = run(make(space, 0), space, rounds=4, n=24)
    assert asked.shape == (96, 5) and asked.dtype == np.int64
    assert space.valid(asked).all()
    assert (asked >= 0).all() and (asked < np.array(space.shape)).all()
    assert len(set(space.ids(asked).tolist())) == 96


def test_the_same_seed_gives_the_same_answers(make: Make) -> None:
    space = TilingSpace()
    first, second = (run(make(space, 3), space, rounds=3, n=16) for _ in range(2))
    assert np.array_equal(first, second)


def test_what_was_told_before_is_never_asked_for(make: Make) -> None:
    space = TilingSpace()
    known = everything(space)[::3]
    proposer = make(space, 1)
    proposer.tell(known, space.cost_s(known))
    asked = run(proposer, space, rounds=3, n=32)
    assert len(asked) == 96
    assert not np.isin(space.ids(asked), space.ids(known)).any()


def test_failures_are_told_like_times(make: Make) -> None:
    space = TilingSpace()
    proposer = make(space, 2)
    for _ in range(3):
        batch = proposer.ask(16)
        proposer.tell(batch, np.where(np.arange(16) % 2, np.nan, space.cost_s(batch)))
    batch = proposer.ask(16)
    assert len(batch) == 16
    proposer.tell(batch, np.full(16, np.nan))
    assert len(proposer.ask(16)) == 16


def test_a_run_of_failures_only_goes_on(make: Make) -> None:
    space = TilingSpace()
    proposer = make(space, 2)
    for _ in range(3):
        batch = proposer.ask(16)
        proposer.tell(batch, np.full(16, np.nan))
    assert len(proposer.ask(16)) == 16


def test_a_space_of_one_point_ends(make: Make) -> None:
    space = TilingSpace((1, 1, 1), 1, 1)
    proposer = make(space, 0)
    batch = proposer.ask(8)
    assert batch.tolist() == [[0, 0, 0, 0, 0]]
    proposer.tell(batch, space.cost_s(batch))
    for _ in range(2):
        assert proposer.ask(8).shape == (0, 5)


def test_a_small_space_is_covered_and_ends(make: Make) -> None:
    space = TilingSpace((3, 4, 2), 2, 2, footprint=24.0)
    points = everything(space)
    proposer = make(space, 5)
    asked = run(proposer, space, rounds=len(points) // 7 + 2, n=7)
    assert sorted(space.ids(asked).tolist()) == sorted(space.ids(points).tolist())
    assert len(proposer.ask(7)) == 0


def test_a_space_without_a_valid_point_gives_none(make: Make) -> None:
    space = TilingSpace((2, 2, 2), 1, 1, footprint=0.0)
    if isinstance(make(space, 0), InTurn):
        pytest.skip("a default configuration is a valid point")
    assert make(space, 0).ask(4).shape == (0, 5)


def test_asking_for_none_gives_none(make: Make) -> None:
    space = TilingSpace()
    proposer = make(space, 0)
    assert proposer.ask(0).shape == (0, 5)
    batch = proposer.ask(4)
    proposer.tell(batch, space.cost_s(batch))
    assert proposer.ask(0).shape == (0, 5)


def test_telling_nothing_changes_nothing(make: Make) -> None:
    space = TilingSpace()
    proposer = make(space, 0)
    proposer.tell(np.zeros((0, 5), np.int64), np.zeros(0))
    assert len(proposer.ask(4)) == 4


@pytest.mark.parametrize(
    ("batch", "costs_s"),
    [
        (np.zeros((2, 5), np.int64), np.zeros(3)),
        (np.zeros((2, 4), np.int64), np.zeros(2)),
        (np.zeros(5, np.int64), np.zeros(5)),
    ],
)
def test_a_misshapen_tell_is_refused(make: Make, batch: np.ndarray, costs_s: np.ndarray) -> None:
    with pytest.raises(ValueError, match=r"tell: expected configurations \[M, 5\] and costs \[M\]"):
        make(TilingSpace(), 0).tell(batch, costs_s)


def test_a_batch_may_be_asked_for_while_another_is_measured(make: Make) -> None:
    space = TilingSpace()
    proposer = make(space, 5)
    running = proposer.ask(16)
    asked = [running]
    for _ in range(3):
        ahead = proposer.ask(16)
        proposer.tell(running, space.cost_s(running))
        running = ahead
        asked.append(running)
    assert len(set(space.ids(np.concatenate(asked)).tolist())) == 64


def test_searches_in_threads_share_nothing(make: Make) -> None:
    space = TilingSpace()
    alone = [run(make(space, seed), space, rounds=3, n=16) for seed in range(3)]
    with ThreadPoolExecutor(max_workers=3) as threads:
        together = threads.map(lambda seed: run(make(space, seed), space, rounds=3, n=16), range(3))
        assert all(np.array_equal(one, other) for one, other in zip(alone, together, strict=True))
