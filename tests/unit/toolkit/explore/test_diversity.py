"""Greedy maximization of eq. 3, against every choice there is and against the definition."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from toolkit.explore.diversity import greedy_submodular, standardized


def objective(batch: np.ndarray, scores: np.ndarray, alpha: float) -> float:
    """L(S) of eq. 3."""
    covered = sum(len(np.unique(column[column >= 0])) for column in batch.T)
    return float(scores.sum()) + alpha * covered


def candidates(seed: int, rows: int, knobs: int, choices: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    batch = np.unique(rng.integers(0, choices, (4 * rows, knobs)), axis=0)
    batch = rng.permutation(batch)[:rows]
    return batch, np.sort(rng.normal(size=len(batch)))[::-1]


def one_step_at_a_time(batch: np.ndarray, scores: np.ndarray, n: int, alpha: float) -> list[int]:
    """The definition: add whatever raises L(S) most."""
    taken: list[int] = []
    for _ in range(n):
        rest = [row for row in range(len(batch)) if row not in taken]
        raised = [objective(batch[[*taken, row]], scores[[*taken, row]], alpha) for row in rest]
        taken.append(rest[int(np.argmax(raised))])
    return taken


@pytest.mark.parametrize("alpha", [0.0, 0.125, 1.0, 8.0])
@pytest.mark.parametrize("seed", range(4))
def test_each_step_adds_most(seed: int, alpha: float) -> None:
    batch, scores = candidates(seed, rows=24, knobs=5, choices=4)
    scores = np.round(scores * 8) / 8  # exact sums: equals stay equal in whatever order they are added
    assert greedy_submodular(batch, scores, 9, alpha).tolist() == one_step_at_a_time(batch, scores, 9, alpha)


@pytest.mark.parametrize("alpha", [0.1, 0.5, 2.0])
@pytest.mark.parametrize("seed", range(6))
def test_the_guarantee_of_greedy_holds(seed: int, alpha: float) -> None:
    batch, scores = candidates(seed, rows=11, knobs=4, choices=5)
    scores -= scores.min()
    chosen = greedy_submodular(batch, scores, 4, alpha)
    found = objective(batch[chosen], scores[chosen], alpha)
    best = max(
        objective(batch[list(rows)], scores[list(rows)], alpha)
        for rows in itertools.combinations(range(len(batch)), 4)
    )
    assert (1 - 1 / math.e) * best <= found <= best + 1e-9


def test_choices_that_a_row_does_not_make_cover_nothing() -> None:
    batch = np.array([[0, 0, -1], [1, -1, 0], [1, -1, 1], [0, 1, -1]])
    scores = np.array([3.0, 2.5, 2.0, 1.0])
    assert objective(batch[:2], scores[:2], 1.0) == 5.5 + 2 + 1 + 1
    assert greedy_submodular(batch, scores, 3, 1.0).tolist() == one_step_at_a_time(batch, scores, 3, 1.0)
    assert greedy_submodular(batch, scores, 2, 100.0).tolist() == [0, 1]


def test_without_alpha_the_best_are_taken() -> None:
    batch, scores = candidates(0, rows=40, knobs=6, choices=3)
    assert greedy_submodular(batch, scores, 10, 0.0).tolist() == list(range(10))


def test_all_are_taken_when_there_are_no_more() -> None:
    batch, scores = candidates(1, rows=6, knobs=3, choices=3)
    assert sorted(greedy_submodular(batch, scores, 10, 1.0).tolist()) == list(range(6))
    assert greedy_submodular(batch[:0], scores[:0], 10, 1.0).tolist() == []


def test_scores_of_any_model_have_one_scale() -> None:
    scores = np.array([5.0, 3.0, -1.0], np.float32)
    assert standardized(scores).min() == 0.0 and standardized(scores).std() == pytest.approx(1.0)
    assert standardized(1e6 + 1e3 * scores) == pytest.approx(standardized(scores), rel=1e-3)
    assert standardized(np.full(4, 7.0, np.float32)).tolist() == [0.0] * 4
    assert len(standardized(np.zeros(0, np.float32))) == 0
