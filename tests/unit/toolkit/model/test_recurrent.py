"""LSTM, GRU and RNN against onnxruntime: by numpy, and as a loop in the shared object of a model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from tests.bundles import host_target
from tests.model_libraries import kernels, run_library
from tests.onnx_models import FLOAT, node, onnxruntime_values, save
from toolkit.bundle.assemble import assemble
from toolkit.bundle.model_plan import Copy, Loop, Step, leaves
from toolkit.model.distinct import distinct_operators
from toolkit.model.load import load_model
from toolkit.model.reference import run_reference

Array = NDArray[Any]

GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}
STEPS, FEATURES = 5, 3


@dataclass(frozen=True)
class Case:
    """A layer with bias and initial states; `rows` = (batch, hidden) decide whether slices are aligned."""

    op: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    rows: tuple[int, int] = (2, 5)
    lengths: bool = False
    peepholes: bool = False

    def __str__(self) -> str:
        settings = "-".join(f"{key}={value}" for key, value in self.attributes.items())
        extras = "-lengths" * self.lengths + "-peepholes" * self.peepholes
        return f"{self.op}-{settings}{extras}-{self.rows[0]}x{self.rows[1]}"


def activations(names: list[str], alpha: list[float], beta: list[float]) -> dict[str, Any]:
    return {"activations": names, "activation_alpha": alpha, "activation_beta": beta}


CASES = [
    *(Case(op, {"direction": way}) for op in GATES for way in ("forward", "reverse", "bidirectional")),
    *(Case(op, {"direction": "bidirectional"}, lengths=True) for op in GATES),
    *(Case(op, rows=(1, 16)) for op in GATES),
    Case("LSTM", peepholes=True, rows=(2, 8)),
    Case("LSTM", {"clip": 0.3}),
    Case("LSTM", {"input_forget": 1}),
    Case("LSTM", activations(["HardSigmoid", "Affine", "Elu"], [0.3, 0.7, 0.5], [0.4, 0.1])),
    Case("GRU", {"linear_before_reset": 1, "direction": "bidirectional"}),
    Case("GRU", activations(["Sigmoid", "ScaledTanh"], [1.5], [0.7])),
    Case("RNN", {**activations(["LeakyRelu"], [0.2], [0.0]), "clip": 0.5}),
]  # fmt: skip


def layer(case: Case, weights_are_inputs: bool = False) -> tuple[Any, dict[str, Array]]:
    """A model of one layer, and data for its inputs; onnxruntime knows no layout but 0."""
    rng = np.random.default_rng(3)
    batch, hidden = case.rows
    gates, ways = GATES[case.op], 2 if case.attributes.get("direction") == "bidirectional" else 1
    shapes = {
        "w": (ways, gates * hidden, FEATURES),
        "r": (ways, gates * hidden, hidden),
        "b": (ways, 2 * gates * hidden),
        "h": (ways, batch, hidden),
        **({"c": (ways, batch, hidden)} if case.op == "LSTM" else {}),
        **({"p": (ways, 3 * hidden)} if case.peepholes else {}),
    }
    weights = {name: rng.uniform(-1.0, 1.0, shape).astype(np.float32) for name, shape in shapes.items()}
    data = {"x": rng.uniform(-1.0, 1.0, (STEPS, batch, FEATURES)).astype(np.float32)}
    if case.lengths:
        data["n"] = np.array([STEPS, 2][:batch], np.int32)
    if weights_are_inputs:
        data, weights = {**data, **weights}, {}
    outputs = ["y", "yh", "yc"][: 3 if case.op == "LSTM" else 2]
    inputs = [
        "x",
        "w",
        "r",
        "b",
        "n" if case.lengths else "",
        "h",
        *(name for name in "cp" if name in shapes),
    ]
    proto = helper.make_model(
        helper.make_graph(
            [node(case.op, inputs, outputs, hidden_size=hidden, **case.attributes)],
            "layer",
            [
                helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
                for name, array in data.items()
            ],
            [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
            [numpy_helper.from_array(array, name) for name, array in weights.items()],
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    return onnx.shape_inference.infer_shapes(proto), data


@pytest.mark.parametrize("case", CASES, ids=str)
def test_layer_equals_onnxruntime(case: Case, tmp_path: Path) -> None:
    proto, data = layer(case)
    graph = load_model(save(tmp_path, proto))
    got, want = run_reference(graph, data), onnxruntime_values(proto, data, graph.outputs)
    for name in graph.outputs:
        np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize(
    "case",
    [
        Case("LSTM", {"direction": "bidirectional"}, lengths=True),
        Case("LSTM", rows=(1, 16)),
        Case("GRU", {"direction": "reverse"}, rows=(2, 8)),
    ],
    ids=str,
)
def test_the_library_loops(case: Case, tmp_path: Path) -> None:
    """Also with weights that are computed; those that no cache keeps are read forwards and backwards."""
    for weights_are_inputs in (False, True):
        proto, data = layer(case, weights_are_inputs)
        folder = tmp_path / f"{weights_are_inputs}"
        folder.mkdir()
        graph = load_model(save(folder, proto))
        near = msgspec.structs.replace(host_target(), l2_bytes=1)
        plan = assemble(graph, kernels(graph), near)
        alternating = {step.alternating for step in plan.steps if isinstance(step, Loop)}
        assert alternating == {not weights_are_inputs}
        got, want = run_library(plan, data, folder), onnxruntime_values(proto, data, graph.outputs)
        for name in graph.outputs:
            np.testing.assert_allclose(got[name], want[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_inputs_are_multiplied_outside_and_aligned_slices_are_used_in_place(tmp_path: Path) -> None:
    """One product for the inputs of all steps; in the loop one for the state, and a stage for each state."""
    graph = load_model(save(tmp_path, layer(Case("LSTM", rows=(1, 16)))[0]))
    plan = assemble(graph, kernels(graph), host_target())
    (loop,) = [step for step in plan.steps if isinstance(step, Loop)]
    assert (loop.count, sum(isinstance(step, Step) for step in loop.steps)) == (STEPS, 3)
    assert not loop.alternating  # the weights stay in the cache
    copies = [step for step, counts in leaves(plan.steps) if isinstance(step, Copy) and counts]
    assert len(copies) == 2  # of the states
    counts = sorted((task.operator.name, task.count) for task in distinct_operators(graph))
    assert counts == [("lstmcell", STEPS), ("lstmoutput", STEPS), ("matmul", 1), ("matmul", STEPS)]
