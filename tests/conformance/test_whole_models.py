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
LEAST = {"pytorch-converted": 82, "pytorch-operator": 35, "simple": 3}
STRINGS = [f"monday_casesensintive_{what}" for what in ("lower", "nochangecase", "upper")]
STRINGS += ["monday_empty_output", "monday_insensintive_upper_twodim", "nostopwords_nochangecase"]
REFUSED = {  # what docs/models.md says is refused, and the words
    **{
        f"test_expand_shape_model{number}": "the size of its output 'Y' depends on data"
        for number in range(1, 5)
    },
    **{f"test_gradient_of_{what}": "the operator is not supported" for what in ("add", "add_and_mul")},
    **{f"test_sequence_model{number}": "is no tensor" for number in range(1, 8)},
    "test_sequence_model8": "input 'X' has the dynamic shape [n]",
    **{f"test_strnorm_model_{what}": "input 'x' is of strings" for what in STRINGS},
}


def arrays(folder: Path, kind: str) -> list[Array]:
    paths = sorted(folder.glob(f"{kind}_*.pb"), key=lambda path: int(path.stem.split("_")[1]))
    tensors = [onnx.TensorProto.FromString(path.read_bytes()) for path in paths]
    return [numpy_helper.to_array(tensor) for tensor in tensors]


@pytest.mark.slow
@pytest.mark.parametrize("suite", LEAST)
def test_models_compute_what_their_data_say(suite: str, tmp_path: Path) -> None:
    models: list[tuple[str, Graph, dict[str, Array], dict[str, Array]]] = []
    for folder in sorted((DATA / suite).iterdir()):
        if folder.name in REFUSED:
            with pytest.raises(ModelError) as refused:
                load_model(folder / "model.onnx")
            assert REFUSED[folder.name] in str(refused.value)
            continue
        graph, given = load_model(folder / "model.onnx"), folder / "test_data_set_0"
        inputs = dict(zip(graph.inputs, arrays(given, "input"), strict=True))
        wanted = dict(zip(graph.outputs, arrays(given, "output"), strict=True))
        models.append((folder.name, graph, inputs, wanted))
    generated = run_generated([(graph, inputs) for _, graph, inputs, _ in models], tmp_path)
    for (name, graph, _, wanted), found in zip(models, generated, strict=True):
        outputs = cut(graph, found)
        for output, array in wanted.items():
            largest = np.abs(array[np.isfinite(array)].astype(np.float64)).max(initial=1e-30)
            np.testing.assert_allclose(outputs[output], array, rtol=0, atol=1e-4 * largest, err_msg=name)
    assert len(models) >= LEAST[suite]
