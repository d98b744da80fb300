"""When more trials of an operator no longer pay.

Search improves an operator about evenly in the logarithm of its trials: what the last doubling of the trials
gained is a fair guess of what the next one will. An operator has converged when that is a small share.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np


class ConvergenceRule(msgspec.Struct, frozen=True):
    """Converged: after `trials` or more, the last half of them, and at least the last `patience`, gained less
    than `share` of the best time."""

    share: float = 0.01
    trials: int = 64
    patience: int = 32

    def __post_init__(self) -> None:
        if not (0.0 < self.share < 1.0 and self.trials >= 1 and self.patience >= 1):
            raise ValueError(
                "a convergence rule needs a share between 0 and 1 and at least one trial of patience: "
                f"found share={self.share}, trials={self.trials}, patience={self.patience}"
            )


def gain(costs_s: Sequence[float], window: int) -> float:
    """By what share the last `window` trials lowered the best time, 0 to 1.

    costs_s: seconds per call in the order of the trials, NaN for failures. 1 where there was no success
    before the window, 0 where there is none at all.
    """
    costs = np.asarray(costs_s, np.float64)
    worked = np.isfinite(costs)
    if not worked.any():
        return 0.0
    before = costs[: max(0, len(costs) - window)]
    if not np.isfinite(before).any():
        return 1.0
    return float(1.0 - np.nanmin(costs) / np.nanmin(before))


def converged(costs_s: Sequence[float], rule: ConvergenceRule) -> bool:
    """Whether an operator with these trials has converged; one that never worked has, after enough trials."""
    if len(costs_s) < rule.trials:
        return False
    return gain(costs_s, max(rule.patience, len(costs_s) // 2)) < rule.share
