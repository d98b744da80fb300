"""The door of this room: a search by its name."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cross.loopnest.program import Programs
from toolkit.cost_model.base import CostModel
from toolkit.cost_model.choose import features_of, make_cost_model
from toolkit.cost_model.model_file import check_features, facts
from toolkit.cost_model.names import COST_MODELS, DEFAULT, TREE_MODELS
from toolkit.cost_model.shipped import load_prior
from toolkit.cost_model.transfer import Transfer
from toolkit.errors import InputError
from toolkit.explore.annealing import PRESETS, AnnealingOptions, AnnealingProposer, Features
from toolkit.explore.baselines import GeneticOptions, GeneticProposer, GridProposer, RandomProposer
from toolkit.explore.names import FIRST, TUNERS
from toolkit.explore.proposer import Proposer
from toolkit.explore.space import SearchSpace
from toolkit.features.base import Features as NamedFeatures
from toolkit.features.choose import make_features
from toolkit.features.joint import JointFeatures

NETWORK_CHAINS: Final = 256  # at most, where a network scores


class SearchOptions(msgspec.Struct, frozen=True):
    """Which search, and what guides it; only the tuner "annealing" reads more than the first.

    `cost_model` is one of toolkit.cost_model.names.COST_MODELS. `features` names what it sees of a program
    (toolkit.features); empty: what models of this name read. `prior`: a file of a model that was trained on
    other operators; the cost model learns what to add to it. `first` says where annealing without a prior
    begins on a CPU: around the untuned program (toolkit.tuning.on_board), or anywhere (the AutoTVM paper).
    """

    tuner: str = "annealing"
    cost_model: str = DEFAULT
    annealing: AnnealingOptions = msgspec.field(default_factory=AnnealingOptions)
    genetic: GeneticOptions = msgspec.field(default_factory=GeneticOptions)
    features: str = ""
    prior: Path | str | None = None
    first: str = FIRST[0]


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


def check_search(options: SearchOptions) -> None:
    """Refuse, before anything is built or measured, what `make_proposer` would refuse for every space.

    Raises InputError for an unknown name and for a tree model of other features than trees, CostModelError
    for a prior that cannot be read, MissingExtra for one that needs a part which is not installed.
    """
    if options.tuner not in TUNERS:
        raise InputError(f"unknown tuner {options.tuner!r}: expected one of {', '.join(TUNERS)}")
    if options.first not in FIRST:
        raise InputError(f"unknown first trials {options.first!r}: expected one of {', '.join(FIRST)}")
    if options.cost_model not in COST_MODELS:
        expected = ", ".join(COST_MODELS)
        raise InputError(f"unknown cost model {options.cost_model!r}: expected one of {expected}")
    kind = options.features or features_of(options.cost_model)
    if options.cost_model in TREE_MODELS and kind != "tree":
        raise InputError(
            f"the cost model {options.cost_model} reads tree features, not {kind} ones: "
            "leave out the features, or choose another cost model"
        )
    if options.prior is not None:
        load_prior(options.prior)


def make_proposer(
    space: SearchSpace, features: Features, rng: np.random.Generator, options: SearchOptions
) -> Proposer:
    """The proposer that the options name. Raises InputError for an unknown name."""
    match options.tuner:
        case "annealing":
            model = make_model(features, rng, options)
            informed, annealing = options.prior is not None, affordable(options)
            return AnnealingProposer(space, features, model, rng, annealing, informed=informed)
        case "genetic":
            return GeneticProposer(space, rng, options.genetic)
        case "random":
            return RandomProposer(space, rng)
        case "grid":
            return GridProposer(space)
    raise InputError(f"unknown tuner {options.tuner!r}: expected one of {', '.join(TUNERS)}")


def affordable(options: SearchOptions) -> AnnealingOptions:
    """Fewer chains where a network scores them: it takes about fifty times as long as trees on a CPU."""
    annealing = options.annealing
    if options.cost_model not in TREE_MODELS:
        return annealing
    return replace(annealing, chains=min(annealing.chains, NETWORK_CHAINS))


def search_features(options: SearchOptions, programs: Programs) -> NamedFeatures:
    """The features that `make_proposer` needs for these options, of the space of `programs`.

    Raises InputError for an unknown name, CostModelError for a prior that cannot be used.
    """
    own = make_features(options.features or features_of(options.cost_model), programs)
    if options.prior is None:
        return own
    kind = load_prior(options.prior).features.kind
    return own if kind == own.kind else JointFeatures(make_features(kind, programs), own)


def make_model(features: Features, rng: np.random.Generator, options: SearchOptions) -> CostModel:
    """The cost model of the options, seeded from `rng`, on top of the prior where there is one.

    Raises InputError for an unknown name, CostModelError for a prior that does not fit the features.
    """
    seed = int(rng.integers(1 << 31))
    shared: object = features
    own: object = features
    columns: int | None = None
    if isinstance(features, JointFeatures):
        shared, own, columns = features.shared, features.own, features.shared.width
    # not by `facts`: for the width some features lower every structure, which a search may end without
    local = make_cost_model(options.cost_model, seed, channels=int(getattr(own, "channels", 0)))
    if options.prior is None:
        return local
    saved = load_prior(options.prior)
    check_features(saved, facts(shared), str(options.prior))
    return Transfer(saved.model, local, columns=columns)
