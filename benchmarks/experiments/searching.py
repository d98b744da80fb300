"""One search on a landscape: what each evaluation cost, in order. Same arguments, same course."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from msgspec.structs import replace

from benchmarks.experiments.landscapes import Landscape, Rows
from benchmarks.experiments.methods import Method
from benchmarks.experiments.source import Source, cost_model, global_model
from benchmarks.replay.recorded import course
from toolkit.cost_model.transfer import Transfer
from toolkit.explore.annealing import AnnealingOptions, AnnealingProposer
from toolkit.explore.proposer import Proposer
from toolkit.explore.search import SearchOptions, make_proposer
from toolkit.explore.space import Batch


def search(
    landscape: Landscape,
    method: Method,
    seed: int,
    evaluations: int,
    *,
    source: Source | None = None,
    work: Path = Path("."),
) -> list[float]:
    """Seconds of each evaluation, NaN for failures; fewer when the landscape is exhausted."""
    proposer = make_search(landscape, method, seed, source, work)
    costs_s: list[float] = course(landscape, proposer, evaluations)[1].tolist()
    return costs_s


def make_search(
    landscape: Landscape, method: Method, seed: int, source: Source | None, work: Path
) -> Proposer:
    """The proposer of a method. Raises ValueError for a transfer without a source."""
    rng = np.random.default_rng(seed)
    if method.tuner != "annealing":
        return make_proposer(
            landscape.space, landscape.features(method.features), rng, SearchOptions(tuner=method.tuner)
        )
    options = AnnealingOptions()
    options = replace(
        options,
        spare=options.spare if method.spare is None else method.spare,
        alpha=options.alpha if method.alpha is None else method.alpha,
    )
    local, features = cost_model(method.model, seed), landscape.features(method.features)
    if not method.transfer:
        return AnnealingProposer(landscape.space, features, local, rng, options)
    if source is None:
        raise ValueError(f"method {method.name}: expected the source of its global model, found none")
    width = landscape.matrix(method.features).shape[1]
    known = global_model(source, method.model, method.features, width, work)
    own = landscape.features(method.local) if method.local else None

    def both(batch: Batch) -> Rows:
        shared = known.padded(features(batch))
        return shared if own is None else np.concatenate([shared, own(batch)], axis=1)

    model = Transfer(known.model, local, columns=None if own is None else known.width)
    return AnnealingProposer(landscape.space, both, model, rng, options, informed=True)
