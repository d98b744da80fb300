"""What is said about models that cannot be imported: every message in full, and no other kind of error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper

from tests.onnx_models import FLOAT, model, node, save
from toolkit.errors import ModelError
from toolkit.model.load import load_model

GoldenCheck = Callable[[str, str], None]


def weight(*shape: int) -> Any:
    return np.linspace(-1.0, 1.0, int(np.prod(shape))).reshape(shape).astype(np.float32)


def integers(*values: int) -> Any:
    return np.asarray(values, np.int64)


def plain() -> Any:
    """Conv and Relu: nothing is wrong with it."""
    nodes = [node("Conv", ["x", "w"], "a"), node("Relu", ["a"], "y")]
    return model(nodes, {"x": (1, 3, 4, 4)}, ["y"], {"w": weight(2, 3, 1, 1)})


def of_domain(domain: str) -> Any:
    single = helper.make_node("FusedConv", ["x"], ["y"], name="fused", domain=domain)
    return model([single], {"x": (1, 3, 4, 4)}, ["y"], domains=[domain])


def with_opset(version: int) -> Any:
    proto = plain()
    proto.opset_import[0].version = version
    return proto


def with_complex() -> Any:
    nodes = [helper.make_node("Identity", ["x"], ["y"], name="first")]
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.COMPLEX64, [2]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "small", values[:1], values[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])


def with_sequence() -> Any:
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(FLOAT, [2]))
    proto = plain()
    proto.graph.input.append(helper.make_value_info("s", kind))
    return proto


def with_strings(proto: Any) -> Any:
    proto.graph.input.append(helper.make_tensor_value_info("words", onnx.TensorProto.STRING, ["N"]))
    return proto


def with_bad_output() -> Any:
    proto = plain()
    proto.graph.output.append(helper.make_tensor_value_info("x", FLOAT, [1, 3, 4, 4]))
    return proto


def out_of_order() -> Any:
    proto = plain()
    first, second = proto.graph.node
    nodes = [onnx.NodeProto.FromString(item.SerializeToString()) for item in (second, first)]
    del proto.graph.node[:]
    proto.graph.node.extend(nodes)
    return proto


def with_external_weights() -> Any:
    proto = plain()
    onnx.external_data_helper.set_external_data(proto.graph.initializer[0], "weights.bin", 0, 24)
    proto.graph.initializer[0].ClearField("raw_data")
    return proto


def one(
    op: str, shape: Any, weights: dict[str, Any] | None = None, opset: int = 17, **attributes: Any
) -> Any:
    return model([node(op, ["x", *(weights or {})], "y", **attributes)], {"x": shape}, ["y"], weights, opset)


UNPOOLED = integers(5, 7, 13, 15).reshape(1, 1, 2, 2)
VECTORS: dict[str, Any] = {
    "mode": "TF",
    "max_skip_count": 0,
    "pool_int64s": [1],
    **{f"{end}_gram_length": 1 for end in ("min", "max")},
    **{f"ngram_{name}": [0] for name in ("counts", "indexes")},
}
TWO_BY_TWO: dict[str, Any] = {"kernel_shape": [2, 2], "strides": [2, 2]}


def shaped(proto: Any, *shape: int) -> Any:
    """A model whose output has a shape that ONNX does not infer."""
    for extent in shape:
        proto.graph.output[0].type.tensor_type.shape.dim.add().dim_value = extent
    return proto


def many_in_the_way() -> Any:
    """Two settings and five operators of two kinds, one of them behind another, none of them alone."""
    names = "abcde"
    nodes = [node("Multinomial", ["x"], name) for name in names]
    nodes += [helper.make_node("Odd", ["x"], ["o"], name="odd", domain="com.example")]
    nodes += [node("Dropout", ["o", "", "t"], "p"), node("Pad", ["x", "q"], "y", mode="symmetric")]
    pads, train = integers(1, 1, 1, 1), np.asarray(True)
    weights = {"q": pads, "t": train}
    return model(nodes, {"x": (4, 4)}, [*names, "p", "y"], weights, domains=["com.example"])


def wrong_rank() -> Any:
    proto = plain()
    del proto.graph.input[0].type.tensor_type.shape.dim[0]
    return proto


MODELS: dict[str, Callable[[], Any]] = {
    "window-beyond-data": lambda: one("MaxPool", (1, 3, 4, 6), kernel_shape=[5, 2], strides=[2, 2]),
    "window-far-beyond-data": lambda: one(
        "MaxPool",
        (1, 3, 5, 6),
        None,
        10,
        kernel_shape=[3, 3],
        dilations=[3, 3],
        ceil_mode=1,
        auto_pad="VALID",
    ),
    "cropped-to-less-than-nothing": lambda: one(
        "Pad", (1, 3, 4, 4), {"pads": integers(0, 0, -3, -2, 0, 0, -3, -2)}
    ),
    "unsupported-operator": lambda: model(
        [node("Cast", ["x"], "i", to=7), node("TfIdfVectorizer", ["i"], "y", **VECTORS)], {"x": (1, 3)}, ["y"]
    ),
    "unsupported-domain": lambda: of_domain("com.example"),
    "many-in-the-way": many_in_the_way,
    "old-opset": lambda: one("LpPool", (1, 3, 4, 4), opset=1, kernel_shape=[2, 2], p=2.0),
    "new-opset": lambda: with_opset(999),
    "dynamic-batch": lambda: model([node("Relu", ["x"], "y")], {"x": ("N", 3, 4)}, ["y"]),
    "dynamic-inputs": lambda: model(
        [node("Concat", ["x", "z"], "y", axis=0)], {"x": ("N", 3), "z": ("M", "K")}, ["y"]
    ),
    "complex": with_complex,
    "sequence-input": with_sequence,
    "no-tensors": lambda: with_strings(with_sequence()),
    "output-is-an-input": with_bad_output,
    "out-of-order": out_of_order,
    "missing-weights-file": with_external_weights,
    "pad-mode": lambda: one("Pad", (3, 4), {"p": integers(1, 1, 1, 1)}, opset=19, mode="sideways"),
    "computed-slice": lambda: model(
        [node("Slice", ["x", "s", "e"], "y")], {"x": (3, 4)}, ["y"], {"e": integers(1, 1)}
    ),
    "four-dimensional-pooling": lambda: one("MaxPool", (1, 2, 3, 3, 3, 3), kernel_shape=[1, 1, 1, 1]),
    "computed-transposed-weights": lambda: model(
        [node("ConvTranspose", ["x", "w"], "y")], {"x": (1, 2, 3, 3), "w": (2, 2, 1, 1)}, ["y"]
    ),
    "resize-to-computed-size": lambda: model(
        [node("Resize", ["x", "", "s"], "y", mode="nearest")], {"x": (1, 2, 3, 3), "s": (4,)}, ["y"]
    ),
    "kernel-contradiction": lambda: one("Conv", (1, 3, 4, 4), {"w": weight(2, 3, 1, 1)}, kernel_shape=[3, 3]),
    "uneven-groups": lambda: one("Conv", (1, 6, 4, 4), {"w": weight(10, 2, 1, 1)}, group=3),
    "no-groups": lambda: one("Conv", (1, 6, 4, 4), {"w": weight(4, 6, 1, 1)}, group=0),
    "reshape-to-other-size": lambda: one("Reshape", (1, 6, 5, 5), {"s": integers(7, 7)}),
    "uneven-space-to-depth": lambda: one("SpaceToDepth", (1, 6, 5, 5), blocksize=3),
    "permutation-of-one-dimension": lambda: one("Transpose", (3, 4), perm=[0]),
    "bias-of-other-length": lambda: one("LayerNormalization", (2, 6), {"s": weight(6), "b": weight(7)}),
    "bias-of-two-dimensions": lambda: one("Conv", (1, 3, 4, 4), {"w": weight(4, 3, 1, 1), "b": weight(4, 1)}),
    "bound-of-two-numbers": lambda: one("Clip", (2, 6), {"low": weight(2)}),
    "windows-in-the-padding": lambda: one(
        "AveragePool", (1, 3, 4, 4), kernel_shape=[2, 2], pads=[2, 0, 0, 0]
    ),
    "axis-named-twice": lambda: one("ReduceSum", (2, 6), {"a": integers(1, -1)}),
    "axis-outside": lambda: one("LayerNormalization", (2, 6), {"s": weight(6)}, axis=5),
    "unpooled-to-less": lambda: shaped(
        one("MaxUnpool", (1, 1, 2, 2), {"i": UNPOOLED, "s": integers(1, 1, 4, 3)}, **TWO_BY_TWO), 1, 1, 4, 3
    ),
    "softmax-over-counted": lambda: model(
        [node("NonZero", ["x"], "i"), node("Cast", ["i"], "f", to=1), node("Softmax", ["f"], "y", axis=1)],
        {"x": (2, 3)},
        ["y"],
    ),
    "shape-of-counted": lambda: model(
        [node("NonZero", ["x"], "i"), node("Size", ["i"], "s"), node("Cast", ["s"], "y", to=1)],
        {"x": (2, 3)},
        ["y"],
    ),
    "no-boxes": lambda: model(
        [node("NonMaxSuppression", ["x", "s"], "i"), node("Cast", ["i"], "y", to=1)],
        {"x": (1, 5, 4)},
        ["y"],
        {"s": weight(1, 2, 5)},
    ),
    "offsets-of-other-windows": lambda: shaped(
        one("DeformConv", (1, 1, 3, 3), {"w": weight(1, 1, 2, 2), "o": weight(1, 6, 2, 2)}, opset=19),
        1,
        1,
        2,
        2,
    ),
    "gather-outside": lambda: one("Gather", (5, 3), {"i": integers(0, 1, 5)}),
    "too-many-to-sort": lambda: model(
        [node("TopK", ["x", "k"], ["y", "i"])], {"x": (2, 20000)}, ["y"], {"k": integers(3)}
    ),
    "wrong-rank": wrong_rank,
    "empty-state": lambda: onnx.parser.parse_model(EMPTY_STATE),
}


EMPTY_STATE = """<ir_version: 8, opset_import: ["" : 17]> m (int64 runs, float[2, 4] x) => (float[2, 4] y) {
    nothing = Constant <value = float[0] {}> ()
    none, y = Loop (runs, , nothing, x)
        <body = b (int64 n, bool go, float[0] s, float[2, 4] t)
        => (bool again, float[0] more, float[2, 4] u) {
            again = Identity (go)
            more = Neg (s)
            u = Exp (t)
        }>
}"""


def masked(error: ModelError, folder: Path) -> str:
    """The message without what depends on the machine or on onnx's version."""
    text = str(error).replace(str(folder), "FOLDER")
    text = re.sub(r"(?<=refuses it: ).*(?=; the file)", "...", text)
    text = re.sub(r"(?<=do not decode as one )\(.*?\)(?=; the file)", "(...)", text)
    text = re.sub(r"(?<=cannot be read )\(.*\)(?=; put)", "(...)", text)
    text = re.sub(r"(?<=does not fit its inputs )(\[.*?\]): .*(?=; export)", r"\1: ...", text)
    return re.sub(r"from 7 to \d+", "from 7 to NEWEST", text) + "\n"


@pytest.mark.parametrize("name", MODELS)
def test_message(name: str, tmp_path: Path, golden: GoldenCheck) -> None:
    proto = MODELS[name]()
    if name == "computed-slice":
        proto.graph.input.append(helper.make_tensor_value_info("s", onnx.TensorProto.INT64, [2]))
    with pytest.raises(ModelError) as caught:
        load_model(save(tmp_path, proto))
    golden(f"model/{name}.txt", masked(caught.value, tmp_path))
    assert caught.value.exit_code == 2


SHAPES: dict[str, dict[str, tuple[int, ...]]] = {
    "shape-of-unknown-input": {"z": (1, 3)},
    "shape-of-wrong-rank": {"x": (1, 3)},
    "shape-against-fixed-dimension": {"x": (1, 4, 4)},
    "shape-below-nothing": {"x": (-1, 3, 4)},
}


@pytest.mark.parametrize("name", SHAPES)
def test_message_about_shapes(name: str, tmp_path: Path, golden: GoldenCheck) -> None:
    path = save(tmp_path, model([node("Relu", ["x"], "y")], {"x": ("N", 3, 4)}, ["y"]))
    with pytest.raises(ModelError) as caught:
        load_model(path, SHAPES[name])
    golden(f"model/{name}.txt", masked(caught.value, tmp_path))


def test_message_about_files(tmp_path: Path, golden: GoldenCheck) -> None:
    whole = plain().SerializeToString()
    files = {
        "truncated": whole[:-7],
        "text": b"hello, world\n",
        "empty": b"",
        "picture": b"\x89PNG\r\n\x1a\n" * 9,
    }
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    for name in (*files, "missing", ""):
        with pytest.raises(ModelError) as caught:
            load_model(tmp_path / name)
        golden(f"model/file-{name or 'folder'}.txt", masked(caught.value, tmp_path))


def test_a_given_shape_is_used(tmp_path: Path) -> None:
    path = save(tmp_path, model([node("Relu", ["x"], "y")], {"x": ("N", 3, 4)}, ["y"]))
    assert load_model(path, {"x": (5, 3, 4)}).values["y"].shape == (5, 3, 4)


def test_every_truncation_is_a_model_error(tmp_path: Path) -> None:
    whole = plain().SerializeToString()
    for length in range(len(whole)):
        path = tmp_path / "cut.onnx"
        path.write_bytes(whole[:length])
        with pytest.raises(ModelError):
            load_model(path)


@pytest.mark.slow
@given(st.data())
@settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_damage_is_a_model_error_or_harmless(tmp_path: Path, data: Any) -> None:
    content = bytearray(plain().SerializeToString())
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path / "damaged.onnx"
    path.write_bytes(bytes(content))
    try:
        graph = load_model(path)
    except ModelError:
        return
    assert graph.groups
