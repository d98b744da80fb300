"""Whether one program is faster than another, from pairs of measurements that were taken in turn.

Each pair is the fastest of some runs of either program, right after one another, so that whatever drifts (a
clock that falls, a neighbour that comes and goes) meets both. What is estimated is the ratio of their times,
by the Hodges-Lehmann estimator with the interval of Wilcoxon's signed-rank test (Hollander, Wolfe, Chicken,
"Nonparametric statistical methods", 3.2 and 3.3): exact for any noise that treats both programs the same, and
hardly moved by a few disturbed pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

CONFIDENCE: Final = 0.99  # of 50 comparisons of equal programs, more than 2 are wrong in 1 of 70 cases
Verdict = Literal["faster", "slower", "no difference found", "too few runs to tell"]


class Comparison(msgspec.Struct, frozen=True):
    """How many times as fast the second program is, with its 99 % interval over `pairs` pairs.

    low is 0 and high None where the pairs are too few for any interval.
    """

    ratio: float
    low: float
    high: float | None
    pairs: int
    verdict: Verdict


def compare(before_s: Sequence[float], after_s: Sequence[float], looks: int = 1) -> Comparison:
    """The second program against the first: seconds of each pair, positive, at least one pair.

    `looks`: how often the pairs are compared while they grow, to end as soon as one is clear. The chance of a
    wrong verdict is shared equally by all looks (Bonferroni), so that CONFIDENCE holds for all together.
    Raises ValueError for samples of different length, empty ones, and times that are not positive.
    """
    before, after = np.asarray(before_s, np.float64), np.asarray(after_s, np.float64)
    if before.shape != after.shape or before.ndim != 1 or not len(before):
        raise ValueError(f"expected as many times of both, at least one: found {before.shape}, {after.shape}")
    if not ((before > 0).all() and (after > 0).all()):
        raise ValueError("expected positive times, of which a ratio can be taken")
    logarithms = np.log(before / after)
    rows, columns = np.triu_indices(len(logarithms))
    averages = np.sort((logarithms[rows] + logarithms[columns]) / 2)  # Walsh averages
    ratio = float(np.exp(np.median(averages)))
    left_out = _left_out(len(logarithms), (1.0 - CONFIDENCE) / looks)
    if left_out is None:
        return Comparison(ratio, 0.0, None, len(before), "too few runs to tell")
    low, high = (float(np.exp(averages[at])) for at in (left_out, len(averages) - 1 - left_out))
    verdict: Verdict = "faster" if low > 1.0 else "slower" if high < 1.0 else "no difference found"
    return Comparison(ratio, low, high, len(before), verdict)


def _left_out(pairs: int, wrong: float) -> int | None:
    """How many Walsh averages the interval leaves out at either end; None where even all are too few.

    That many sums of ranks are so small that chance gives one of them, or of those as large at the other end,
    in less than `wrong` of all cases.
    """
    ways: NDArray[np.float64] = np.ones(1)
    for rank in range(1, pairs + 1):  # ways to reach a sum of ranks, with every rank counted or not
        ways = np.pad(ways, (0, rank)) + np.pad(ways, (rank, 0))
    tail = np.cumsum(ways) / 2.0**pairs
    fitting = int(np.searchsorted(tail, wrong / 2, side="right"))
    return fitting - 1 if fitting else None
