"""DynamicQuantizeLSTM against onnxruntime: as its quantizer writes it, and written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper
from onnxruntime.quantization import QuantType, quantize_dynamic

from tests.bundles import host_target
from tests.model_libraries import kernels, run_library
from tests.onnx_models import FLOAT, save
from tests.unit.toolkit.model.test_recurrent import Case, layer
from tests.whole_models import run_generated
from toolkit.bundle.assemble import assemble
from toolkit.errors import ModelError
from toolkit.model.load import adapted, load_model
from toolkit.model.reference import run_reference
from toolkit.model.roundings import rounding_spread

Array = NDArray[Any]
Weights = dict[str, Array]
STEPS, BATCH, FEATURES, HIDDEN = 5, 2, 3, 8
INPUTS = ("x", "w", "r", "b", "n", "h", "c", "p", "ws", "wz", "rs", "rz")
OUTPUTS = ("y", "yh", "yc")


def by_onnxruntime(proto: Any, data: Mapping[str, Array], threads: int = 1) -> dict[str, Array]:
    """The model's outputs; on processors without VNNI sums of products of bytes saturate unless asked not to.

    The sequences of a thread share the scale of their states.
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.add_session_config_entry("session.x64quantprecision", "1")
    session = onnxruntime.InferenceSession(
        proto.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(data)), strict=True))


def check(proto: Any, data: Mapping[str, Array], folder: Path, threads: int = 1) -> None:
    """By numpy and by generated code.

    Where a state lies midway between two bytes, another machine may round it to the other one: then outputs
    may differ by what that makes of them.
    """
    graph = load_model(save(folder, proto))
    want = by_onnxruntime(proto, data, threads)
    (generated,) = run_generated([(graph, data)], folder)
    computed = run_reference(graph, data)
    spread = rounding_spread(graph, data, computed)
    for got in (computed, generated):
        for name, expected in want.items():
            allowed = max(1e-5, spread * np.abs(expected).max())
            np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=allowed, err_msg=name)


def written(
    direction: str = "forward",
    without: str = "",
    dtype: str = "uint8",
    by_channel: bool = False,
    opset: int = 17,
    outputs: tuple[str, ...] = OUTPUTS,
    **attributes: Any,
) -> tuple[Any, Weights]:
    """A model of one node and its data: `without` names optional inputs that it has not, by their letters.

    States, bias, peepholes and lengths are inputs of the model.
    """
    ways = 2 if direction == "bidirectional" else 1
    weights, data = written_arrays(ways, without, dtype, by_channel)
    names = [name if name in data or name in weights else "" for name in INPUTS]
    settings = {"hidden_size": HIDDEN, "direction": direction, **attributes}
    single = helper.make_node(
        "DynamicQuantizeLSTM", names, list(outputs), "layer", domain="com.microsoft", **settings
    )
    results = [(name, 4 if name == "y" else 3) for name in outputs if name]
    graph = helper.make_graph(
        [single],
        "layer",
        [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in data.items()
        ],
        [helper.make_tensor_value_info(name, FLOAT, [None] * rank) for name, rank in results],
        [numpy_helper.from_array(array, name) for name, array in weights.items()],
    )
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=7), data


def written_arrays(ways: int, without: str, dtype: str, by_channel: bool) -> tuple[Weights, Weights]:
    """The bytes, scales and zero points of so many directions, and the data, as `written` has them."""
    rng, width = np.random.default_rng(7), 4 * HIDDEN
    limits, scales = np.iinfo(dtype), (ways, width) if by_channel else (ways,)
    middle = 0 if dtype == "int8" else 131 if by_channel else rng.integers(110, 140, scales)
    weights = {
        "w": rng.integers(limits.min, limits.max + 1, (ways, FEATURES, width), dtype),
        "r": rng.integers(limits.min, limits.max + 1, (ways, HIDDEN, width), dtype),
        "ws": rng.uniform(0.002, 0.006, scales).astype(np.float32),
        "wz": np.broadcast_to(middle, scales).astype(dtype),
        "rs": rng.uniform(0.002, 0.006, scales).astype(np.float32),
        "rz": np.broadcast_to(middle, scales).astype(dtype),
    }
    shapes = {
        "x": (STEPS, BATCH, FEATURES),
        "b": (ways, 2 * width),
        "h": (ways, BATCH, HIDDEN),
        "c": (ways, BATCH, HIDDEN),
        "p": (ways, 3 * HIDDEN),
    }
    data: Weights = {
        name: rng.uniform(-1.0, 1.0, shape).astype(np.float32)
        for name, shape in shapes.items()
        if name not in without
    }
    if "n" not in without:
        data["n"] = np.array([STEPS - 1, 2], np.int32)
        data["x"][-1] = 50.0  # no sequence has this step
    return weights, data


@pytest.mark.parametrize("by_channel", [False, True], ids=["whole", "by channel"])
@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_what_the_quantizer_writes(direction: str, by_channel: bool, tmp_path: Path) -> None:
    proto, data = layer(Case("LSTM", {"direction": direction}, rows=(2, 8)))
    quantize_dynamic(
        save(tmp_path, proto),
        tmp_path / "quantized.onnx",
        per_channel=by_channel,
        weight_type=QuantType.QInt8,
    )
    found = onnx.load(tmp_path / "quantized.onnx")
    assert "DynamicQuantizeLSTM" in {item.op_type for item in found.graph.node}
    for item in found.graph.output:
        item.CopyFrom(
            helper.make_tensor_value_info(item.name, FLOAT, [None] * (4 if item.name == "y" else 3))
        )
    check(found, data, tmp_path)


WRITTEN: dict[str, dict[str, Any]] = {
    "forward": {"without": "bhcpn", "opset": 11},
    "reverse": {"direction": "reverse", "without": "pn"},
    "bidirectional": {"direction": "bidirectional", "without": "hpn"},
    "by-channel": {"direction": "bidirectional", "without": "pn", "by_channel": True},
    "int8": {"direction": "bidirectional", "without": "cpn", "dtype": "int8", "by_channel": True},
    "peepholes": {"direction": "bidirectional", "without": "n"},
    "clip": {"without": "pn", "clip": 0.4},
    "input-forget": {"without": "pn", "input_forget": 1},
    "activations": {"without": "pn", "activations": ["HardSigmoid", "Tanh", "Softsign"],
                    "activation_alpha": [0.3], "activation_beta": [0.4]},
    "no states of the steps": {"without": "pn", "outputs": ("", "yh", "yc")},
    "states of the steps alone": {"direction": "bidirectional", "without": "pn", "outputs": ("y",)},
}  # fmt: skip


@pytest.mark.parametrize("name", WRITTEN)
def test_layer_equals_onnxruntime(name: str, tmp_path: Path) -> None:
    check(*written(**WRITTEN[name]), tmp_path)


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
def test_sequences_of_other_lengths_equal_onnxruntime_with_a_thread_for_each(
    direction: str, tmp_path: Path
) -> None:
    """Also with lengths that are known."""
    proto, data = written(direction, without="p")
    check(proto, data, tmp_path, threads=BATCH)
    known = onnx.ModelProto()
    known.CopyFrom(proto)
    (place,) = (number for number, item in enumerate(known.graph.input) if item.name == "n")
    del known.graph.input[place]
    known.graph.initializer.append(numpy_helper.from_array(data["n"], "n"))
    rest = {name: array for name, array in data.items() if name != "n"}
    check(known, rest, tmp_path, threads=BATCH)


def test_states_of_zeros_are_bytes_of_zeros(tmp_path: Path) -> None:
    """Data that span nothing have a scale."""
    proto, data = written(without="bpn")
    check(proto, {name: np.zeros_like(array) for name, array in data.items()}, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("without", ["p", "pn"])
def test_the_library_loops(without: str, tmp_path: Path) -> None:
    proto, data = written("bidirectional", without)
    graph = adapted(load_model(save(tmp_path, proto)), host_target())
    got = run_library(assemble(graph, kernels(graph), host_target()), data, tmp_path)
    for name, expected in by_onnxruntime(proto, data, 1 if "n" in without else BATCH).items():
        np.testing.assert_allclose(got[name], expected, rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_layout_is_refused(tmp_path: Path) -> None:
    """ONNX Runtime's operator has none."""
    proto, _ = written(without="pn", layout=1)
    with pytest.raises(ModelError, match="attribute layout is not supported"):
        load_model(save(tmp_path, proto))


def replaced(proto: Any, name: str, array: Array) -> Any:
    (tensor,) = (item for item in proto.graph.initializer if item.name == name)
    tensor.CopyFrom(numpy_helper.from_array(array, name))
    return proto


@pytest.mark.parametrize(
    ("name", "array", "said"),
    [
        ("ws", np.ones(3, np.float32), "'ws' has shape [3], expected [1] or [1, 32]"),
        ("r", np.zeros((1, 32, HIDDEN), np.uint8), "'w' has shape [1, 3, 32], expected [1, 3, 8]"),
        ("w", np.zeros((1, FEATURES, 32), np.float32), "'w' has dtype float32, expected int8 or uint8"),
    ],
)
def test_wrong_operands_are_refused(name: str, array: Array, said: str, tmp_path: Path) -> None:
    proto, _ = written(without="pn")
    with pytest.raises(ModelError) as error:
        load_model(save(tmp_path, replaced(proto, name, array)))
    assert said in str(error.value)
    assert "'layer'" in str(error.value)
