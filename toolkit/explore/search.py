"""The door of this room: a search by its name."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from toolkit.cost_model.base import CostModel
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.cost_model.random_model import RandomModel
from toolkit.errors import InputError
from toolkit.explore.annealing import PRESETS, AnnealingOptions, AnnealingProposer, Features
from toolkit.explore.genetic import GeneticOptions, GeneticProposer
from toolkit.explore.grid import GridProposer
from toolkit.explore.proposer import Proposer
from toolkit.explore.random import RandomProposer
from toolkit.explore.space import SearchSpace

TUNERS: Final = ("annealing", "genetic", "random", "grid")
COST_MODELS: Final = ("rank", "regression", "random")


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Which search, and what guides it; `cost_model` and `annealing` matter to the tuner "annealing" only.

    `features` names what the cost model sees of a program (toolkit.features).
    """

    tuner: str = "annealing"
    cost_model: str = "rank"
    annealing: AnnealingOptions = field(default_factory=AnnealingOptions)
    genetic: GeneticOptions = field(default_factory=GeneticOptions)
    features: str = "context"


def annealing_options(
    preset: str = "wide",
    *,
    alpha: float | None = None,
    spare: float | None = None,
    epsilon: float | None = None,
) -> AnnealingOptions:
    """A preset with some of its numbers replaced: "wide" (ours) or "paper" (AutoTVM, supplement A.3).

    alpha: weight of diversity; spare: lambda; epsilon: random share. Raises InputError for an unknown
    preset, a negative alpha, a lambda below 1 and an epsilon outside [0, 1].
    """
    if preset not in PRESETS:
        raise InputError(f"unknown preset {preset!r}: expected one of {', '.join(PRESETS)}")
    options = PRESETS[preset]
    options = replace(
        options,
        alpha=options.alpha if alpha is None else alpha,
        spare=options.spare if spare is None else spare,
        epsilon=options.epsilon if epsilon is None else epsilon,
    )
    if not (options.alpha >= 0.0 and options.spare >= 1.0 and 0.0 <= options.epsilon <= 1.0):
        raise InputError(
            "search: expected alpha >= 0, lambda >= 1 and epsilon between 0 and 1, "
            f"found alpha {options.alpha:g}, lambda {options.spare:g}, epsilon {options.epsilon:g}"
        )
    return options


def make_proposer(
    space: SearchSpace, features: Features, rng: np.random.Generator, options: SearchOptions
) -> Proposer:
    """The proposer that the options name. Raises InputError for an unknown name."""
    match options.tuner:
        case "annealing":
            model = make_cost_model(options.cost_model, rng)
            return AnnealingProposer(space, features, model, rng, options.annealing)
        case "genetic":
            return GeneticProposer(space, rng, options.genetic)
        case "random":
            return RandomProposer(space, rng)
        case "grid":
            return GridProposer(space)
    raise InputError(f"unknown tuner {options.tuner!r}: expected one of {', '.join(TUNERS)}")


def make_cost_model(name: str, rng: np.random.Generator) -> CostModel:
    """The cost model of this name, seeded from `rng`. Raises InputError for an unknown name."""
    if name == "random":
        return RandomModel(rng)
    seed = int(rng.integers(1 << 31))
    if name == "rank":
        return GradientBoostedTrees("rank", seed=seed)
    if name == "regression":
        return GradientBoostedTrees("regression", seed=seed)
    raise InputError(f"unknown cost model {name!r}: expected one of {', '.join(COST_MODELS)}")
