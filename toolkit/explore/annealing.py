"""Simulated annealing with f̂ as its energy, in many Markov chains at once (AutoTVM, section 3.3).

Start at `AnnealingProposer`. One step moves every chain: `mutate` proposes a neighbour of each, one call
scores them all, and each chain accepts by itself. The populations are wide (thousands of chains, few steps),
because features and predictions cost least in large batches; the chains stay where they are between model
updates, so that the steps of all rounds add up. A space small enough to be scored as a whole is scored whole.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from toolkit.cost_model.base import CostModel
from toolkit.explore.names import PRESET_NAMES
from toolkit.explore.proposer import Predicted, Remembering
from toolkit.explore.selection import Candidates, best_first, epsilon_greedy
from toolkit.explore.space import (
    Batch,
    Ids,
    Score,
    SearchSpace,
    draw_unseen,
    enumerated,
    first_of_each,
    fresh,
)

FULL_BATCH: Final = 64  # measurements between two fits of the cost model, as in the paper
FEWEST_STEPS: Final = 3  # of the chains, however small a batch is

Features = Callable[[Batch], NDArray[np.float32]]


class AnnealingOptions(msgspec.Struct, frozen=True):
    """How far one search goes.

    chains * (steps + 1) candidates are scored at most; fewer when the best ones have not changed for
    `patience` steps. The temperature falls linearly from `hottest` to 0, in standard deviations of the
    scores. `elite` of the chains start a round from the fastest measured configurations. `spare` (lambda in
    the paper) full batches of candidates are kept for the selection, which gives `alpha` standard deviations
    of their scores for every choice of a knob that is covered anew (0: the best are taken); so the small
    batches of the beginning, when the model knows little, are the most diverse ones. `epsilon` is the random
    share of a batch.
    """

    chains: int = 2048
    steps: int = 24
    patience: int = 8
    hottest: float = 1.0
    elite: float = 0.125
    spare: float = 2.0
    alpha: float = 0.3
    epsilon: float = 0.05


WIDE: Final = AnnealingOptions()
PAPER: Final = AnnealingOptions(chains=128, steps=500, patience=500, elite=0.0, spare=2.0, alpha=1.0)
"""Supplement A.3: 128 chains, at most 500 steps (b = 64 is the batch of TuningOptions), epsilon = 0.05.

The paper compares lambda = 1, 2 and 4 and does not say which alpha; its chains restart nowhere."""
PRESETS: Final = dict(zip(PRESET_NAMES, (WIDE, PAPER), strict=True))


def shortened(options: AnnealingOptions, n: int) -> AnnealingOptions:
    """Fewer steps for a batch of fewer than FULL_BATCH: measuring it takes less time, so searching should."""
    share = min(1.0, n / FULL_BATCH)
    return replace(options, steps=max(min(options.steps, FEWEST_STEPS), round(options.steps * share)))


class AnnealingProposer(Remembering):
    """The learned search of Algorithm 1. `scored` counts the candidates scored so far.

    features: int64 [N, K] -> float32 [N, F]; model: fitted anew when it has been told something. An
    `informed` model knows enough before that: without one the first batch is random.
    """

    def __init__(
        self,
        space: SearchSpace,
        features: Features,
        model: CostModel,
        rng: np.random.Generator,
        options: AnnealingOptions = AnnealingOptions(),
        *,
        informed: bool = False,
    ) -> None:
        super().__init__(space)
        self._informed = informed
        self._features = features
        self._model = model
        self._rng = rng
        self._options = options
        self._stale = False
        self._fitted_to = 0
        self._chains: Batch = np.zeros((0, len(space.shape)), np.int64)
        self._found: Candidates | None = None  # under the present model
        self.scored = 0

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        super().tell(batch, costs_s)
        self._stale = self._stale or len(batch) > 0

    def ask(self, n: int) -> Batch:
        if n <= 0 or not (len(self._history) or self._informed):
            return self._history.asked(draw_unseen(self._space, self._rng, n, self._history.seen))
        if self._stale:
            self._model.fit(self._features(self._history.batch), self._history.costs_s)
            self._stale, self._fitted_to, self._found = False, len(self._history), None
        candidates = self._candidates(n)
        batch = epsilon_greedy(
            self._space,
            candidates,
            n,
            alpha=self._options.alpha,
            epsilon=self._options.epsilon,
            seen=self._history.seen,
            rng=self._rng,
        )
        return self._history.asked(batch)

    def predicted(self, batch: Batch) -> Predicted | None:
        if not len(batch) or not (self._fitted_to or self._informed):
            return None
        return Predicted(self._model.predict(self._features(batch)), self._fitted_to)

    def _score(self, batch: Batch) -> NDArray[np.float32]:
        self.scored += len(batch)
        return self._model.predict(self._features(batch))

    def _candidates(self, n: int) -> Candidates:
        """The best unmeasured candidates for a batch of n under the present model.

        What an annealing has left of its candidates is enough to fill up its batch, or for a few more.
        """
        if self._found is not None:
            new = ~np.isin(self._space.ids(self._found.batch), self._history.seen)
            left = Candidates(self._found.batch[new], self._found.scores[new])
            if len(left.batch) >= self._options.spare * n:
                return left
        self._found = self._annealed(n)
        return self._found

    def _annealed(self, n: int) -> Candidates:
        wanted = round(self._options.spare * max(n, FULL_BATCH))
        options = shortened(self._options, n)
        if self._space.size <= options.chains * (options.steps + 1):
            blocks = [fresh(self._space, block, self._history.seen) for block in enumerated(self._space)]
            everything = np.concatenate(blocks)
            return best_first(everything, self._score(everything)).first(wanted)
        best = Best(self._space, wanted, self._history.seen)
        self._chains = anneal(self._space, self._score, self._start(), best, options=options, rng=self._rng)
        return best.candidates()

    def _start(self) -> Batch:
        """The chains where the last round left them; some restart from the fastest configurations known."""
        options = self._options
        chains = self._chains
        if not len(chains):
            chains = self._space.sample(self._rng, options.chains)
        places = self._rng.permutation(len(chains))[: round(options.elite * len(chains))]
        elite = self._history.fastest(max(1, len(places) // 4))
        if len(elite) and len(places):
            chains = chains.copy()
            chains[places] = np.resize(elite, (len(places), elite.shape[1]))  # they part at the first step
        return chains


class Best:
    """The best `keep` distinct candidates of all that were offered and are not `seen`."""

    def __init__(self, space: SearchSpace, keep: int, seen: Ids) -> None:
        self._space = space
        self._keep = keep
        self._seen = seen
        self._batch: Batch = np.zeros((0, len(space.shape)), np.int64)
        self._ids: Ids = np.zeros(0, np.uint64)
        self._scores: NDArray[np.float32] = np.zeros(0, np.float32)

    def offer(self, batch: Batch, scores: NDArray[np.float32]) -> bool:
        """Keep what is among the best now. Returns whether anything changed."""
        full = len(self._scores) == self._keep
        hopeful = np.flatnonzero(scores > self._scores[-1]) if full else np.arange(len(scores))
        if not len(hopeful):
            return False
        ids = self._space.ids(batch[hopeful])
        new = ~(np.isin(ids, self._seen) | np.isin(ids, self._ids))
        hopeful, ids = hopeful[new], ids[new]
        distinct = first_of_each(ids)
        if not len(distinct):
            return False
        batch = np.concatenate([self._batch, batch[hopeful[distinct]]])
        ids = np.concatenate([self._ids, ids[distinct]])
        scores = np.concatenate([self._scores, scores[hopeful[distinct]]])
        order = np.argsort(-scores, kind="stable")[: self._keep]
        self._batch, self._ids, self._scores = batch[order], ids[order], scores[order]
        return True

    def candidates(self) -> Candidates:
        """The kept ones, best first."""
        return Candidates(self._batch, self._scores)


def anneal(
    space: SearchSpace,
    score: Score,
    chains: Batch,
    best: Best,
    *,
    options: AnnealingOptions,
    rng: np.random.Generator,
) -> Batch:
    """Run every chain for up to `options.steps` steps, offering all it meets to `best`; returns their ends.

    A chain moves to a neighbour that scores higher always, to one that scores lower by d with probability
    exp(-d / temperature).
    """
    if not len(chains):
        return chains
    scores = score(chains)
    best.offer(chains, scores)
    unchanged = 0
    for step in range(options.steps):
        neighbours = space.mutate(rng, chains)
        offered = score(neighbours)
        unchanged = 0 if best.offer(neighbours, offered) else unchanged + 1
        if unchanged >= options.patience:
            break
        temperature = options.hottest * (1.0 - step / options.steps) * max(float(scores.std()), 1e-6)
        luck = rng.random(len(chains), dtype=np.float32)
        moves = np.log(np.maximum(luck, 1e-30)) * temperature < offered - scores
        chains = np.where(moves[:, None], neighbours, chains)
        scores = np.where(moves, offered, scores)
    return chains
