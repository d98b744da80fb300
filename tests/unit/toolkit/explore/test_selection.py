"""Epsilon-greedy choice of a batch and drawing from a space without repetition."""

from __future__ import annotations

import numpy as np
import pytest

from tests.synthetic_space import TilingSpace, everything
from toolkit.explore.selection import best_first, epsilon_greedy, random_share
from toolkit.explore.space import block, draw_unseen, enumerated, size

SPACE = TilingSpace()
NONE_SEEN = np.zeros(0, np.uint64)


def chosen(ranked: np.ndarray, n: int, epsilon: float, seen: np.ndarray = NONE_SEEN) -> np.ndarray:
    return epsilon_greedy(SPACE, ranked, n, epsilon=epsilon, seen=seen, rng=np.random.default_rng(0))


def test_the_best_come_first_and_the_rest_is_random() -> None:
    points = everything(SPACE)
    ranked = best_first(points, -SPACE.cost_s(points).astype(np.float32))[:64]
    batch = chosen(ranked, 40, epsilon=0.25)
    assert np.array_equal(batch[:30], ranked[:30])
    assert len(batch) == 40 and len(set(SPACE.ids(batch).tolist())) == 40


def test_random_ones_fill_a_shortage_of_candidates() -> None:
    batch = chosen(everything(SPACE)[:3], 20, epsilon=0.0)
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
    assert size(SPACE) == 12 * 12 * 10 * 4 * 3


def test_blocks_of_a_space_beyond_64_bits() -> None:
    class Wide(TilingSpace):
        shape = (1 << 20,) * 5

        def __init__(self) -> None:
            self.footprint = np.inf

        def valid(self, batch: np.ndarray) -> np.ndarray:
            return np.ones(len(batch), np.bool_)

    wide = Wide()
    assert size(wide) == 1 << 100
    top = block(wide, (1 << 100) - 2, 1 << 100)
    assert top.tolist() == [[(1 << 20) - 1] * 4 + [(1 << 20) - 2], [(1 << 20) - 1] * 5]
    assert block(wide, 0, 3).tolist() == [[0, 0, 0, 0, k] for k in range(3)]


def test_drawing_finds_the_last_unseen_points() -> None:
    points = everything(SPACE)
    seen = SPACE.ids(points[5:])
    drawn = draw_unseen(SPACE, np.random.default_rng(0), 10, seen)
    assert sorted(drawn.tolist()) == sorted(points[:5].tolist())
