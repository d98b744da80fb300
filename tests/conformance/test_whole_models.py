"""The small whole models of the installed onnx package: what is imported computes what their data say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.backend.test
import pytest
from numpy.typing import NDArray
from onnx import numpy_helper

from tests.whole_models import run_generated
from toolkit.errors import ModelError
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import cut

Array = NDArray[Any]
DATA = Path(onnx.backend.test.__file__).parent / "data"
REFUSED = ("expand_shape", "gradient", "sequence", "strnorm")  # open sizes, training, containers, strings


def arrays(folder: Path, kind: str) -> list[Array]:
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    tensors = [onnx.TensorProto.FromString(path.read_bytes()) for path in paths]
    return [numpy_helper.to_array(tensor) for tensor in tensors]


LEAST = {"pytorch-converted": 82, "pytorch-operator": 35, "simple": 3}


@pytest.mark.slow
@pytest.mark.parametrize("suite", ["pytorch-converted", "pytorch-operator", "simple"])
def test_models_compute_what_their_data_say(suite: str, tmp_path: Path) -> None:
    models: list[tuple[str, Graph, dict[str, Array], dict[str, Array]]] = []
    refused = set()
    for folder in sorted((DATA / suite).iterdir()):
        try:
            graph = load_model(folder / "model.onnx")
        except ModelError as error:
            assert any(word in folder.name for word in REFUSED), error
            refused.add(folder.name)
            continue
        given = folder / "test_data_set_0"
        inputs = dict(zip(graph.inputs, arrays(given, "input"), strict=True))
        wanted = dict(zip(graph.outputs, arrays(given, "output"), strict=False))
        models.append((folder.name, graph, inputs, wanted))
    generated = run_generated([(graph, inputs) for _, graph, inputs, _ in models], tmp_path)
    for (name, graph, _, wanted), found in zip(models, generated, strict=True):
        outputs = cut(graph, found)
        for output, array in wanted.items():
            largest = np.abs(array.astype(np.float64)).max(initial=1e-30)
            np.testing.assert_allclose(outputs[output], array, rtol=0, atol=1e-4 * largest, err_msg=name)
    assert len(models) >= LEAST[suite], refused
