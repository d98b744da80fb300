"""The rank loss of eq. 2 (AutoTVM, section 3.2) over pairs of measurements of one operator.

The loss of a pair is log(1 + exp(-sign(l_i - l_j) (f_i - f_j))). Its gradient needs sigmoid(f_i - f_j) of
every pair; written as e_i / (e_i + e_j) with e = exp(f) that takes one exponential a row and one division a
pair.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.cost_model.base import Groups

MOST_PARTNERS: Final = 512
FEWEST_PARTNERS: Final = 64
MOST_PAIRS: Final = 1 << 20
"""Each of N measurements meets MOST_PARTNERS others of its group at most, fewer where N is large: a fit is
linear in N."""
_MIN_HESSIAN: Final = 1e-6
_STEEPEST: Final = 80.0  # scores are cut to the middle ± this, where exp stays within float32

Gradient = Callable[[NDArray[np.float32], Any], tuple[NDArray[np.float64], NDArray[np.float64]]]


class _Group(msgspec.Struct, frozen=True):
    """Rows of one operator, and the rows that each of them meets; float32 [rows, partners] each.

    `differ` is 1 where the labels differ, `wins` where the row's own is the higher one.
    """

    rows: NDArray[np.int64]
    partners: NDArray[np.int64]
    differ: NDArray[np.float32]
    wins: NDArray[np.float32]


def pairwise_rank(
    labels: NDArray[np.float64], rng: np.random.Generator, groups: Groups | None = None
) -> Gradient:
    """Gradient and diagonal Hessian of eq. 2, summed over the pairs of each row and divided by their number.

    labels: float64 [N], higher = faster; equal labels (failures) make no pair, and neither do rows of
    different groups. Written out instead of XGBoost's `rank:pairwise` because that samples pairs within one
    query and ranks this data worse.
    """
    count = len(labels)
    limit = min(MOST_PARTNERS, max(FEWEST_PARTNERS, MOST_PAIRS // count))
    parts = [_group(rows, labels, limit, rng) for rows in rows_of_groups(groups, count)]
    meets = np.ones(count)
    wins = np.zeros(count)
    for part in parts:
        meets[part.rows] = np.maximum(part.differ.sum(axis=1), 1.0)
        wins[part.rows] = part.wins.sum(axis=1)

    def gradient(scores: NDArray[np.float32], _: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        first, second = -wins, np.zeros(count)
        for part in parts:
            better, uncertain = _sums(part, np.asarray(scores, np.float32))
            first[part.rows] += better
            second[part.rows] = uncertain
        return first / meets, np.maximum(second / meets, _MIN_HESSIAN)

    return gradient


def rows_of_groups(groups: Groups | None, count: int) -> list[NDArray[np.int64]]:
    """The rows of each group, in order; one group of all `count` rows where there is none."""
    if groups is None:
        return [np.arange(count)]
    order = np.argsort(groups, kind="stable")
    starts = np.flatnonzero(np.diff(groups[order])) + 1
    return np.split(order, starts)


def _group(
    rows: NDArray[np.int64], labels: NDArray[np.float64], limit: int, rng: np.random.Generator
) -> _Group:
    partners = rows if len(rows) <= limit else rows[np.sort(rng.choice(len(rows), limit, replace=False))]
    own, others = labels[rows][:, None], labels[partners][None, :]
    return _Group(rows, partners, (own != others).astype(np.float32), (own > others).astype(np.float32))


def _sums(group: _Group, scores: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Sums over the pairs of each row: of p = sigmoid(f_i - f_j), and of p (1 - p)."""
    middle = np.float32(np.median(scores[group.rows]))
    own, others = (
        np.exp(np.clip(scores[places] - middle, -_STEEPEST, _STEEPEST))
        for places in (group.rows, group.partners)
    )
    better = own[:, None] / (own[:, None] + others[None, :])
    masked = better * group.differ
    total: NDArray[np.float32] = masked.sum(axis=1)
    uncertain: NDArray[np.float32] = total - np.einsum("ij,ij->i", masked, better)
    return total, uncertain
