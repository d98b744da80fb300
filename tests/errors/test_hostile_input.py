"""Files made to exhaust memory, time or the stack, or to reach other files: each a typed refusal, at once."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from boards.board import MAX_FILE_BYTES, load
from boards.errors import BoardError
from tests.onnx_models import model, node, save
from toolkit.errors import ModelError
from toolkit.model.load import load_model
from toolkit.model.memory import check_memory

HUGE = 1 << 40


def one(op: str, shapes: Mapping[str, Any], **weights: Any) -> Any:
    return model([node(op, [*shapes, *weights], "y")], shapes, ["y"], weights)


def constant(op: str, *weights: Any) -> Any:
    """A huge constant, of which nothing is known before it is computed."""
    named = {f"w{position}": np.asarray(weight) for position, weight in enumerate(weights)}
    nodes = [node(op, list(named), "c"), node("Cast", ["c"], "f", to=1), node("Add", ["x", "f"], "y")]
    return model(nodes, {"x": (1,)}, ["y"], named)


HUGE_MODELS = {
    "input 'x' has the shape [200000, 200000] and takes 160000000000 bytes": one(
        "Relu", {"x": (200000, 200000)}
    ),
    f"input 'x' has the shape [{HUGE}, {HUGE}]": one("Relu", {"x": (HUGE, HUGE)}),
    f"input 'x' has the shape [{1 << 62}]": one("Relu", {"x": (1 << 62,)}),
    "output 'y' has the shape [1000000, 1000000]": one("Add", {"x": (1000000, 1), "z": (1, 1000000)}),
    f"output 'y' has the shape [{HUGE}, 4]": one("Expand", {"x": (1,)}, shape=np.asarray([HUGE, 4])),
    f"constant 'c' has the shape [{HUGE}]": constant("Expand", np.ones(1, np.float32), [HUGE]),
    f"constant 'c' has the shape [{2 * HUGE}]": constant("Tile", np.ones(2, np.float32), [HUGE]),
    "input 'x' has the shape of 1000 dimensions": one("Relu", {"x": (1,) * 1000}),
}


@pytest.mark.parametrize("what", HUGE_MODELS)
def test_what_memory_cannot_hold(what: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError) as caught:
        load_model(save(tmp_path, HUGE_MODELS[what]))
    assert what in str(caught.value)
    assert "the memory of this machine" in str(caught.value)


def test_a_negative_dimension_is_an_open_one(tmp_path: Path) -> None:
    path = save(tmp_path, one("Relu", {"x": (-1, 4)}))
    with pytest.raises(ModelError, match=r"input 'x' has the dynamic shape \[\?, 4\]"):
        load_model(path)
    assert load_model(path, {"x": (3, 4)}).values["x"].shape == (3, 4)


def test_a_shape_given_by_the_user(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="the memory of this machine"):
        load_model(save(tmp_path, one("Relu", {"x": ("n", 4)})), {"x": (1 << 70, 4)})


def test_what_the_board_cannot_hold(tmp_path: Path) -> None:
    graph = load_model(save(tmp_path, one("Relu", {"x": (1000, 1000)})))
    check_memory(graph, 8000000, "small")
    with pytest.raises(
        ModelError, match=r"takes 8000000 bytes .* takes 4000000; .* the memory of board small"
    ):
        check_memory(graph, 7999999, "small")


@pytest.mark.parametrize(
    ("location", "extra"),
    [
        *((place, {}) for place in ("../outside.bin", "/etc/hostname", "link.bin", "pipe.bin", ".")),
        *(("good.bin", extra) for extra in ({"length": 1 << 50}, {"offset": -4}, {"offset": "x"})),
    ],
)
def test_weights_outside_of_the_folder(location: str, extra: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    for path in (folder / "good.bin", tmp_path / "outside.bin"):
        path.write_bytes(bytes(16))
    (folder / "link.bin").symlink_to(tmp_path / "outside.bin")
    os.mkfifo(folder / "pipe.bin")
    proto = one("Add", {"x": (4,)}, w=np.ones(4, np.float32))
    tensor = proto.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    for key, value in {"location": location, **extra}.items():
        entry = tensor.external_data.add()
        entry.key, entry.value = key, str(value)
    with pytest.raises(ModelError, match="kept in another file that cannot be read"):
        load_model(save(folder, proto))


def test_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.onnx")
    with (tmp_path / "sparse.onnx").open("wb") as stream:
        stream.truncate(10 << 30)
    for path in (tmp_path / "pipe.onnx", tmp_path / "sparse.onnx", Path("/dev/zero"), Path("a" * 5000)):
        with pytest.raises(ModelError, match="expected an ONNX file"):
            load_model(path)


@pytest.mark.parametrize(
    "text",
    [
        *("a = " + "[" * 5000, "a = " + "{a=" * 5000, ".".join("a" * 5000) + " = 1", "a = " + "9" * 5000),
        "# " + "x" * MAX_FILE_BYTES,
    ],
    ids=["lists", "tables", "keys", "digits", "length"],
)
def test_board_files_that_exhaust_a_parser(text: str, tmp_path: Path) -> None:
    path = tmp_path / "board.toml"
    path.write_text(text)
    with pytest.raises(BoardError):
        load(path)


def test_board_files_that_are_none(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.toml")
    for path in (tmp_path / "pipe.toml", Path("/dev/zero")):
        with pytest.raises(BoardError, match="it is a pipe or a device"):
            load(path)
