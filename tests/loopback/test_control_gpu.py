"""Loops and choices on GPUs: whole models on PoCL, and by the CUDA driver, its kernels run on the CPU."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

from boards.board import load
from cross.codegen.c import gpu_code
from device_runtime.drivers.cuda_driver import CudaDevice
from tests.cuda_on_cpu import Driver
from tests.fuzz.pocl import Pocl, pocl
from tests.loopback.tune_board import POCL, board_file
from tests.model_libraries import kernels, run_on_device
from tests.onnx_models import Array, evaluator_values, onnxruntime_values, save
from tests.unit.toolkit.model import test_control, test_recurrent
from tests.unit.toolkit.model.test_recurrent import Case
from toolkit.bundle.assemble import assemble
from toolkit.bundle.model_plan import ModelPlan
from toolkit.cli.main import main
from toolkit.model.load import load_model

__all__ = ["pocl"]  # a fixture

BOTH = {"direction": "bidirectional"}
LAYERS = [
    *(Case(op, BOTH, lengths=True) for op in test_recurrent.GATES),
    Case("LSTM", rows=(8, 16)),  # states of 512 bytes: kernels read and write slices where they are
    Case("GRU", BOTH, rows=(8, 16)),
]


def models() -> dict[str, tuple[Any, dict[str, Array]]]:
    """By name: a model, and its inputs."""
    found = {name: (test_control.parsed(text), given) for name, (text, given) in test_control.CASES.items()}
    return found | {str(case): test_recurrent.layer(case) for case in LAYERS}


def check(plan: ModelPlan, got: dict[str, Array], proto: Any, inputs: dict[str, Array]) -> None:
    want = onnxruntime_values(proto, inputs, [spec.name for spec in plan.outputs])
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
@pytest.mark.parametrize("name", models())
def test_opencl_loops_and_chooses(name: str, pocl: Pocl, tmp_path: Path) -> None:
    proto, inputs = models()[name]
    target = pocl.narrowed(load("pocl").target("opencl"))
    graph = load_model(save(tmp_path, proto))
    plan = assemble(graph, kernels(graph, target=target), target)
    check(plan, pocl.run_model(plan, inputs), proto, inputs)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["while", "nested-else", str(LAYERS[-1])])
def test_the_cuda_driver_loops_and_chooses(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As on a board, but for the compiler of its code and what runs that."""
    monkeypatch.setattr(gpu_code, "compiled", lambda program, target: program.source.encode())
    proto, inputs = models()[name]
    target = load("jetson-nano").target("gpu")
    graph = load_model(save(tmp_path, proto))
    plan = assemble(graph, kernels(graph, target=target), target)
    check(plan, run_on_device(CudaDevice(Driver(tmp_path), None), plan, inputs), proto, inputs)


STEPS, BATCH, WIDTH = 4, 2, 8
TEXT = f"""<ir_version: 8, opset_import: ["" : 17]>
m (float[{STEPS}, {BATCH}, 3] x, bool loud, float limit) =>
    (float[2, {BATCH}, {WIDTH}] state, float[{STEPS}, {BATCH}, {WIDTH}] sums,
     float[2, {BATCH}, {WIDTH}] grown) {{
    all, last = GRU <hidden_size = {WIDTH}, direction = "bidirectional"> (x, w, r)
    state = If (loud) <then_branch = one () => (float[2, {BATCH}, {WIDTH}] p) {{ p = Mul (last, limit) }},
        else_branch = two () => (float[2, {BATCH}, {WIDTH}] q) {{ q = Tanh (last) }}>
    axis = Constant <value = int64[1] {{1}}> ()
    rows = ReduceSum <keepdims = 0> (all, axis)
    zero = Constant <value = float[{BATCH}, {WIDTH}] {{{", ".join(["0"] * BATCH * WIDTH)}}}> ()
    end, sums = Scan <num_scan_inputs = 1, body = g
        (float[{BATCH}, {WIDTH}] total, float[{BATCH}, {WIDTH}] row) =>
        (float[{BATCH}, {WIDTH}] next, float[{BATCH}, {WIDTH}] kept) {{
        next = Add (total, row)
        kept = Identity (next)
    }}> (zero, rows)
    most = Constant <value = int64 {{20}}> ()
    go = Constant <value = bool {{1}}> ()
    grown = Loop (most, go, last) <body = b (int64 i, bool c, float[2, {BATCH}, {WIDTH}] s) =>
        (bool c2, float[2, {BATCH}, {WIDTH}] s2) {{
        s2 = Add (s, last)
        squared = Mul (s2, s2)
        size = ReduceSum <keepdims = 0> (squared)
        c2 = Less (size, limit)
    }}>
}}"""


@pytest.mark.slow
def test_a_model_with_loops_goes_the_whole_way_to_a_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pocl: Pocl
) -> None:
    """Tuned, packed with a variant for the CPU, flashed and run; checked with ONNX's reference evaluator."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(4)
    proto = onnx.parser.parse_model(TEXT)
    shapes = {"w": (2, 3 * WIDTH, 3), "r": (2, 3 * WIDTH, WIDTH)}
    proto.graph.initializer.extend(
        onnx.numpy_helper.from_array(rng.uniform(-1, 1, shape).astype(np.float32), name)
        for name, shape in shapes.items()
    )

    def run(*arguments: object) -> Any:
        result = CliRunner().invoke(main, [str(item) for item in (*arguments, "--board", board, "--json")])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    board = board_file(tmp_path, POCL)
    path = save(tmp_path, proto)
    run("tune", path, "--records", "r.db", "--trials", 1, "-o", "m.tfb")
    flashed = run("flash", "m.tfb")
    assert flashed["variant"]["kind"] == "opencl"
    x = rng.uniform(-1, 1, (STEPS, BATCH, 3)).astype(np.float32)
    for loud, limit, target in ((True, 90.0, "opencl"), (False, 0.0, "opencl"), (True, 90.0, "cpu")):
        inputs = {"x": x, "loud": np.array(loud), "limit": np.array(limit, np.float32)}
        for name, array in inputs.items():
            np.save(name, array)
        shown = run("run", *(f"{name}={name}.npy" for name in inputs), "-o", "out", "--target", target)
        for name, want in evaluator_values(proto, inputs).items():
            np.testing.assert_allclose(np.load(shown["outputs"][name]), want, rtol=1e-4, atol=1e-5)
