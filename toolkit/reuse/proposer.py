"""Reuse as a search: it keeps to the contract of toolkit.explore.proposer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import ScheduleSpace
from toolkit.explore.proposer import History, Proposer
from toolkit.explore.space import Batch, fresh
from toolkit.reuse.gpu_rounds import gpu_rounds
from toolkit.reuse.rounds import Known, Program, cpu_rounds, fastest, first_round

PATIENCE: Final = 16  # trials on a CPU
SHARE: Final = 0.01  # of the best time: what so many trials must gain for the rounds to go on
LEAST: Final = 8  # trials before those


def rounds(space: ScheduleSpace, reused: Program | None, known: Known) -> Iterator[Batch]:
    """The rounds of the hierarchical search on the space's target, int64 [N, K] each, all valid.

    What a round holds depends on what is `known` when it is asked for. Without a program to reuse the
    operator's own untuned programs come first, with what the likely best of them calls for; then the fastest
    of them is reused.
    """
    on_cpu = space.target.kind == "cpu"
    if reused is None:
        untuned = space.batch(space.defaults())
        likely = Program(space, space.default(), tuned=False)
        yield np.concatenate([untuned, first_round(space, likely)]) if on_cpu else untuned
        reused = Program(space, space.configuration(fastest(untuned, known)[0]), tuned=False)
    on_target = cpu_rounds if on_cpu else gpu_rounds
    yield from on_target(space, reused, known)


class ReuseProposer:
    """Asks for what a tuned program of another operator calls for, then for what a search would (ETO, 5).

    `reused` None: for what the operator's own untuned program does, the fastest where there are several.

    What was told before it is asked for counts as asked for when its round comes: a search that is begun
    again with its old measurements goes the same way, and ends where it ended. On a CPU the rounds also end
    when PATIENCE trials gained less than SHARE, which saves a third of the trials and loses next to nothing
    (`benchmarks.reuse pairs`). `then` is asked when the rounds are over, and hears every measurement;
    without it the search ends there.
    """

    def __init__(self, space: ScheduleSpace, reused: Program | None, then: Proposer | None = None) -> None:
        self._space = space
        self._then = then
        self._history = History(space)
        self._rounds = rounds(space, reused, self._known)
        self._round: Batch = np.zeros((0, len(space.knobs)), np.int64)

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        rows = self._of_rounds(n)
        if not len(rows) and n > 0 and self._then is not None:
            rows = fresh(self._space, self._then.ask(n), self._history.seen)
        return self._history.asked(rows)

    def tell(self, batch: Batch, costs_s: NDArray[np.float64]) -> None:
        """See Proposer.tell."""
        self._history.told(batch, costs_s)
        if self._then is not None:
            self._then.tell(batch, costs_s)

    def _of_rounds(self, n: int) -> Batch:
        """At most n rows of the round that is due; none when there are no more rounds."""
        if n <= 0 or self._settled():
            return self._round[:0]
        while not len(self._round):
            following = next(self._rounds, None)
            if following is None:
                return self._round
            self._round = following
            self._round = fresh(self._space, following, self._history.seen)
        found, self._round = self._round[:n], self._round[n:]
        return found

    def _settled(self) -> bool:
        """Whether the rounds gained too little to go on, now or before."""
        if self._space.target.kind != "cpu":
            return False
        costs_s = np.where(np.isnan(self._history.costs_s), np.inf, self._history.costs_s)
        best_s = np.minimum.accumulate(costs_s)
        later_s, earlier_s = best_s[LEAST + PATIENCE - 1 :], best_s[LEAST - 1 : -PATIENCE]
        return bool((later_s > (1.0 - SHARE) * earlier_s).any())

    def _known(self, rows: Batch) -> NDArray[np.float64]:
        """See Known."""
        costs_s = np.where(np.isnan(self._history.costs_s), np.inf, self._history.costs_s)
        told = dict(zip(self._space.ids(self._history.batch).tolist(), costs_s.tolist(), strict=True))
        return np.array([told.get(key, np.nan) for key in self._space.ids(rows).tolist()])
