"""The door of this room: a search by its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from toolkit.cost_model.base import CostModel
from toolkit.cost_model.gbt import GradientBoostedTrees
from toolkit.cost_model.random_model import RandomModel
from toolkit.errors import InputError
from toolkit.explore.annealing import AnnealingOptions, AnnealingProposer, Features
from toolkit.explore.grid import GridProposer
from toolkit.explore.proposer import Proposer
from toolkit.explore.random import RandomProposer
from toolkit.explore.space import SearchSpace

TUNERS: Final = ("annealing", "random", "grid")
COST_MODELS: Final = ("rank", "regression", "random")


@dataclass(frozen=True, slots=True)
class SearchOptions:
    """Which search, and what guides it; `cost_model` and `annealing` matter to the tuner "annealing" only."""

    tuner: str = "annealing"
    cost_model: str = "rank"
    annealing: AnnealingOptions = field(default_factory=AnnealingOptions)


def make_proposer(
    space: SearchSpace, features: Features, rng: np.random.Generator, options: SearchOptions
) -> Proposer:
    """The proposer that the options name. Raises InputError for an unknown name."""
    match options.tuner:
        case "annealing":
            model = make_cost_model(options.cost_model, rng)
            return AnnealingProposer(space, features, model, rng, options.annealing)
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
