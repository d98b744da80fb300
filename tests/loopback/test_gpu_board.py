"""A GPU of this machine that a board file names: kernels, models and programs on the device itself.

    pytest -m board tests/loopback/test_gpu_board.py --board here.toml --draws 2

`toolkit boards new here.toml --local` writes such a file. What must come out, numpy and onnxruntime say.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from boards.board import load
from boards.target import Target
from cross.codegen.c import cuda
from cross.expression.rewrites.half_storage import with_half_storage
from cross.nvrtc import compile_cubin
from cross.schedule import gpu_space
from cross.schedule.winograd.gpu import gpu_winograd_spaces
from device_runtime.drivers.device import Device
from device_runtime.drivers.gpu_open import GPU_DRIVERS
from tests.conftest import Draws
from tests.fuzz.operators import FAMILIES, SEED_STRIDE, random_operator
from tests.fuzz.pocl import Pocl, PoclJob
from tests.fuzz.test_gpu import case_of, compare, gpu_kernel, random_case
from tests.fuzz.test_quantized_operators import check as check_integers
from tests.fuzz.test_quantized_operators import drawn
from tests.loopback.test_control_gpu import check, models
from tests.loopback.test_gpu_programs import MODELS, called, installed
from tests.model_libraries import kernels
from tests.onnx_models import evaluator_values, save
from tests.unit.toolkit.model import test_control
from toolkit.bundle.assemble import assemble
from toolkit.cli.main import main
from toolkit.model.load import load_model

pytestmark = pytest.mark.board

PROGRAMS = 4  # of each family
QUANTIZED = 40


@dataclass(frozen=True, kw_only=True)
class Gpu(Pocl):
    """A GPU target of a board that is this machine."""

    board: str
    of: Target

    def open(self) -> Device:
        return GPU_DRIVERS[self.kind].open(self.of.device, self.folders, 1)

    @property
    def kind(self) -> str:
        return self.of.kind


@pytest.fixture(scope="module")
def gpu(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gpu]:
    """NVRTC compiles in another process, as the product has it: where it has run (that of CUDA 13), no child
    that is forked afterwards can initialize CUDA."""
    name = request.config.getoption("--board")
    if not name:
        pytest.skip("name a board of this machine that has a GPU: --board here.toml")
    target = load(name).target()
    limits, folder = target.gpu, str(tmp_path_factory.mktemp("device"))
    assert limits is not None, f"the target with the highest peak is {target.name}, no GPU"
    with (
        ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as compiler,
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(cuda, "compile_cubin", lambda *given: compiler.submit(compile_cubin, *given).result())
        yield Gpu((folder, folder), limits.longest_vector, optimized=True, board=name, of=target)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_random_programs(gpu: Gpu, family: str, draws: Draws) -> None:
    first = draws.seed * SEED_STRIDE
    seeds = range(first, first + draws.of(PROGRAMS))
    compare(gpu, [random_case(family, seed, gpu.of) for seed in seeds])


@pytest.mark.parametrize("family", ["winograd", "winograd transposed"])
def test_winograd_algorithms(gpu: Gpu, family: str, draws: Draws) -> None:
    assert gpu.of.gpu is not None
    rng = np.random.default_rng([11, draws.seed])
    found = gpu_winograd_spaces(random_operator(rng, family), gpu.of, gpu.of.gpu)
    assert found
    compare(gpu, [case_of(space, rng, f"{family} by {name}") for name, space in found.items()])


@pytest.mark.parametrize("family", ["chain", "convolution", "matmul", "movement", "normalization"])
def test_half_storage(gpu: Gpu, family: str, draws: Draws) -> None:
    rng = np.random.default_rng([12, draws.seed, *family.encode()])
    operator = random_operator(rng, family)
    stored = with_half_storage(operator, range(len(operator.inputs)), output=True)
    compare(gpu, [case_of(gpu_space(stored, gpu.of), rng, f"{family} in half floats")], 2e-3)


def test_quantized_operators(gpu: Gpu, draws: Draws, tmp_path: Path) -> None:
    found = drawn(gpu.of, draws.of(QUANTIZED), draws.seed, tmp_path)
    jobs = [PoclJob(gpu_kernel(item.nest, gpu.of), item.nest, item.operands, 0) for item in found]
    check_integers(found, gpu.run_all(jobs))


@pytest.mark.parametrize("name", models())
def test_models_loop_and_choose(gpu: Gpu, name: str, tmp_path: Path) -> None:
    proto, inputs = models()[name]
    graph = load_model(save(tmp_path, proto))
    plan = assemble(graph, kernels(graph, target=gpu.of), gpu.of)
    for given, outputs in zip(inputs, gpu.run_model(plan, inputs), strict=True):
        check(graph, outputs, proto, given)
    if gpu.of.kind == "cuda" and name in MODELS:  # OpenCL needs a loader where programs find it
        folder = installed(plan, gpu.of, tmp_path)
        for given in inputs:
            check(graph, called(folder, given, os.environ), proto, given)


def test_the_whole_way(gpu: Gpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Doctor, tune, flash, run by each variant, bench."""
    board = str(Path(gpu.board).absolute()) if gpu.board.endswith(".toml") else gpu.board
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)

    def run(*arguments: object) -> Any:
        result = CliRunner().invoke(main, [str(item) for item in (*arguments, "--json")])
        assert result.exit_code == 0, result.output
        return json.loads(result.stdout)

    run("doctor", board)
    proto = test_control.parsed(test_control.NESTED)
    where = ("--board", board)
    run("tune", save(tmp_path, proto), "--records", "r.db", "--trials", 4, "-o", "m.tfb", *where)
    assert run("flash", "m.tfb", *where)["variant"]["kind"] == gpu.of.kind
    for holds, target in ((True, gpu.of.name), (False, gpu.of.name), (False, "cpu")):
        inputs = {"x": test_control.random(2, 4), "c": np.array(holds)}
        for name, array in inputs.items():
            np.save(name, array)
        shown = run("run", "x=x.npy", "c=c.npy", "-o", "out", "--target", target, *where)
        for name, want in evaluator_values(proto, inputs).items():
            got = np.load(shown["outputs"][name])
            np.testing.assert_allclose(got, want.reshape(got.shape), rtol=1e-4, atol=1e-5)
    run("bench", *where, "--bundle", "m.tfb")
