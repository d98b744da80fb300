"""Labels and eq. 2: the right gradient, within groups only, bounded by the number of partners."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import approx_fprime

from toolkit.cost_model.base import throughput
from toolkit.cost_model.pairs import MOST_PARTNERS, pairwise_rank, rows_of_groups

LABELS = np.array([1.0, 0.5, 0.5, 0.25, 0.0, 0.0, 0.75, 0.0])
SCORES = np.linspace(-1.0, 1.0, 8)


def loss(f: np.ndarray, same: np.ndarray) -> float:
    """eq. 2, written out; each pair once."""
    sign = np.sign(LABELS[:, None] - LABELS[None, :])
    margin = sign * (f[:, None] - f[None, :])
    return float(np.log1p(np.exp(-margin))[(sign > 0) & same].sum())


@pytest.mark.parametrize("groups", [None, np.array([3, 3, 0, 0, 3, 0, 3, 3]), np.arange(8)])
def test_the_gradient_is_that_of_equation_2(groups: np.ndarray | None) -> None:
    same = np.ones((8, 8), np.bool_) if groups is None else groups[:, None] == groups[None, :]
    meets = (same & (LABELS[:, None] != LABELS[None, :])).sum(axis=1)
    first, second = pairwise_rank(LABELS, np.random.default_rng(0), groups)(SCORES.astype(np.float32), None)
    assert first * np.maximum(meets, 1) == pytest.approx(approx_fprime(SCORES, loss, 1e-6, same), abs=1e-4)
    assert (second > 0).all()


def test_scores_far_apart_neither_overflow_nor_lose_the_gradient() -> None:
    scores = np.array([-1e4, -60, -1, 0, 1, 60, 1e4, 0], np.float32)
    first, second = pairwise_rank(LABELS, np.random.default_rng(0))(scores, None)
    assert np.isfinite(first).all() and np.isfinite(second).all()
    assert first[0] == pytest.approx(-1.0, abs=1e-3)  # the fastest, scored lowest: wrong in every pair


def test_many_rows_meet_a_sample_of_their_group() -> None:
    rng = np.random.default_rng(1)
    count = 4 * MOST_PARTNERS
    labels, scores = rng.random(count), rng.normal(size=count).astype(np.float32)
    first, _ = pairwise_rank(labels, rng)(scores, None)
    better = 1.0 / (1.0 + np.exp(scores[None, :] - scores[:, None]))
    exact = (better - (labels[:, None] > labels[None, :])).mean(axis=1)
    assert np.abs(first - exact).max() < 0.1


def test_the_rows_of_groups_keep_their_order() -> None:
    found = rows_of_groups(np.array([7, -1, 7, 7, -1]), 5)
    assert [rows.tolist() for rows in found] == [[1, 4], [0, 2, 3]]
    assert rows_of_groups(None, 2)[0].tolist() == [0, 1]


def test_labels_are_relative_throughput_and_failures_zero() -> None:
    assert throughput(np.array([2e-3, np.nan, 1e-3])).tolist() == [0.5, 0.0, 1.0]
    assert throughput(np.array([np.nan])).tolist() == [0.0]


def test_labels_are_relative_to_the_best_of_the_group() -> None:
    costs = np.array([2e-3, 5.0, 1e-3, np.nan, 10.0, np.nan])
    assert throughput(costs, np.array([5, 2, 5, 5, 2, 9])).tolist() == [0.5, 1.0, 1.0, 0.0, 0.5, 0.0]
