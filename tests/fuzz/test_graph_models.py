"""Random graphs of several operators: import, reference, generated code against ONNX's reference evaluator.

    pytest tests/fuzz/test_graph_models.py --draws 30 --seed 1

draws 30 times as many as `make test`, those of another seed. Each runs under default schedules and under
random ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.conftest import Draws
from tests.fuzz.graph_models import Known, Network, random_network
from tests.onnx_models import save
from tests.unoptimized import unoptimized
from tests.whole_models import run_generated
from toolkit.errors import ModelError
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

Array = NDArray[Any]

GRAPHS = 48
PARTS = 4  # tests, which may run side by side
BATCH = 50  # graphs whose kernels are one shared object
ACCEPTED = 0.9  # of the graphs; others hold what docs/models.md says is refused


def wrong(got: Array, want: Known) -> str:
    """What is wrong with an output; "" when nothing is."""
    if (got.shape, str(got.dtype)) != (want.value.shape, want.dtype):
        return f"{got.dtype}{got.shape}, expected {want.dtype}{want.value.shape}"
    error = np.abs(got.astype(np.float64) - want.value.astype(np.float64))
    if (error <= want.tolerance).all():  # not of NaN
        return ""
    place = np.unravel_index(np.argmax(np.nan_to_num(error, nan=np.inf)), error.shape)
    return (
        f"{got[place]} at {[int(axis) for axis in place]}, expected {want.value[place]} +- {want.tolerance}"
    )


def failures(seeds: Sequence[tuple[int, int]], folder: Path, refused: list[str]) -> list[str]:
    """What is wrong with the graphs of these seeds; those that are not imported are noted."""
    models: list[tuple[tuple[int, int], Network, Graph]] = []
    for seed in seeds:
        net = random_network(seed)
        try:
            models.append((seed, net, load_model(save(folder, net.proto()))))
        except ModelError as error:
            refused.append(f"{seed}: {error}")
    given = [(graph, {name: net.inputs[name] for name in graph.inputs}) for _, net, graph in models]
    ways = {
        "reference": (run_reference(*one) for one in given),
        "default schedules": run_generated(given, folder),
    }
    with unoptimized():
        drawn = run_generated(given, folder, np.random.default_rng(list(seeds[0])))
        ways["random schedules"] = list(drawn)
    found = []
    for way, results in ways.items():
        for (seed, net, _), outputs in zip(models, results, strict=True):
            texts = {name: wrong(array, net.known[name]) for name, array in outputs.items()}
            found += [f"{seed}, {way}: {name} is {text}" for name, text in texts.items() if text]
    return found


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_random_graphs_equal_onnx(part: int, draws: Draws, tmp_path: Path) -> None:
    seeds = [(draws.seed, number) for number in range(part, draws.of(GRAPHS), PARTS)]
    found: list[str] = []
    refused: list[str] = []
    for start in range(0, len(seeds), BATCH):
        found += failures(seeds[start : start + BATCH], tmp_path, refused)
    assert not found, "\n".join(found)
    assert len(refused) <= (1 - ACCEPTED) * len(seeds), "\n".join(refused)
