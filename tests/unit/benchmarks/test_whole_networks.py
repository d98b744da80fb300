"""Whole networks beside libraries: what they are built from, and ours from tuning to the rounds."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from benchmarks.kernels.libraries.network_steps import Steps, network_steps
from benchmarks.kernels.measuring import Turnout, measure_all
from benchmarks.kernels.networks import NAMES, Place, chosen_networks, tuned_network
from benchmarks.kernels.processes import contenders
from benchmarks.kernels.rounds import Plan
from benchmarks.kernels.tune import Effort
from benchmarks.networks import write
from benchmarks.networks.builder import Network
from tests.onnx_models import onnxruntime_values

FOLDED = ["mobilenet_v3", "dcgan", "bert", "r2plus1d_18", "yolo"]  # convolutions of each kind, and GELU


def as_model(network: Steps) -> onnx.ModelProto:
    """The steps as an ONNX model; its GELU is Microsoft's, which opset 17 has not."""
    domains = {"Gelu": "com.microsoft"}
    nodes = [
        helper.make_node(
            *(step.operator, step.inputs, step.outputs),
            domain=domains.get(step.operator, ""),
            **step.attributes,
        )
        for step in network.steps
    ]
    float32 = onnx.TensorProto.FLOAT
    graph = helper.make_graph(
        nodes,
        "steps",
        [helper.make_tensor_value_info(network.input, float32, network.shapes[network.input])],
        [helper.make_tensor_value_info(network.output, float32, network.shapes[network.output])],
        [numpy_helper.from_array(array, name) for name, array in network.constants.items()],
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.slow
@pytest.mark.parametrize("name", FOLDED)
def test_the_steps_are_the_network(name: str, tmp_path: Path) -> None:
    sizes = {"mobilenet_v3": 64, "yolo": 64, "dcgan": 8, "bert": 16, "r2plus1d_18": 32}
    path = write(name, tmp_path / f"{name}.onnx", 0, sizes[name])
    network = network_steps(path)
    shape = network.shapes[network.input]
    data = {network.input: np.random.default_rng(0).uniform(-1, 1, shape).astype(np.float32)}
    proto = onnx.load(str(path))
    expected = onnxruntime_values(proto, data, [network.output])[network.output]
    found = onnxruntime_values(as_model(network), data, [network.output])[network.output]
    assert np.abs(found - expected).max() <= 1e-5 * np.abs(expected).max()
    before = {node.op_type for node in proto.graph.node}
    after = {step.operator for step in network.steps}
    assert {"BatchNormalization", "Erf"} & before
    assert not {"BatchNormalization", "Erf"} & after


def test_a_normalization_that_follows_no_convolution_is_named(tmp_path: Path) -> None:
    net = Network(np.random.default_rng(0))
    net.batch_norm(net.input(1, 3, 8, 8))
    path = tmp_path / "norm.onnx"
    (output,) = net.nodes[-1].output
    values = [helper.make_tensor_value_info(name, 1, [1, 3, 8, 8]) for name in ("input", output)]
    weights = [numpy_helper.from_array(array, name) for name, array in net.weights.items()]
    onnx.save(helper.make_model(helper.make_graph(net.nodes, "norm", *([v] for v in values), weights)), path)
    with pytest.raises(ValueError, match="expected a convolution before a batch normalization"):
        network_steps(path)


def test_networks_by_name() -> None:
    assert chosen_networks(["networks"]) == chosen_networks([]) == list(NAMES)
    assert chosen_networks(["mobilenet_v2"]) == ["mobilenet_v2"]
    with pytest.raises(
        ValueError, match="unknown networks vgg: expected names of resnet18, resnet50, mobilenet_v1"
    ):
        chosen_networks(["vgg"])


@pytest.mark.slow
def test_ours_end_to_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    said: list[str] = []
    records, place = tmp_path / "records.db", Place(tmp_path / "networks", size=8)
    network = tuned_network("dcgan", 1, records, Effort(trials=1), place)
    assert re.search(r"^tune +\d", capsys.readouterr().err, re.MULTILINE)
    ours = [item for item in contenders(tmp_path, ("--records", str(records)), []) if item.name == "ours"]
    turnout = Turnout(ours, Plan(rounds=2, batches=1, batch_s=0.001), None, said.append)
    (case,) = measure_all(lambda _: [network], [1], turnout).cases
    (series,) = case.series
    assert (case.suite, series.name, case.not_measured) == ("networks", "ours bundle", {})
    assert series.error is not None and series.error < 1e-4
    assert series.gflops > 0
    tuned_network("dcgan", 1, records, Effort(trials=1), place)
    assert re.search(r"^tune .* 0 trials now", capsys.readouterr().err, re.MULTILINE)
