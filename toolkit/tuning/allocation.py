"""Which operator gets the next batch: the one whose trials make the whole model faster soonest.

Pure logic: `choose` sees what the records know (`Course`) and returns a position. It follows the scheduler of
Ansor (Zheng et al., OSDI 2020, section 6.2): the fall of the model's latency that the next batch of each
operator promises is guessed from its own past and, where there is little of that, optimistically; here it is
divided by the seconds that the batch takes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from toolkit.tuning.convergence import ConvergenceRule, converged


@dataclass(frozen=True, slots=True)
class Course:
    """How the tuning of one operator went so far.

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
        """Of all trials; NaN when none worked."""
        worked = [cost for cost in self.costs_s if math.isfinite(cost)]
        return min(worked, default=math.nan)

    @property
    def trials(self) -> int:
        """Measured and pending."""
        return len(self.costs_s) + self.pending


@dataclass(frozen=True, slots=True)
class AllocationOptions:
    """`past`: how much an operator's own past counts against optimism. `similar`: how many times faster than
    the best of its kind an operator is thought to become. `epsilon`: share of the batches that go to an
    operator drawn at random. `rule`: converged operators get nothing while others have not."""

    past: float = 0.5
    similar: float = 2.0
    epsilon: float = 0.05
    rule: ConvergenceRule = field(default_factory=ConvergenceRule)


def choose(
    courses: Sequence[Course], rng: np.random.Generator, options: AllocationOptions = AllocationOptions()
) -> int | None:
    """Position of the operator that gets the next batch; None when none can have more.

    First everyone gets a batch, the largest share of the work first; then it goes where `expected_fall_s`
    per second is largest. Equal ones in the order given.
    """
    able = [position for position, course in enumerate(courses) if course.batch > 0]
    untried = [position for position in able if not courses[position].trials]
    if untried:
        return max(untried, key=lambda position: courses[position].weight * courses[position].flops)
    worth = [item for item in able if not converged(courses[item].costs_s, options.rule)] or able
    if not worth:
        return None
    if rng.random() < options.epsilon:
        return worth[int(rng.integers(len(worth)))]
    falls = expected_falls(courses, options)
    return max(worth, key=lambda position: falls[position])


def shared(courses: Sequence[Course], left: int) -> list[Course]:
    """The courses with batches of `left` trials at most; untried operators leave each other some of them."""
    share = max(1, left // _untried(courses))
    return [
        replace(course, batch=max(0, min(course.batch, left if course.trials else min(left, share))))
        for course in courses
    ]


def fitting(courses: Sequence[Course], left_s: float) -> list[Course]:
    """The courses with batches that can be measured in the time that is left, after what is pending.

    An operator whose pace is unknown takes the usual one, and where none is known, its first batch.
    """
    usual_s = _usual_trial_s(courses)
    left_s -= sum(course.pending * (course.trial_s or usual_s) for course in courses)
    share_s = left_s / _untried(courses)
    fit = []
    for course in courses:
        trial_s = course.trial_s or usual_s
        most = int(left_s / trial_s) if trial_s else course.batch
        if trial_s and not course.trials and most:
            most = max(1, int(share_s / trial_s))
        fit.append(replace(course, batch=max(0, min(course.batch, most)) if left_s > 0 else 0))
    return fit


def expected_falls(courses: Sequence[Course], options: AllocationOptions) -> list[float]:
    """For each operator, by how many seconds its next batch should lower the model's latency, each second."""
    usual_s = _usual_trial_s(courses) or 1.0
    fastest = _throughputs(courses)
    unknown_s = _mean([course.best_s for course in courses if math.isfinite(course.best_s)]) or 1.0
    falls = []
    for course in courses:
        floor_s = course.flops / (options.similar * fastest.get(course.kind, math.inf))
        fall_s = expected_fall_s(course, floor_s, unknown_s, options.past)
        falls.append(course.weight * fall_s / (max(1, course.batch) * (course.trial_s or usual_s)))
    return falls


def expected_fall_s(course: Course, floor_s: float, unknown_s: float, past: float) -> float:
    """By how much the next batch should lower the operator's own time.

    Its past: what the last doubling of its trials gained, a doubling more will. Optimism: n trials after t
    take the share n / t off its time, down to `floor_s`. `unknown_s`: its time as long as nothing worked.
    """
    done, more = max(1, course.trials), max(1, course.batch)
    best_s = course.best_s if math.isfinite(course.best_s) else unknown_s
    before = [cost for cost in course.costs_s[: done // 2] if math.isfinite(cost)]
    gained_s = max(0.0, min(before, default=best_s) - best_s) if len(course.costs_s) >= done // 2 else 0.0
    expected_s = min(best_s, gained_s * math.log2(1.0 + more / done))
    hoped_s = min(best_s * more / done, max(0.0, best_s - floor_s))
    return past * expected_s + (1.0 - past) * hoped_s


def _throughputs(courses: Sequence[Course]) -> dict[str, float]:
    """Operations per second of the fastest operator of each kind."""
    fastest: dict[str, float] = {}
    for course in courses:
        if math.isfinite(course.best_s) and course.flops:
            fastest[course.kind] = max(fastest.get(course.kind, 0.0), course.flops / course.best_s)
    return fastest


def _untried(courses: Sequence[Course]) -> int:
    """How many operators wait for their first batch; 1 when none does."""
    return max(1, sum(course.batch > 0 and not course.trials for course in courses))


def _usual_trial_s(courses: Sequence[Course]) -> float:
    return _mean([course.trial_s for course in courses if course.trial_s > 0])


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
