"""Who reuses whom, before anything is measured (ETO, section 6): the plan of tuning a set of operators.

Every operator is either tuned by the search, which takes the trials that the user gives it, or begins with
the program of another one, which takes the rounds of Algorithm 1. The cheapest choice for all of them
together is a minimum-cost arborescence, and with bridges, operators that are only tuned to be reused, a
directed Steiner tree. An operator with a tuned program in the records costs nothing more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import msgspec
import numpy as np

from toolkit.explore.neighbourhood.loops import MajorLoops
from toolkit.reuse.graph.arborescence import Costs
from toolkit.reuse.graph.steiner import steiner_tree
from toolkit.reuse.names import Hops
from toolkit.reuse.plan.bridges import reusable

LOSS = 0.005
"""Share of an operator's speed that a reuse is expected to miss, for each factor of two between the loops; an
estimate. Too low, operators that differ much reuse each other and stay slower; too high, all are searched."""
WORTH = 100.0  # trials that one per cent of the model's latency is worth; a choice of the user's

Expected = Callable[[MajorLoops, MajorLoops], float]
"""Expected trials of the rounds for the first operator that begin with a program of the second."""


class Candidate(msgspec.Struct, frozen=True):
    """An operator of a set.

    `loops`: None where it cannot take part in reuse. `share`: its part of the model's work, 0 for one that is
    only there to be reused. `tuned`: its program is known. `most`: no more trials than the space has points.
    `bridge`: nobody asked for it, it is tuned where that saves trials.
    """

    name: str
    loops: MajorLoops | None
    share: float
    tuned: bool
    most: float = math.inf
    bridge: bool = False


class ReuseOptions(msgspec.Struct, frozen=True):
    """`trials` of the search for an operator that reuses nothing. `worth`: how many trials one per cent of
    the model's latency is worth; 0 counts trials alone, as the paper does. `bridges` that may be tuned."""

    trials: int
    worth: float = WORTH
    bridges: Hops = "one-hop"


class ReuseStep(msgspec.Struct, frozen=True):
    """An operator (`position` in the set) that begins with the program of another, or of none (None)."""

    position: int
    parent: int | None
    trials: float


class ReusePlan(msgspec.Struct, frozen=True):
    """The steps, in generations: the operators of one need only programs of generations before it."""

    generations: tuple[tuple[ReuseStep, ...], ...]

    @property
    def steps(self) -> tuple[ReuseStep, ...]:
        """All steps in order."""
        return tuple(step for generation in self.generations for step in generation)

    @property
    def trials(self) -> float:
        """Expected trials in all."""
        return sum(step.trials for step in self.steps)


def plan_reuse(candidates: Sequence[Candidate], options: ReuseOptions, expected: Expected) -> ReusePlan:
    """The cheapest plan for all candidates that are not tuned yet, with the bridges that pay.

    `expected` says how many trials the rounds take on the target.
    """
    costs, trials = _costs(candidates, options, expected)
    asked = [node for node, item in enumerate(candidates, start=1) if not item.bridge]
    parents = steiner_tree(costs, asked).parents
    steps: dict[int, list[ReuseStep]] = {}
    for position, candidate in enumerate(candidates):
        before = int(parents[position + 1])
        if candidate.tuned or before < 0:
            continue
        parent = before - 1 if before else None
        step = ReuseStep(position, parent, float(trials[before, position + 1]))
        steps.setdefault(_depth(parents.tolist(), candidates, position + 1), []).append(step)
    return ReusePlan(tuple(tuple(steps[depth]) for depth in sorted(steps)))


def _costs(
    candidates: Sequence[Candidate], options: ReuseOptions, expected_of: Expected
) -> tuple[Costs, Costs]:
    """Arc costs and expected trials, float64 [N + 1, N + 1]: node 0 is the search, i + 1 candidate i."""
    count = len(candidates) + 1
    trials = np.full((count, count), np.inf)
    losses = np.zeros((count, count))
    for position, candidate in enumerate(candidates, start=1):
        trials[0, position] = 0.0 if candidate.tuned else min(options.trials, candidate.most)
        if candidate.tuned or candidate.loops is None:
            continue
        for other, source in enumerate(candidates, start=1):
            if source.loops is not None and reusable(candidate.loops, source.loops):
                expected = min(expected_of(candidate.loops, source.loops), candidate.most)
                distance = abs(math.log2(candidate.loops.size / source.loops.size))
                trials[other, position] = expected
                losses[other, position] = 100.0 * candidate.share * LOSS * (1.0 + distance)
    return trials + options.worth * losses, trials


def _depth(parents: Sequence[int], candidates: Sequence[Candidate], node: int) -> int:
    """How many programs must be found before this one."""
    depth = 0
    while node and not candidates[node - 1].tuned:
        node, depth = parents[node], depth + 1
    return depth
