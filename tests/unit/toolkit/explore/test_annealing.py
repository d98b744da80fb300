"""The annealing search: it finds the optimum of a known landscape, keeps its chains and its books."""

from __future__ import annotations

import numpy as np
import pytest

from tests.synthetic_space import TilingSpace, best_after, everything
from toolkit.cost_model.gbt import GradientBoostedTrees, TreeOptions
from toolkit.explore.annealing import AnnealingOptions, AnnealingProposer, Best, anneal
from toolkit.explore.baselines import RandomProposer

SPACE = TilingSpace()
NONE_SEEN = np.zeros(0, np.uint64)


def perfect(batch: np.ndarray) -> np.ndarray:
    return (-SPACE.cost_s(batch) * 1e3).astype(np.float32)


def test_annealing_under_a_perfect_model_finds_the_optimum() -> None:
    rng = np.random.default_rng(0)
    best = Best(SPACE, 16, NONE_SEEN)
    options = AnnealingOptions(chains=256, steps=60, patience=60)
    anneal(SPACE, perfect, SPACE.sample(rng, 256), best, options=options, rng=rng)
    points = everything(SPACE)
    ranked = np.sort(SPACE.cost_s(points))
    found = SPACE.cost_s(best.candidates().batch)
    assert found[0] == ranked[0]
    assert (np.diff(found) >= 0).all()
    assert found[-1] <= ranked[40]


def test_best_keeps_distinct_unseen_candidates_in_order() -> None:
    points = everything(SPACE)[:200]
    scores = perfect(points)
    order = np.argsort(-scores, kind="stable")
    best = Best(SPACE, 10, SPACE.ids(points[order[:5]]))
    shuffled = np.random.default_rng(1).permutation(np.repeat(np.arange(200), 3))
    for part in np.array_split(shuffled, 7):
        best.offer(points[part], scores[part])
    assert np.array_equal(perfect(best.candidates().batch), scores[order[5:15]])
    assert len(set(SPACE.ids(best.candidates().batch).tolist())) == 10
    assert not best.offer(points, scores)


def test_it_stops_early_when_the_best_do_not_change() -> None:
    rng = np.random.default_rng(0)
    calls = []

    def constant(batch: np.ndarray) -> np.ndarray:
        calls.append(len(batch))
        return np.zeros(len(batch), np.float32)

    options = AnnealingOptions(chains=128, steps=50, patience=3)
    ends = anneal(
        SPACE, constant, SPACE.sample(rng, 128), Best(SPACE, 8, NONE_SEEN), options=options, rng=rng
    )
    assert calls == [128] * 4
    assert ends.shape == (128, 5)


def test_cold_chains_never_descend() -> None:
    rng = np.random.default_rng(0)
    start = SPACE.sample(rng, 128)
    options = AnnealingOptions(chains=128, steps=20, patience=20, hottest=0.0)
    ends = anneal(SPACE, perfect, start, Best(SPACE, 8, NONE_SEEN), options=options, rng=rng)
    assert (perfect(ends) >= perfect(start)).all()


def learned(seed: int, options: AnnealingOptions) -> AnnealingProposer:
    model = GradientBoostedTrees(seed=seed, options=TreeOptions(threads=1))
    return AnnealingProposer(SPACE, SPACE.features, model, np.random.default_rng(seed), options)


@pytest.mark.slow
def test_the_learned_search_beats_random_from_the_second_batch_on() -> None:
    options = AnnealingOptions(chains=256, steps=8)
    seeds = range(5)
    guided = np.mean([best_after(SPACE, learned(seed, options), 64) for seed in seeds])
    blind = np.mean(
        [best_after(SPACE, RandomProposer(SPACE, np.random.default_rng(seed)), 64) for seed in seeds]
    )
    assert guided < blind


def test_scored_candidates_are_counted() -> None:
    space = TilingSpace((40, 40, 16), 6, 4, footprint=1e6)
    options = AnnealingOptions(chains=64, steps=3, patience=3)
    model = GradientBoostedTrees(options=TreeOptions(rounds=5, threads=1))
    proposer = AnnealingProposer(space, space.features, model, np.random.default_rng(0), options)
    for rounds in range(3):
        batch = proposer.ask(8)
        assert rounds * 64 * 2 <= proposer.scored <= rounds * 64 * 4
        proposer.tell(batch, space.cost_s(batch))


def test_what_an_annealing_has_left_fills_its_batch_up() -> None:
    """A batch without the repetitions of known programs is asked for again, a few rows at a time."""
    space = TilingSpace((40, 40, 16), 6, 4, footprint=1e6)
    options = AnnealingOptions(chains=64, steps=3, patience=3)
    model = GradientBoostedTrees(options=TreeOptions(rounds=5, threads=1))
    proposer = AnnealingProposer(space, space.features, model, np.random.default_rng(0), options)
    first = proposer.ask(8)
    proposer.tell(first, space.cost_s(first))
    second, scored = proposer.ask(8), proposer.scored
    third = proposer.ask(4)
    assert proposer.scored == scored > 0
    asked = np.concatenate([first, second, third])
    assert len(np.unique(space.ids(asked))) == len(asked) == 20
    proposer.tell(second, space.cost_s(second))
    proposer.ask(4)
    assert proposer.scored > scored
