"""Epsilon-greedy choice of a batch and drawing from a space without repetition."""

from __future__ import annotations

import numpy as np
import pytest

from tests.synthetic_space import TilingSpace, everything
from toolkit.explore.selection import Candidates, best_first, epsilon_greedy, random_share
from toolkit.explore.space import block, draw_unseen, enumerated

SPACE = TilingSpace()
NONE_SEEN = np.zeros(0, np.uint64)


def chosen(candidates: Candidates, n: int, *, epsilon: float, alpha: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(0)
    return epsilon_greedy(SPACE, candidates, n, alpha=alpha, epsilon=epsilon, seen=NONE_SEEN, rng=rng)


def ranked_points() -> Candidates:
    points = everything(SPACE)
    return best_first(points, -SPACE.cost_s(points).astype(np.float32))


def test_the_best_come_first_and_the_rest_is_random() -> None:
    ranked = ranked_points().first(64)
    batch = chosen(ranked, 40, epsilon=0.25)
    assert np.array_equal(batch[:30], ranked.batch[:30])
    assert len(batch) == 40 and len(set(SPACE.ids(batch).tolist())) == 40


def test_a_diverse_batch_covers_more_choices_and_begins_with_the_best() -> None:
    ranked = ranked_points().first(128)
    plain, diverse = (chosen(ranked, 32, epsilon=0.0, alpha=alpha) for alpha in (0.0, 1.0))
    covered = [sum(len(set(column)) for column in batch.T.tolist()) for batch in (plain, diverse)]
    assert covered[0] < covered[1]
    assert len(set(SPACE.ids(diverse).tolist())) == 32
    assert np.isin(SPACE.ids(diverse), SPACE.ids(ranked.batch)).all()
    assert np.array_equal(diverse[0], ranked.batch[0])


def test_random_ones_fill_a_shortage_of_candidates() -> None:
    batch = chosen(ranked_points().first(3), 20, epsilon=0.0, alpha=1.0)
    assert len(batch) == 20


@pytest.mark.parametrize("n", [1, 8, 64])
def test_the_random_share_is_right_on_average(n: int) -> None:
    rng = np.random.default_rng(0)
    shares = [random_share(n, 0.05, rng) for _ in range(4000)]
    assert np.mean(shares) == pytest.approx(0.05 * n, rel=0.15)
    assert max(shares) - min(shares) <= 1


def test_enumeration_visits_every_valid_point_once_in_order() -> None:
    found = np.concatenate(list(enumerated(SPACE)))
    assert np.array_equal(found, everything(SPACE))


def test_blocks_of_a_space_beyond_64_bits() -> None:
    class Wide(TilingSpace):
        shape = (1 << 20,) * 5

        def __init__(self) -> None:
            self.footprint = np.inf

        def valid(self, batch: np.ndarray) -> np.ndarray:
            return np.ones(len(batch), np.bool_)

    wide = Wide()
    top = block(wide, (1 << 100) - 2, 1 << 100)
    assert top.tolist() == [[(1 << 20) - 1] * 4 + [(1 << 20) - 2], [(1 << 20) - 1] * 5]
    assert block(wide, 0, 3).tolist() == [[0, 0, 0, 0, k] for k in range(3)]


def test_drawing_finds_the_last_unseen_points() -> None:
    points = everything(SPACE)
    seen = SPACE.ids(points[5:])
    drawn = draw_unseen(SPACE, np.random.default_rng(0), 10, seen)
    assert sorted(drawn.tolist()) == sorted(points[:5].tolist())
