"""Whole models through generated code for this machine: untuned kernels, many models in one shared object."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from boards.board import load
from cross.compile import compile
from cross.loopnest import LoopNest, Programs
from cross.schedule import space_of
from tests.fuzz.kernels import call, loaded
from toolkit.model.distinct import distinct_operators
from toolkit.model.graph import Graph
from toolkit.model.reference import run_reference

Array = NDArray[Any]
HOST = load("host").target(None)


def run_generated(
    models: Sequence[tuple[Graph, Mapping[str, Array]]], folder: Path
) -> Iterator[dict[str, Array]]:
    """The outputs of every model for its inputs, in the shapes of the graph's values.

    All operators of all models are compiled first, each once, in their untuned configuration.
    """
    nests: dict[str, LoopNest] = {}
    for graph, _ in models:
        for task in distinct_operators(graph):
            if task.operator.key not in nests:
                programs = Programs(space_of(task.operator, HOST))
                nests[task.operator.key] = programs.nest(programs.space.default())
    artifact = compile([(f"k_{key}", nest) for key, nest in nests.items()], HOST)
    library, kernels = loaded(artifact, folder), dict(zip(nests, artifact.kernels, strict=True))
    for graph, inputs in models:
        yield run_reference(
            graph, inputs, lambda operator, operands: call(library, kernels[operator.key], operands)
        )
