"""What the studies conclude from: curves of the best found so far, intervals, and when a difference is one.

Intervals are bootstraps over seeds (or operators) at 95 %: the percentiles of resampled means, widened as
Student's t asks for small samples. Two methods are compared seed by seed by the ratio of what they found; a
difference is claimed only when the interval of the geometric mean of the ratios excludes 1, and never from
fewer than FEWEST_PAIRS. Everything else is called a tie.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.stats import norm, rankdata, t

Array = NDArray[np.float64]

CONFIDENCE: Final = 0.95
RESAMPLES: Final = 2000
SEED: Final = 20181203
FEWEST_PAIRS: Final = 5
NEAR: Final = 0.98  # of the fastest there is: who is this near has found what there is to find


@dataclass(frozen=True, slots=True)
class Interval:
    """An estimate and its bounds."""

    estimate: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.estimate:.3f} [{self.low:.3f}, {self.high:.3f}]"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The ratio of what two methods found, geometric mean over `pairs` seeds (or operators)."""

    ratio: Interval
    pairs: int

    @property
    def verdict(self) -> str:
        """ "better", "worse", "tie" (the interval holds 1), or "too few" pairs to tell."""
        if self.pairs < FEWEST_PAIRS:
            return "too few"
        if self.ratio.low <= 1.0 <= self.ratio.high:
            return "tie"
        return "better" if self.ratio.low > 1.0 else "worse"

    def __str__(self) -> str:
        return f"{self.ratio}, {self.verdict}"


def best_so_far(costs_s: Sequence[float], length: int, *, each: int = 1) -> Array:
    """Seconds of the fastest of the first 1, 2, ... trials, float64 [length]; infinite before one worked.

    costs_s: of every evaluation, NaN for failures. each: evaluations that count as one trial. A search that
    ended early keeps its best.
    """
    costs = np.full(length * each, np.inf)
    given = np.asarray(costs_s, dtype=np.float64)[: length * each]
    costs[: len(given)] = np.where(np.isnan(given), np.inf, given)
    return np.asarray(np.minimum.accumulate(costs)[each - 1 :: each])


def band(curves: Array) -> tuple[Array, Array, Array]:
    """Mean and bounds of S curves, float64 [S, T] -> three of [T]; one curve is its own bounds."""
    draws = _draws(len(curves))
    means = np.stack([curves[rows].mean(axis=0) for rows in draws])
    mean = curves.mean(axis=0)
    low, high = np.quantile(means, _TAILS, axis=0)
    wider = widening(len(curves))
    return mean, mean - wider * (mean - low), mean + wider * (high - mean)


def mean_interval(values: Sequence[float]) -> Interval:
    """The mean of a sample with its interval."""
    sample = np.asarray(values, dtype=np.float64)
    means = sample[_draws(len(sample))].mean(axis=1)
    low, high = np.quantile(means, _TAILS)
    mean, wider = float(sample.mean()), widening(len(sample))
    return Interval(mean, mean - wider * (mean - float(low)), mean + wider * (float(high) - mean))


def widening(count: int) -> float:
    """How much wider than its bootstrap percentiles the interval of a mean of `count` values must be.

    Student's t over the normal quantile, times sqrt(n / (n - 1)) because
    resamples vary around the sample's own mean (Hesterberg, "What teachers should know about the bootstrap").
    """
    if count < 2:
        return 1.0
    upper = (1.0 + CONFIDENCE) / 2.0
    return float(np.sqrt(count / (count - 1)) * t.ppf(upper, count - 1) / norm.ppf(upper))


def compare(found: Sequence[float], other: Sequence[float]) -> Comparison:
    """How `found` does against `other`, pair by pair: values of one unit where higher is better.

    Raises ValueError for samples of different length, empty ones, and values that are not positive.
    """
    mine, theirs = np.asarray(found, dtype=np.float64), np.asarray(other, dtype=np.float64)
    if mine.shape != theirs.shape or mine.ndim != 1 or not len(mine):
        raise ValueError(f"expected as many values of both, at least one: found {mine.shape}, {theirs.shape}")
    if not ((mine > 0).all() and (theirs > 0).all()):
        raise ValueError("expected positive values, of which a ratio can be taken")
    logarithms = mean_interval(np.log(mine / theirs).tolist())
    low, high = float(np.exp(logarithms.low)), float(np.exp(logarithms.high))
    return Comparison(Interval(float(np.exp(logarithms.estimate)), low, high), len(mine))


def trials_to_reach(best_s: Array, goal_s: float) -> int | None:
    """The first trial, counted from 1, after which a curve of `best_so_far` is at the goal; None: never."""
    reached = np.flatnonzero(best_s <= goal_s)
    return int(reached[0]) + 1 if len(reached) else None


def rank_correlation(scores: ArrayLike, costs_s: ArrayLike) -> float:
    """Spearman's rho of scores and speeds (1 / seconds); ties share their mean rank; NaN costs are slowest.

    0 where scores or speeds are all the same.
    """
    a, b = rankdata(scores), rankdata(-_infinite(costs_s))
    return float(np.corrcoef(a, b)[0, 1]) if np.ptp(a) and np.ptp(b) else 0.0


def top_recall(scores: ArrayLike, costs_s: ArrayLike, k: int) -> float:
    """The share of the k fastest that is among the k with the highest scores; k at most all."""
    costs = _infinite(costs_s)
    k = min(k, len(costs))
    fastest = np.argsort(costs, kind="stable")[:k]
    chosen = np.argsort(-np.asarray(scores, dtype=np.float64), kind="stable")[:k]
    return len(np.intersect1d(fastest, chosen)) / k if k else 1.0


def _infinite(costs_s: ArrayLike) -> Array:
    """Seconds with those of failures infinite."""
    return np.nan_to_num(np.asarray(costs_s, dtype=np.float64), nan=np.inf, posinf=np.inf)


_TAILS: Final = ((1.0 - CONFIDENCE) / 2.0, (1.0 + CONFIDENCE) / 2.0)


def _draws(count: int) -> NDArray[np.int64]:
    """Resamples of `count` items, [RESAMPLES, count]; the same ones for every sample of that size."""
    return np.random.default_rng([SEED, count]).integers(0, count, (RESAMPLES, count))
