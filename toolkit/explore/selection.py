"""From scored candidates to the batch that is measured (AutoTVM, Algorithm 1 and section 3.3)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.space import Batch, Ids, SearchSpace, draw_unseen, fresh


def random_share(n: int, epsilon: float, rng: np.random.Generator) -> int:
    """How many of a batch of n are drawn at random: epsilon * n, its fraction rounded by chance."""
    share = n * epsilon
    return math.floor(share) + int(rng.random() < share - math.floor(share))


def epsilon_greedy(
    space: SearchSpace,
    ranked: Batch,
    n: int,
    *,
    epsilon: float,
    seen: Ids,
    rng: np.random.Generator,
) -> Batch:
    """(1 - epsilon) n of the best candidates and epsilon n random ones; random ones also fill a shortage.

    ranked: int64 [M, K], best first, distinct and unseen. Returns int64 [at most n, K].
    """
    greedy = top(ranked, n - random_share(n, epsilon, rng))
    taken = np.concatenate([seen, space.ids(greedy)])
    drawn = draw_unseen(space, rng, n - len(greedy), taken)
    # a space that is nearly exhausted may have no random one left, but still ranked ones
    return fresh(space, np.concatenate([greedy, drawn, ranked]), seen)[:n]


def top(ranked: Batch, n: int) -> Batch:
    """The n best. The greedy submodular choice of eq. 3, for diversity, has its place here."""
    return ranked[:n]


def best_first(batch: Batch, scores: NDArray[np.float32]) -> Batch:
    """A batch in order of falling score; equal scores keep their order."""
    return batch[np.argsort(-scores, kind="stable")]
