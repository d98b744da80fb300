"""A network of floats becomes one of integers; figures about it are those of onnxruntime's runs of both."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from click.testing import CliRunner, Result
from onnx import numpy_helper

import toolkit
from benchmarks.networks import write
from tests.onnx_models import model, node, save
from toolkit.cli.main import main
from toolkit.errors import InputError, MissingExtra
from toolkit.quantization.quantizer import prepared
from toolkit.quantization.sessions import ModelSession

SHAPE = (1, 3, 16, 16)
Array = Any


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A network with a layer whose weights do not fit a single scale, and data."""
    folder = tmp_path_factory.mktemp("quantize")
    rng = np.random.default_rng(3)
    shapes = {
        "w0": (8, 3, 3, 3),
        "b0": (8,),
        "w1": (8, 1, 3, 3),
        "w2": (8, 8, 1, 1),
        "w3": (8, 5),
        "b3": (5,),
    }
    weights = {name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}
    weights["w2"][0] *= 100  # the Clip behind hides it from all but the scale of these weights
    weights |= {"low": np.float32(0), "high": np.float32(2)}
    nodes = [
        node("Conv", ["x", "w0", "b0"], "c0", pads=[1, 1, 1, 1]), node("Relu", ["c0"], "r0"),
        node("Conv", ["r0", "w1"], "c1", pads=[1, 1, 1, 1], group=8), node("Conv", ["c1", "w2"], "c2"),
        node("Clip", ["c2", "low", "high"], "r2"), node("Add", ["r2", "r0"], "sum"),
        node("GlobalAveragePool", ["sum"], "pool"), node("Flatten", ["pool"], "flat"),
        node("Gemm", ["flat", "w3", "b3"], "y"),
    ]  # fmt: skip
    save(folder, model(nodes, {"x": SHAPE}, ["y"], weights))
    (folder / "data").mkdir()
    for number in range(10):
        np.save(folder / f"data/{number}.npy", rng.normal(0, 1, SHAPE).astype(np.float32))
    return folder


def outputs(path: Path, samples: list[Path]) -> Array:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": np.load(item)})[0] for item in samples])


def quantized(folder: Path, output: str, **options: Any) -> Any:
    steps: list[tuple[int, int]] = []
    report = toolkit.quantize(
        folder / "small.onnx", folder / "data", folder / output, toolkit.QuantizeOptions(**options),
        lambda done, total: steps.append((done, total)),
    )  # fmt: skip
    assert steps[0][0] == 0 and steps[-1][0] == steps[-1][1], "the progress ends"
    return report


def weights_of(path: Path) -> dict[str, Array]:
    tensors = onnx.load(str(path)).graph.initializer
    return {item.name: numpy_helper.to_array(item) for item in tensors if item.name.endswith("_quantized")}


def test_the_report_says_what_onnxruntime_finds(folder: Path) -> None:
    report = quantized(folder, "a.onnx")
    held_out = [folder / f"data/{number}.npy" for number in (0, 5)]
    floats, found = (outputs(path, held_out) for path in (folder / "small.onnx", report.output))
    wanted_db = 10 * np.log10((floats**2).sum() / ((found - floats) ** 2).sum())
    assert (report.calibrated, report.held_out) == (8, 2)
    assert report.outputs[0].sqnr_db == pytest.approx(wanted_db, abs=1.0)
    assert report.outputs[0].agreement == (floats.argmax(1) == found.argmax(1)).mean()
    assert all(item.quantized for item in report.layers)
    assert weights_of(report.output)["w0_quantized"].dtype == np.int8


def test_the_layer_hurts_most_whose_weights_do_not_fit_one_scale(folder: Path) -> None:
    schemes = [toolkit.Scheme(per_channel=False), toolkit.Scheme(per_channel=True)]
    one, many = ({item.name: item.alone_db for item in quantized(folder, "j.onnx", scheme=scheme).layers}
                 for scheme in schemes)  # fmt: skip
    assert min(one, key=lambda name: one[name]) == "node_c2"
    assert many["node_c2"] > one["node_c2"] + 6


def test_layers_are_left_in_floats_until_the_noise_is_low(folder: Path) -> None:
    first = quantized(folder, "b.onnx")
    bound_db = first.outputs[0].sqnr_db + 3
    report = quantized(folder, "c.onnx", until_sqnr_db=bound_db)
    left = [item.name for item in report.layers if not item.quantized]
    assert left and report.outputs[0].sqnr_db >= bound_db
    hurt = sorted(first.layers, key=lambda item: item.alone_db)
    assert {item.name for item in hurt[: len(left)]} == set(left), "those that hurt most"
    with pytest.raises(InputError, match="hold for no model"):
        quantized(folder, "d.onnx", until_sqnr_db=300.0)


def test_a_network_that_onnxruntime_simplifies_twice(tmp_path: Path) -> None:
    """The first time it makes Gemms of some products of a transformer, the second time of those around its
    attention, too: the names of the shapes behind them met, and it refused the model."""
    path = write("bert", tmp_path / "bert.onnx", 0, 16)
    simplified = prepared(path)
    feeds = {"input": np.random.default_rng(0).normal(0, 1, (1, 16, 256)).astype(np.float32)}
    names = [item.name for item in simplified.graph.output]
    found = ModelSession(simplified, names).run(feeds)
    expected = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"]).run(names, feeds)
    for name, array in zip(names, expected, strict=True):
        np.testing.assert_allclose(found[name], array, atol=1e-4)


def test_a_bias_that_is_a_row_of_a_matrix_is_quantized(tmp_path: Path) -> None:
    """As JAX's exporter writes it. ONNX Runtime makes a Gemm of both, and stops over such a bias."""
    rng = np.random.default_rng(0)
    weights = {
        "w": rng.standard_normal((32, 24)).astype(np.float32),
        "b": rng.standard_normal((1, 24)).astype(np.float32),
    }
    nodes = [node("MatMul", ["x", "w"], "p"), node("Add", ["p", "b"], "y")]
    path = save(tmp_path, model(nodes, {"x": (1, 32)}, ["y"], weights))
    (tmp_path / "samples").mkdir()
    for number in range(4):
        np.save(tmp_path / f"samples/{number}.npy", rng.standard_normal((1, 32)).astype(np.float32))
    report = toolkit.quantize(path, tmp_path / "samples", tmp_path / "q.onnx", toolkit.QuantizeOptions())
    assert all(layer.quantized for layer in report.layers) and report.outputs[0].sqnr_db > 20
    x = np.load(tmp_path / "samples/0.npy")
    (found,) = onnxruntime.InferenceSession(str(tmp_path / "q.onnx"), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    assert np.abs(found - (x @ weights["w"] + weights["b"])).max() < 0.5


def test_narrow_weights_stay_within_63_and_reach_it(folder: Path) -> None:
    for per_channel in (True, False):
        report = quantized(folder, "e.onnx", scheme=toolkit.Scheme(narrow=True, per_channel=per_channel))
        found = weights_of(report.output)
        assert {np.abs(found[name].astype(int)).max() for name in ("w0_quantized", "w1_quantized")} == {63}
        rows = np.abs(found["w0_quantized"].astype(int)).reshape(8, -1).max(1)
        assert (rows == 63).all() == per_channel


def test_images_are_resized_and_scaled(folder: Path, tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    (tmp_path / "photos").mkdir()
    for number in range(3):
        pixels = rng.integers(0, 256, (16, 16, 3)).astype(np.uint8)
        image.fromarray(pixels).save(tmp_path / f"photos/{number}.png")
        ready = (pixels / 255.0 - (0.5, 0.25, 0.125)) / 0.25
        (tmp_path / "arrays").mkdir(exist_ok=True)
        np.save(tmp_path / f"arrays/{number}.npy", np.moveaxis(ready, 2, 0)[None].astype(np.float32))
    options = toolkit.QuantizeOptions(scale=toolkit.ImageScale((0.5, 0.25, 0.125), (0.25,)))
    found = [
        toolkit.quantize(folder / "small.onnx", tmp_path / kind, tmp_path / "q.onnx", options)
        for kind in ("photos", "arrays")
    ]  # fmt: skip
    assert found[0].layers == found[1].layers and found[0].outputs == found[1].outputs


@pytest.fixture
def run(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    monkeypatch.chdir(tmp_path)

    def command(*arguments: object, data: object = folder / "data") -> Result:
        line = ["quantize", folder / "small.onnx", "--data", data, *arguments]
        return CliRunner().invoke(main, [str(item) for item in line])

    return command


def test_the_command(run: Callable[..., Result], tmp_path: Path) -> None:
    result = run("--json", "--until-agreement", "50")
    assert result.exit_code == 0, result.output
    content = json.loads(result.stdout)
    assert content["schema"] == "tune-for-board/quantize"
    assert content["output"] == "small-int8.onnx" and (tmp_path / "small-int8.onnx").is_file()
    text = run("-o", "x.onnx")
    assert "layers that hurt most" in text.stdout and "2 held out" in text.stdout
    assert max(map(len, text.stdout.splitlines())) <= 80


def spoil(folder: Path, **arrays: Array) -> Path:
    for name, array in arrays.items():
        np.save(folder / f"{name}.npy", array)
    return folder


def test_what_does_not_fit_is_refused(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "wrong").mkdir()
    cases = {
        "expected .npy files or images": tmp_path / "wrong",
        "expected a folder with .npy files": tmp_path / "none",
    }
    for text, data in cases.items():
        result = run(data=data)
        assert result.exit_code == 2 and text in result.stderr, result.stderr
    wrong: list[tuple[Array, str]] = [
        (np.zeros((1, 3, 8, 8), np.float32), "found float32 [1, 3, 8, 8]"),
        (np.zeros(SHAPE), "is float32 [1, 3, 16, 16], or several along the first dimension; found float64"),
        (np.zeros(SHAPE, np.float32), "expected at least 2"),
        (np.zeros((2, 3, 16, 15), np.float32), "found float32 [2, 3, 16, 15]"),
    ]
    for array, text in wrong:
        result = run(data=spoil(tmp_path / "wrong", a=array))
        assert result.exit_code == 2 and text in " ".join(result.stderr.split()), result.stderr
    (tmp_path / "wrong/a.png").write_bytes(b"no image")
    result = run(data=tmp_path / "wrong")
    assert result.exit_code == 2 and "found a.npy and a.png; put one kind there" in result.stderr
    (tmp_path / "wrong/a.npy").unlink()
    (tmp_path / "wrong/b.png").write_bytes(b"no image")
    result = run(data=tmp_path / "wrong")
    assert result.exit_code == 2 and ("expected an image" in result.stderr or "Pillow" in result.stderr)


def test_a_file_may_hold_several_samples(folder: Path, tmp_path: Path) -> None:
    whole = np.concatenate([np.load(folder / f"data/{number}.npy") for number in range(10)])
    report = toolkit.quantize(folder / "small.onnx", spoil(tmp_path, all=whole), tmp_path / "q.onnx")
    assert report.outputs == quantized(folder, "f.onnx").outputs


def test_onnxruntime_missing_is_named_with_its_install_line(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "onnxruntime.quantization", None)
    with pytest.raises(MissingExtra, match=r"pip install 'tune-for-board\[quantize\]'"):
        toolkit.quantize(folder / "small.onnx", folder / "data", folder / "g.onnx")


def test_a_quantized_network_is_refused(folder: Path) -> None:
    quantized(folder, "h.onnx")
    with pytest.raises(InputError, match="is quantized already"):
        toolkit.quantize(folder / "h.onnx", folder / "data", folder / "i.onnx")
