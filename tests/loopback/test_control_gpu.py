"""Loops and choices on GPUs: whole models on PoCL, and by the CUDA driver, its kernels run on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from boards.board import load
from cross.codegen.c import gpu_code
from device_runtime.drivers.cuda_driver import CudaDevice
from tests.cuda_on_cpu import Driver
from tests.fuzz.pocl import Pocl
from tests.loopback.tune_board import POCL, board_file
from tests.model_libraries import kernels, run_on_device
from tests.onnx_models import Array, evaluator_values, onnxruntime_values, save
from tests.unit.toolkit.model import test_control, test_recurrent
from tests.unit.toolkit.model.test_recurrent import Case
from toolkit.bundle.assemble import assemble
from toolkit.cli.main import main
from toolkit.model.graph import Graph
from toolkit.model.load import load_model
from toolkit.model.reference import cut

BOTH = {"direction": "bidirectional"}
LAYERS = [
    *(Case(op, BOTH, lengths=True) for op in test_recurrent.GATES),
    Case("LSTM", rows=(8, 16)),  # states of 512 bytes: kernels read and write slices where they are
    Case("GRU", BOTH, rows=(8, 16)),
]


def models() -> dict[str, tuple[Any, list[dict[str, Array]]]]:
    """By name: a model, and its inputs in several cases."""
    found: dict[str, tuple[Any, list[dict[str, Array]]]] = {}
    names = {text: name for name, (text, _) in reversed(test_control.CASES.items())}  # of the first case
    for text, given in test_control.CASES.values():
        found.setdefault(names[text], (test_control.parsed(text), []))[1].append(given)
    for case in LAYERS:
        proto, given = test_recurrent.layer(case)
        found[str(case)] = proto, [given]
    return found


def check(graph: Graph, outputs: dict[str, Array], proto: Any, inputs: dict[str, Array]) -> None:
    got = cut(graph, outputs)
    want = onnxruntime_values(proto, inputs, list(got))
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", models())
def test_opencl_loops_and_chooses(name: str, pocl: Pocl, tmp_path: Path) -> None:
    proto, inputs = models()[name]
    target = pocl.narrowed(load("pocl").target("opencl"))
    graph = load_model(save(tmp_path, proto))
    plan = assemble(graph, kernels(graph, target=target), target)
    for given, outputs in zip(inputs, pocl.run_model(plan, inputs), strict=True):
        check(graph, outputs, proto, given)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["while", "nested-then", str(LAYERS[-1])])
def test_the_cuda_driver_loops_and_chooses(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a board, but for the compiler of its code and what runs that."""
    monkeypatch.setattr(gpu_code, "compiled", lambda program, target: program.source.encode())
    proto, inputs = models()[name]
    target = load("jetson-nano").target("gpu")
    graph = load_model(save(tmp_path, proto))
    plan = assemble(graph, kernels(graph, target=target), target)
    device = CudaDevice(Driver(tmp_path), None)
    for given in inputs:
        check(graph, run_on_device(device, plan, given), proto, given)


@pytest.mark.slow
def test_a_model_with_loops_goes_the_whole_way_to_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pocl: Pocl
) -> None:
    """Tuned, packed with a variant for the CPU, flashed and run; checked with ONNX's reference evaluator."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Any:
        result = CliRunner().invoke(main, [str(item) for item in (*arguments, "--board", board, "--json")])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    board = board_file(tmp_path, POCL)
    pocl.teach(tmp_path / "device")
    proto = test_control.parsed(test_control.NESTED)
    run("tune", save(tmp_path, proto), "--records", "r.db", "--trials", 1, "-o", "m.tfb")
    assert run("flash", "m.tfb")["variant"]["kind"] == "opencl"
    for holds, target in ((True, "opencl"), (False, "opencl"), (False, "cpu")):
        inputs = {"x": test_control.random(2, 4), "c": np.array(holds)}
        for name, array in inputs.items():
            np.save(name, array)
        shown = run("run", "x=x.npy", "c=c.npy", "-o", "out", "--target", target)
        for name, want in evaluator_values(proto, inputs).items():
            got = np.load(shown["outputs"][name])
            want = want.reshape(
                got.shape
            )  # the evaluator joins the slices of a Loop instead of stacking them
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
