"""Local search in rounds: each round tries changes of the fastest configuration of the rounds before.

`descend` is the one driver of rounds; what the rounds of a target kind change is a list of steps
(neighbourhood/cpu.py, toolkit.reuse.rounds). `RoundsProposer` makes a Proposer of rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from toolkit.explore.proposer import Remembering
from toolkit.explore.space import Batch, Identify, SearchSpace, unseen

Known = Callable[[Batch], NDArray[np.float64]]
"""Seconds of configurations, [N]: infinite for one that failed, NaN for one that is not measured yet."""
Step = Callable[[NDArray[np.int64]], Batch]
"""The configurations, [N, K], that one round tries around the fastest one so far, [K]."""
Rounds = Iterator[Batch]
"""Rounds one after the other, int64 [N, K] each; one is asked for when those before are measured."""

GAIN: Final = 0.99
"""Another pass follows one after which the fastest program takes less than this share of the time that the
fastest one took before it; with 1.0 the noise of measurements would repeat passes."""
PATIENCE: Final = 14
"""Programs in a row that must gain SETTLED for the rounds to go on. Ending there saves a third of the
programs and loses next to nothing (`benchmarks.reuse pairs`); much sooner, no tiles would be changed."""
SETTLED: Final = 0.01  # of the best time
FEWEST: Final = 8  # programs before those


def descend(
    first: Batch,
    steps: Sequence[Step],
    known: Known,
    *,
    also: Batch | None = None,
    passes: int = 1,
    stops_failed: bool = False,
) -> Rounds:
    """`first`, then the steps in order, each around the fastest configuration so far, in several passes.

    A pass follows another one only where that made the program faster than GAIN. `also`: configurations that
    are known without these rounds, and may be the fastest. `stops_failed`: no step follows where everything
    that was tried failed; otherwise the steps go on around the first one.
    """
    yield first
    tried = first if also is None else np.concatenate([first, also])
    pass_from_s = np.inf
    for _ in range(passes):
        best_s = float(np.fmin.reduce(known(tried), initial=np.inf))
        if best_s > GAIN * pass_from_s:
            return
        pass_from_s = best_s
        for step in steps:
            if stops_failed and np.isinf(known(tried)).all():
                return
            rows = step(fastest(tried, known))
            yield rows
            tried = np.concatenate([tried, rows])


def side_by_side(searches: Iterable[Rounds]) -> Rounds:
    """Several rounds at once, the first ones together and so on, as long as one of them goes on."""
    going = list(searches)
    while going:
        found = [(rounds, rows) for rounds in going if (rows := next(rounds, None)) is not None]
        going = [rounds for rounds, _ in found]
        if found:
            yield np.concatenate([rows for _, rows in found])


def fastest(rows: Batch, known: Known) -> NDArray[np.int64]:
    """The fastest of some configurations, [N, K]; where none ran the first that is still to be measured, or
    the first of all."""
    costs_s = known(rows)
    ran = np.isfinite(costs_s).any()
    found: NDArray[np.int64] = rows[np.nanargmin(costs_s) if ran else np.isnan(costs_s).argmax()]
    return found


class RoundsProposer(Remembering):
    """Rounds as a search: it keeps to the contract of toolkit.explore.proposer.

    `rounds` begins them; what a round holds depends on what is known when it is asked for. `programs` tells
    which configurations make the same program; None: none do. With `waits` a round waits for the costs of
    the one before; leave it off where another proposer has something to measure meanwhile. The rounds end
    before the last one when `patience` programs in a row gained less than SETTLED; None: they do not.

    What was told before it is asked for counts as asked for when its round comes: a search that is begun
    again with its old measurements goes the same way, and ends where it ended.
    """

    def __init__(
        self,
        space: SearchSpace,
        rounds: Callable[[Known], Rounds],
        programs: Identify | None = None,
        *,
        waits: bool = True,
        patience: int | None = PATIENCE,
    ) -> None:
        super().__init__(space, programs)
        self._rounds = rounds(self._known)
        self._waits = waits
        self._patience = patience
        self._round: Batch = np.zeros((0, len(space.shape)), np.int64)

    def ask(self, n: int) -> Batch:
        """See Proposer.ask: at most n rows of the round that is due; none when there are no more rounds."""
        if n <= 0 or self._settled():
            return self._round[:0]
        while not len(self._round):
            waits = self._waits and self._history.pending
            following = None if waits else next(self._rounds, None)
            if following is None:
                return self._round
            self._round = unseen(following, self._history.identify(following), self._history.seen)
        found, self._round = self._round[:n], self._round[n:]
        return self._history.asked(found)

    def _settled(self) -> bool:
        """Whether the programs told last gained too little to go on, now or before."""
        if self._patience is None:
            return False
        best_s = np.minimum.accumulate(self._costs_s())
        later_s, earlier_s = best_s[FEWEST + self._patience - 1 :], best_s[FEWEST - 1 : -self._patience]
        return bool((later_s > (1.0 - SETTLED) * earlier_s).any())

    def _known(self, rows: Batch) -> NDArray[np.float64]:
        """See Known."""
        history = self._history
        told = dict(zip(history.identify(history.batch).tolist(), self._costs_s().tolist(), strict=True))
        return np.array([told.get(key, np.nan) for key in history.identify(rows).tolist()])

    def _costs_s(self) -> NDArray[np.float64]:
        """Seconds of every program that was told, float64 [N]; infinite for one that failed."""
        costs_s = self._history.costs_s
        return np.where(np.isnan(costs_s), np.inf, costs_s)
