"""Rows of features by the specification, for the tests of the vectorized extractors."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
from numpy.typing import NDArray

from cross.loopnest import LoopNest, Programs, bind
from cross.loopnest.nodes import ONE, stores
from cross.schedule.space import Batch, Configuration
from tests.plain_features import (
    plain_configuration,
    plain_context,
    plain_flattened,
    plain_relation,
    plain_tree,
)
from toolkit.features.base import Features
from toolkit.features.context import ContextFeatures
from toolkit.features.tree import TreeFeatures

OF_A_NEST: Mapping[str, Callable[[LoopNest], list[float]]] = {
    "context": plain_context,
    "flattened": plain_flattened,
    "relation": plain_relation,
}


def plain_row(features: Features, programs: Programs, configuration: Configuration) -> NDArray[np.float64]:
    """float64 [width]: what the specification says about one configuration."""
    parametric = programs.parametric(programs.structure(configuration))
    space = programs.space
    values = [knob.choices[index] for knob, index in zip(space.knobs, configuration.indices, strict=True)]
    row = np.zeros(features.width)
    if features.kind == "configuration":
        row[:] = plain_configuration(values)
        return row
    nest = bind(parametric, space.fields(configuration), simplify=False)
    if isinstance(features, TreeFeatures):
        found = plain_tree(nest, tree_variables(features, parametric.nest))
    else:
        found = OF_A_NEST[features.kind](nest)
    row[: len(found)] = found
    if isinstance(features, ContextFeatures):
        knobs = plain_configuration(values)
        row[len(row) - len(knobs) :] = knobs
    return row


def tree_variables(features: TreeFeatures, parametric: LoopNest) -> dict[str, int]:
    """The numbers of the variables of loops that run more than once in some configuration."""
    return {name: number for name, number in features.variables.items() if name in varying(parametric)}


def varying(parametric: LoopNest) -> set[str]:
    """The loops of a parametric nest whose extent is not 1 throughout."""
    return {loop.var for loops, _ in stores(parametric.body) for loop in loops if loop.extent != ONE}


def of_every_structure(programs: Programs, rng: np.random.Generator, count: int) -> Batch:
    """One of `count` random configurations for each structure among them, and the first few as they come."""
    batch = programs.space.sample(rng, count)
    _, rows = np.unique(programs.structures(batch), axis=0, return_index=True)
    return np.concatenate([batch[rows], batch[:5]])


def check(features: Features, programs: Programs, batch: Batch) -> None:
    """The vectorized table of a batch equals the specification, row by row."""
    table = features(batch)
    assert table.dtype == np.float32
    assert table.shape == (len(batch), features.width)
    for row, found in zip(batch, table, strict=True):
        expected = plain_row(features, programs, programs.space.configuration(row))
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)
