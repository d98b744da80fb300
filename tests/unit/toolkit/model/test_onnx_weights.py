"""Weights of ONNX files are read once: no message holds them, no pass copies them."""

from __future__ import annotations

import cProfile
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.onnx_models import model, node, save
from toolkit.errors import ModelError
from toolkit.model.load import load_model
from toolkit.model.onnx_file import read_onnx

WEIGHT_BYTES = 16 << 20


def products() -> Any:
    """A convolution and two matrix products, whose weights are transposed."""
    weights = {
        "conv": np.ones((1024, 1024, 2, 2), np.float32),
        "tall": np.ones((2048, 1024), np.float32),
        "wide": np.ones((1024, 2048), np.float32),
    }
    assert sum(array.nbytes for array in weights.values()) == 2 * WEIGHT_BYTES
    nodes = [
        node("Conv", ["x", "conv"], "c"),
        node("Flatten", ["c"], "f"),
        node("Gemm", ["f", "tall"], "t", transB=1),
        node("Gemm", ["t", "wide"], "y", transB=1),
    ]
    return model(nodes, {"x": (1, 1024, 2, 2)}, ["y"], weights)


@pytest.mark.parametrize("external", [False, True])
def test_weights_are_read_without_a_copy(external: bool, tmp_path: Path) -> None:
    """What Python and numpy allocate are the arrays alone; other files are read through a message."""
    path, proto = tmp_path / "products.onnx", products()
    if external:
        onnx.save_model(proto, path, save_as_external_data=True, location="weights.bin")
    else:
        save(tmp_path, proto, path.name)
    load_model(path)  # what is imported and cached the first time is not counted
    tracemalloc.start()
    load_model(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < (4.2 if external else 2.1) * WEIGHT_BYTES
    message, weights = read_onnx(path)
    assert message.ByteSize() < 1000
    assert sum(array.nbytes for array in weights.values()) == 2 * WEIGHT_BYTES


def test_the_message_is_the_file_but_for_its_weights(tmp_path: Path) -> None:
    """Every way to hold data; a second initializer of a name replaces the first, as in onnx.load."""
    values = {
        "raw": numpy_helper.from_array(np.arange(6, dtype=np.int64).reshape(2, 3)),
        "floats": onnx.helper.make_tensor("", onnx.TensorProto.FLOAT, [2], [1.5, -2.0]),
        "packed": onnx.helper.make_tensor("", onnx.TensorProto.INT4, [3], [1, -2, 7]),
        "brain": onnx.helper.make_tensor("", onnx.TensorProto.BFLOAT16, [2], b"\x80\x3f\x00\x40", raw=True),
        "empty": numpy_helper.from_array(np.zeros((0, 4), np.float32)),
        "scalar": numpy_helper.from_array(np.asarray(True)),
    }
    proto = model([node("Relu", ["x"], "y")], {"x": (3,)}, ["y"])
    for name, tensor in values.items():
        tensor.name = name
        proto.graph.initializer.append(tensor)
    message, weights = read_onnx(save(tmp_path, proto))
    assert list(weights) == list(values)
    for name, tensor in values.items():
        expected = numpy_helper.to_array(tensor)
        assert weights[name].dtype == expected.dtype
        np.testing.assert_array_equal(weights[name], expected)
    for tensor in (*proto.graph.initializer, *message.graph.initializer):
        kept = {"name": tensor.name, "data_type": tensor.data_type}
        tensor.Clear()
        tensor.MergeFrom(onnx.TensorProto(**kept))
    del message.graph.initializer[0].dims[:]
    assert message.SerializeToString(deterministic=True) == proto.SerializeToString(deterministic=True)


def test_a_file_cut_anywhere_or_with_a_wrong_byte(tmp_path: Path) -> None:
    """It is refused, or it is a model."""
    proto = model([node("Add", ["x", "w"], "y")], {"x": (3,)}, ["y"], {"w": np.ones(3, np.float32)})
    whole = proto.SerializeToString()
    broken = [whole[:end] for end in range(len(whole))]
    broken += [whole[:at] + bytes([whole[at] ^ 0x87]) + whole[at + 1 :] for at in range(len(whole))]
    refused = 0
    for data in broken:
        path = tmp_path / "broken.onnx"
        path.write_bytes(data)
        try:
            load_model(path)
        except ModelError:
            refused += 1
    assert refused >= len(whole)


def test_what_an_import_does_grows_with_its_nodes(tmp_path: Path) -> None:
    """Calls of functions, counted: twice as many blocks more make twice as many calls more."""

    def calls(blocks: int) -> int:
        nodes = []
        for block in range(blocks):
            data = f"y{block - 1}" if block else "x"
            nodes += [
                node("Reshape", [data, "heads"], f"h{block}"),
                node("Transpose", [f"h{block}"], f"t{block}", perm=[0, 2, 1, 3]),
                node("Softmax", [f"t{block}"], f"s{block}", axis=-1),
                node("Transpose", [f"s{block}"], f"u{block}", perm=[0, 2, 1, 3]),
                node("Reshape", [f"u{block}", "rows"], f"r{block}"),
                node("MatMul", [f"r{block}", "w"], f"m{block}"),
                node("Add", [f"m{block}", data], f"y{block}"),
            ]
        weights = {
            "heads": np.asarray([1, 4, 2, 4]),
            "rows": np.asarray([1, 4, 8]),
            "w": np.ones((8, 8), np.float32),
        }
        path = save(tmp_path, model(nodes, {"x": (1, 4, 8)}, [f"y{blocks - 1}"], weights))
        with cProfile.Profile() as profile:
            load_model(path)
        return sum(entry.callcount for entry in profile.getstats())

    load_model(save(tmp_path, model([node("Relu", ["x"], "y")], {"x": (1,)}, ["y"])))
    few, more, most = calls(10), calls(20), calls(40)
    assert most - more <= 2.05 * (more - few)
