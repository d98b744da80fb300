"""Choosing a batch that is fast and covers much (AutoTVM, section 3.3, eq. 3)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.space import Batch


def greedy_submodular(batch: Batch, scores: NDArray[np.float64], n: int, alpha: float) -> NDArray[np.intp]:
    """Positions of at most n rows that make L(S) large, in the order of the choice; equals: the first row.

    L(S) of eq. 3 is the sum of the scores of S, and alpha for every distinct choice of every knob in S.
    batch: int64 [N, K] choices, negative where a row makes none; scores: float64 [N], higher = faster (the
    paper's f̂ is a cost, hence its minus).

    Each step takes the row that adds most. L is submodular, and adding a constant to all scores changes no
    choice of a given size; so, scores counted from the lowest, L of the answer is at least 1 - 1/e of the
    largest possible (Nemhauser et al., 1978).
    """
    value = scores.astype(np.float64, copy=True)
    uncovered = batch >= 0
    novelty = uncovered.sum(axis=1).astype(np.float64)  # choices that a row would cover anew
    chosen = np.zeros(min(n, len(batch)), dtype=np.intp)
    for place in range(len(chosen)):
        best = int(np.argmax(value + alpha * novelty))
        chosen[place] = best
        value[best] = -np.inf
        covered = uncovered & (batch == batch[best])
        uncovered ^= covered
        novelty -= covered.sum(axis=1)
    return chosen


def standardized(scores: NDArray[np.float32]) -> NDArray[np.float64]:
    """Scores in standard deviations above the lowest, so that one alpha suits every cost model."""
    if not len(scores):
        return np.zeros(0)
    raised: NDArray[np.float64] = scores.astype(np.float64) - float(scores.min())
    deviation = float(raised.std())
    return raised / deviation if deviation > 0.0 else np.zeros(len(scores))
