"""From scored candidates to the batch that is measured (AutoTVM, Algorithm 1 and section 3.3)."""

from __future__ import annotations

import math

import msgspec
import numpy as np
from numpy.typing import NDArray

from toolkit.explore.diversity import greedy_submodular, standardized
from toolkit.explore.space import Batch, Ids, SearchSpace, components, draw_unseen, fresh


class Candidates(msgspec.Struct, frozen=True):
    """Distinct configurations int64 [M, K] with their scores float32 [M], best first."""

    batch: Batch
    scores: NDArray[np.float32]

    def first(self, n: int) -> Candidates:
        """The n best."""
        return Candidates(self.batch[:n], self.scores[:n])

    def top(self, space: SearchSpace, n: int, alpha: float) -> Batch:
        """At most n of them: the best ones, or with alpha > 0 those that maximize eq. 3.

        alpha: what covering one more choice of a knob is worth, in standard deviations of the scores.
        """
        if alpha <= 0.0 or n >= len(self.batch):
            return self.batch[:n]
        choices = components(space, self.batch)
        return self.batch[greedy_submodular(choices, standardized(self.scores), n, alpha)]


def best_first(batch: Batch, scores: NDArray[np.float32]) -> Candidates:
    """Candidates in order of falling score; equal scores keep their order."""
    order = np.argsort(-scores, kind="stable")
    return Candidates(batch[order], scores[order])


def random_share(n: int, epsilon: float, rng: np.random.Generator) -> int:
    """How many of a batch of n are drawn at random: epsilon * n, its fraction rounded by chance."""
    share = n * epsilon
    return math.floor(share) + int(rng.random() < share - math.floor(share))


def epsilon_greedy(
    space: SearchSpace,
    candidates: Candidates,
    n: int,
    *,
    alpha: float,
    epsilon: float,
    seen: Ids,
    rng: np.random.Generator,
) -> Batch:
    """(1 - epsilon) n of the best candidates and epsilon n random ones; random ones also fill a shortage.

    The candidates are unseen; alpha as in `Candidates.top`. Returns int64 [at most n, K].
    """
    greedy = candidates.top(space, n - random_share(n, epsilon, rng), alpha)
    taken = np.concatenate([seen, space.ids(greedy)])
    drawn = draw_unseen(space, rng, n - len(greedy), taken)
    # a space that is nearly exhausted may have no random one left, but still ranked ones
    return fresh(space, np.concatenate([greedy, drawn, candidates.batch]), seen)[:n]
