"""Reuse as a search: it keeps to the contract of toolkit.explore.proposer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np
from numpy.typing import NDArray

from cross.schedule.space import ScheduleSpace
from toolkit.explore.proposer import History, Proposer
from toolkit.explore.space import Batch, Identify, Ids, fresh, unseen
from toolkit.reuse.rounds.gpu_rounds import gpu_rounds
from toolkit.reuse.rounds.rounds import Known, Program, cpu_rounds, fastest, first_round

PATIENCE: Final = 14  # programs on a CPU
SHARE: Final = 0.01  # of the best time: what so many trials must gain for the rounds to go on
LEAST: Final = 8  # programs before those


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
    `then` is asked when the rounds are over, and hears every measurement; without it the search ends there.
    `programs` tells which configurations make the same program; None: none do.

    What was told before it is asked for counts as asked for when its round comes: a search that is begun
    again with its old measurements goes the same way, and ends where it ended. For that a round waits for the
    costs of the one before, unless `then` follows, which asks for more in any case. On a CPU the rounds also
    end when PATIENCE programs gained less than SHARE, which saves a third of them and loses next to nothing
    (`benchmarks.reuse pairs`).
    """

    def __init__(
        self,
        space: ScheduleSpace,
        reused: Program | None,
        then: Proposer | None = None,
        programs: Identify | None = None,
    ) -> None:
        self._space = space
        self._then = then
        self._history = History(space, programs)
        self._rounds = rounds(space, reused, self._known)
        self._round: Batch = np.zeros((0, len(space.knobs)), np.int64)
        self._asked: Ids = np.zeros(0, np.uint64)  # in rounds; the search does not know of those yet

    def ask(self, n: int) -> Batch:
        """See Proposer.ask."""
        rows = self._history.asked(self._of_rounds(n))
        self._asked = np.union1d(self._asked, self._space.ids(rows))
        return rows if len(rows) or self._then is None else self._of_search(self._then, n)

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
            following = None if self._waits() else next(self._rounds, None)
            if following is None:
                return self._round
            self._round = unseen(following, self._history.identify(following), self._history.seen)
        found, self._round = self._round[:n], self._round[n:]
        return found

    def _of_search(self, search: Proposer, n: int) -> Batch:
        """At most n rows of the search that follows, without those of rounds that are still measured."""
        found = self._round[:0]
        wanted = n
        while wanted > 0:
            rows = search.ask(wanted)
            found = np.concatenate([found, fresh(self._space, rows, self._asked)])
            wanted = n - len(found) if len(rows) == wanted else 0
        return found

    def _waits(self) -> bool:
        """Whether a new round would begin too early."""
        return self._then is None and self._history.pending

    def _settled(self) -> bool:
        """Whether the rounds gained too little to go on, now or before."""
        if self._space.target.kind != "cpu":
            return False
        best_s = np.minimum.accumulate(self._costs_s())
        later_s, earlier_s = best_s[LEAST + PATIENCE - 1 :], best_s[LEAST - 1 : -PATIENCE]
        return bool((later_s > (1.0 - SHARE) * earlier_s).any())

    def _known(self, rows: Batch) -> NDArray[np.float64]:
        """See Known."""
        history = self._history
        told = dict(zip(history.identify(history.batch).tolist(), self._costs_s().tolist(), strict=True))
        return np.array([told.get(key, np.nan) for key in history.identify(rows).tolist()])

    def _costs_s(self) -> NDArray[np.float64]:
        """Of every program that was told, [N]; infinite for one that failed."""
        costs_s: NDArray[np.float64] = np.where(
            np.isnan(self._history.costs_s), np.inf, self._history.costs_s
        )
        return costs_s
