"""Whole networks beside libraries: what they are built from, and ours from tuning to the rounds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray

from benchmarks.kernels.libraries.network_steps import Step, network_steps
from benchmarks.kernels.measuring import Turnout, measure_all
from benchmarks.kernels.networks import NAMES, Place, chosen_networks, tuned_network
from benchmarks.kernels.processes import contenders
from benchmarks.kernels.rounds import Plan
from benchmarks.kernels.tune import Effort
from benchmarks.kernels.workloads import Image, Workload, reference
from benchmarks.networks import write
from tests.onnx_models import onnxruntime_values

Array = NDArray[np.float32]


def by_numpy(step: Step, values: dict[str, Array]) -> Array:
    """One step on NCHW arrays, the convolution by the reference of the kernel benchmark."""
    data = values[step.inputs[0]]
    of = {name: int(value) for name, value in step.attributes.items()}
    if step.kind == "conv":
        assert step.weight is not None and step.bias is not None
        outputs, kernel = len(step.weight), step.weight.shape[2]
        family = "depthwise" if of["groups"] > 1 else "conv"
        image = Image(family, data.shape[2], data.shape[1], outputs, kernel, of["stride"], of["pad"])  # type: ignore[arg-type]
        result = reference(Workload("conv", "conv", image), data, step.weight)
        return np.asarray(result + step.bias[:, None, None], np.float32)
    if step.kind == "max_pool":
        pad, kernel, stride = of["pad"], of["kernel"], of["stride"]
        padded = np.pad(data, ((0, 0), (0, 0), (pad, pad), (pad, pad)), constant_values=-np.inf)
        windows = np.lib.stride_tricks.sliding_window_view(padded, (kernel, kernel), axis=(2, 3))
        return np.asarray(windows[:, :, ::stride, ::stride].max(axis=(4, 5)))
    if step.kind == "dense":
        assert step.weight is not None
        return np.asarray(data @ step.weight.T + step.bias)
    if step.kind == "softmax":
        raised = np.exp(data - data.max())
        return np.asarray(raised / raised.sum())
    return {
        "relu": lambda: np.maximum(data, 0),
        "clip": lambda: np.clip(data, step.attributes["low"], step.attributes["high"]),
        "add": lambda: data + values[step.inputs[1]],
        "mean": lambda: data.mean(axis=(2, 3), keepdims=True),
        "flatten": lambda: data.reshape(len(data), -1),
    }[step.kind]()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_the_steps_are_the_network(name: str, tmp_path: Path) -> None:
    path = write(name, tmp_path / f"{name}.onnx", 0, 32)
    data = np.random.default_rng(0).uniform(-1, 1, (1, 3, 32, 32)).astype(np.float32)
    first, steps = network_steps(path)
    values = {first: data}
    for step in steps:
        values[step.output] = by_numpy(step, values)
    proto = onnx.load(str(path))
    (output,) = (item.name for item in proto.graph.output)
    expected = onnxruntime_values(proto, {first: data}, [output])[output]
    assert np.abs(values[output] - expected).max() <= 1e-5 * np.abs(expected).max()
    assert sum(node.op_type == "BatchNormalization" for node in proto.graph.node) > 0


def test_operators_that_no_step_describes_are_named(tmp_path: Path) -> None:
    path = write("yolo", tmp_path / "yolo.onnx", 0, 32)
    with pytest.raises(ValueError, match=r"sigmoid_\d+ is a Sigmoid: expected one of Conv, Relu"):
        network_steps(path)


def test_networks_by_name() -> None:
    assert chosen_networks(["networks"]) == chosen_networks([]) == list(NAMES)
    assert chosen_networks(["mobilenet_v2"]) == ["mobilenet_v2"]
    with pytest.raises(
        ValueError, match="unknown networks vgg: expected names of resnet18, mobilenet_v2, lstm_lm"
    ):
        chosen_networks(["vgg"])


@pytest.mark.slow
def test_ours_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    records, place = tmp_path / "records.db", Place(tmp_path / "networks", size=32)
    network = tuned_network("resnet18", 1, records, Effort(trials=1), place)
    assert re.search(r"^tune +\d", capsys.readouterr().err, re.MULTILINE)
    ours = [item for item in contenders(tmp_path, ("--records", str(records)), []) if item.name == "ours"]
    turnout = Turnout(ours, Plan(rounds=2, batches=1, batch_s=0.001), None, said.append)
    (case,) = measure_all(lambda _: [network], [1], turnout).cases
    (series,) = case.series
    assert (case.suite, series.name, case.not_measured) == ("networks", "ours bundle", {})
    assert series.error is not None and series.error < 1e-4
    assert series.gflops > 0
    tuned_network("resnet18", 1, records, Effort(trials=1), place)
    assert re.search(r"^tune .* 0 trials now", capsys.readouterr().err, re.MULTILINE)
