"""The door of this room: a cost model by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from toolkit.cost_model.base import Objective, Saveable
from toolkit.cost_model.bootstrap import MEMBERS, BootstrapEnsemble
from toolkit.cost_model.gbt import GradientBoostedTrees, TreeOptions
from toolkit.cost_model.names import COST_MODELS, ENSEMBLES, TREE_MODELS, Acquisition
from toolkit.cost_model.random_model import RandomModel
from toolkit.cost_model.tree_gru import TrainingOptions, TreeGRU
from toolkit.errors import InputError

PATIENT_TREES: Final = TreeOptions(rounds=300)
PATIENT_TRAINING: Final = TrainingOptions(most_steps=3000, most_loops=1 << 22)

Make = Callable[[int], Saveable]


def make_cost_model(name: str, seed: int, *, channels: int = 0, patient: bool = False) -> Saveable:
    """The cost model of this name.

    channels: of the "tree" features, for TREE_MODELS. patient: it is fitted once, on many records of many
    operators, and may take minutes. Raises InputError for an unknown name, and for a tree
    model without channels; MissingExtra for a tree model where jax is not installed.
    """
    trees = PATIENT_TREES if patient else TreeOptions()
    match name:
        case "gbt":
            return GradientBoostedTrees("rank", seed=seed, options=trees)
        case "gbt-regression":
            return GradientBoostedTrees("regression", seed=seed, options=trees)
        case "random":
            return RandomModel(np.random.default_rng(seed))
    if name in ENSEMBLES:
        return ensemble(lambda own: GradientBoostedTrees("regression", seed=own), ENSEMBLES[name], seed)
    if name not in TREE_MODELS:
        raise InputError(f"unknown cost model {name!r}: expected one of {', '.join(COST_MODELS)}")
    if not channels:
        raise InputError(f"the cost model {name} needs features of kind tree: choose them, or another model")
    objective: Objective = "regression" if name.endswith("-regression") else "rank"
    vanilla, training = name.startswith("vanilla"), PATIENT_TRAINING if patient else TrainingOptions()
    return TreeGRU(channels, objective, vanilla=vanilla, seed=seed, options=training)


def features_of(name: str) -> str:
    """The kind of features that a model of this name reads unless another is asked for."""
    return "tree" if name in TREE_MODELS else "context"


def ensemble(make: Make, acquisition: Acquisition, seed: int) -> BootstrapEnsemble:
    """A bootstrap ensemble of MEMBERS models that `make` gives for seeds of their own."""
    seeds = np.random.default_rng(seed).integers(1 << 31, size=MEMBERS)
    return BootstrapEnsemble([make(int(own)) for own in seeds], acquisition, seed=seed)
