"""Whole models through generated code for this machine: untuned kernels, many models in one shared object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.compile import compile
from cross.loopnest import LoopNest, Programs
from cross.schedule import space_of
from tests.fuzz.kernels import call, loaded
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph
from toolkit.model.load import adapted
from toolkit.model.reference import run_reference

Array = NDArray[Any]
HOST = load("host").target(None)


def scheduled(
    graphs: Sequence[Graph],
    target: Target,
    rng: np.random.Generator | None = None,
    *,
    winograd: bool = True,
) -> dict[str, LoopNest]:
    """A program of every distinct operator of the graphs, by its key: the untuned one, or one drawn."""
    nests: dict[str, LoopNest] = {}
    for graph in graphs:
        for task in distinct_operators(graph):
            if task.operator.key not in nests:
                space = space_of(task.operator, target, winograd=winograd)
                rows = [] if rng is None else space.sample(rng, 1)
                chosen = space.configuration(rows[0]) if len(rows) else space.default()
                nests[task.operator.key] = Programs(space).nest(chosen)
    return nests


def run_generated(
    models: Sequence[tuple[Graph, Mapping[str, Array]]],
    folder: Path,
    rng: np.random.Generator | None = None,
    *,
    winograd: bool = True,
) -> Iterator[dict[str, Array]]:
    """The outputs of every model for its inputs, in the shapes of the graph's values.

    All operators of all models are compiled first, each once, in their untuned configuration, or in one drawn
    by `rng`.
    """
    models = [(adapted(graph, HOST), inputs) for graph, inputs in models]
    nests = scheduled([graph for graph, _ in models], HOST, rng, winograd=winograd)
    artifact = compile([(f"k_{key}", nest) for key, nest in nests.items()], HOST)
    library, kernels = loaded(artifact, folder), dict(zip(nests, artifact.kernels, strict=True))
    for graph, inputs in models:
        yield run_reference(
            graph,
            inputs,
            lambda operator, operands: call(library, kernels[operator.key], operands)[operator.part],
        )
