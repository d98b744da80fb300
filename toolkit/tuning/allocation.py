"""Which operator gets the next batch: the one whose trials make the whole model faster soonest.

Pure logic: `choose` gets the state of every operator and returns a position. This is the scheduler of Ansor
(Zheng et al., OSDI 2020, section 6.2): by how much the next batch of an operator should lower the model's
latency is estimated from the operator's own past and, where there is little of that, optimistically; here it
is divided by the seconds that the batch takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
from msgspec.structs import replace

from toolkit.tuning.convergence import ConvergenceRule, converged


class AllocationState(msgspec.Struct, frozen=True):
    """The tuning of one operator so far.

    `weight`: how often the model computes it. `costs_s`: seconds per call of its trials in order, NaN for
    failures. `pending`: trials that were asked for and are not measured yet. `trial_s`: seconds that one of
    its trials takes, 0 when unknown. `batch`: trials that it would get next, 0 when it can have no more.
    Operators of one `kind` (conv, dense, ...) reach a similar throughput.
    """

    weight: float
    flops: int
    kind: str
    costs_s: Sequence[float]
    pending: int
    trial_s: float
    batch: int

    @property
    def best_s(self) -> float:
        """Seconds of the fastest trial; NaN when none worked."""
        worked = [cost for cost in self.costs_s if math.isfinite(cost)]
        return min(worked, default=math.nan)

    @property
    def trials(self) -> int:
        """Measured and pending."""
        return len(self.costs_s) + self.pending


class AllocationOptions(msgspec.Struct, frozen=True):
    """`past`: how much an operator's own past counts against optimism. `similar`: how many times faster than
    the best of its kind an operator is thought to become. `epsilon`: share of the batches that go to an
    operator drawn at random. `rule`: converged operators get nothing while others have not."""

    past: float = 0.5
    similar: float = 2.0
    epsilon: float = 0.05
    rule: ConvergenceRule = msgspec.field(default_factory=ConvergenceRule)


def choose(
    states: Sequence[AllocationState],
    rng: np.random.Generator,
    options: AllocationOptions = AllocationOptions(),
) -> int | None:
    """Position of the operator that gets the next batch; None when none can have more.

    Every operator gets one batch first, the one with the most work at the head; after that the operator with
    the largest `expected_falls` does. Ties go to the first.
    """
    able = [position for position, state in enumerate(states) if state.batch > 0]
    untried = [position for position in able if not states[position].trials]
    if untried:
        return max(untried, key=lambda position: states[position].weight * states[position].flops)
    worth = [item for item in able if not converged(states[item].costs_s, options.rule)] or able
    if not worth:
        return None
    if rng.random() < options.epsilon:
        return worth[int(rng.integers(len(worth)))]
    falls = expected_falls(states, options)
    return max(worth, key=lambda position: falls[position])


def shared(states: Sequence[AllocationState], left: int) -> list[AllocationState]:
    """The states with batches of `left` trials at most; untried operators share them equally."""
    share = max(1, left // _untried(states))
    return [
        replace(state, batch=max(0, min(state.batch, left if state.trials else min(left, share))))
        for state in states
    ]


def fitting(states: Sequence[AllocationState], left_s: float) -> list[AllocationState]:
    """The states with batches that can be measured in `left_s`, after the trials that are pending.

    Where the seconds of an operator's trials are unknown, the mean of the others is used; where that is
    unknown too, the batch stays as it is.
    """
    usual_s = _usual_trial_s(states)
    left_s -= sum(state.pending * (state.trial_s or usual_s) for state in states)
    share_s = left_s / _untried(states)
    fit = []
    for state in states:
        trial_s = state.trial_s or usual_s
        most = int(left_s / trial_s) if trial_s else state.batch
        if trial_s and not state.trials and most:
            most = max(1, int(share_s / trial_s))
        fit.append(replace(state, batch=max(0, min(state.batch, most)) if left_s > 0 else 0))
    return fit


def expected_falls(states: Sequence[AllocationState], options: AllocationOptions) -> list[float]:
    """Seconds by which each operator's next batch should lower the model's latency, per second of it."""
    usual_s = _usual_trial_s(states) or 1.0
    fastest = _throughputs(states)
    unknown_s = _mean([state.best_s for state in states if math.isfinite(state.best_s)]) or 1.0
    falls = []
    for state in states:
        floor_s = state.flops / (options.similar * fastest.get(state.kind, math.inf))
        fall_s = expected_fall_s(state, floor_s, unknown_s, options.past)
        falls.append(state.weight * fall_s / (max(1, state.batch) * (state.trial_s or usual_s)))
    return falls


def expected_fall_s(state: AllocationState, floor_s: float, unknown_s: float, past: float) -> float:
    """By how much the next batch should lower the operator's own time.

    Its past: what the last doubling of its trials gained, a doubling more will. Optimism: n trials after t
    take the share n / t off its time, down to `floor_s`. `unknown_s`: its time as long as nothing worked.
    """
    done, more = max(1, state.trials), max(1, state.batch)
    best_s = state.best_s if math.isfinite(state.best_s) else unknown_s
    before = [cost for cost in state.costs_s[: done // 2] if math.isfinite(cost)]
    gained_s = max(0.0, min(before, default=best_s) - best_s) if len(state.costs_s) >= done // 2 else 0.0
    expected_s = min(best_s, gained_s * math.log2(1.0 + more / done))
    hoped_s = min(best_s * more / done, max(0.0, best_s - floor_s))
    return past * expected_s + (1.0 - past) * hoped_s


def _throughputs(states: Sequence[AllocationState]) -> dict[str, float]:
    """Operations per second of the fastest operator of each kind."""
    fastest: dict[str, float] = {}
    for state in states:
        if math.isfinite(state.best_s) and state.flops:
            fastest[state.kind] = max(fastest.get(state.kind, 0.0), state.flops / state.best_s)
    return fastest


def _untried(states: Sequence[AllocationState]) -> int:
    """How many operators wait for their first batch; 1 when none does."""
    return max(1, sum(state.batch > 0 and not state.trials for state in states))


def _usual_trial_s(states: Sequence[AllocationState]) -> float:
    return _mean([state.trial_s for state in states if state.trial_s > 0])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
