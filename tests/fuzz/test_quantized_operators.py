"""Random quantized operators under random configurations: machine code against exact integers.

    pytest tests/fuzz/test_quantized_operators.py --draws 25 --seed 1

draws 25 times as many as `make test` at each level of this machine (with VNNI and without, as far as it has
it) and under qemu as cores without dot products, with them, and with products of matrices; a third as many
run on PoCL or are compiled for CUDA by NVRTC. What each must compute, numpy says in exact integers; that the
imported operators are onnxruntime's, tests/unit/toolkit/model/test_quantized.py checks.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross import nvrtc
from cross.codegen.c.gpu_code import gpu_program
from cross.expression import Operator
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, to_text
from cross.nvrtc import usage
from device_runtime.protocol import GpuModule
from tests.conftest import Draws
from tests.fuzz.kernels import Job, compile_jobs, run_emulated, run_here
from tests.fuzz.pocl import Pocl, PoclJob, pocl
from tests.fuzz.test_gpu import gpu_kernel
from tests.onnx_models import save
from tests.targets import EACH_HOST
from tests.unit.toolkit.model.test_quantized import Quantized, convolution, of_activations, others, product
from tests.unit.toolkit.model.test_quantized_transposed import of_transposed
from tests.whole_models import scheduled
from toolkit.measure import emulation
from toolkit.measure.numbers_in_words import numbers_in_words
from toolkit.model.graph import Graph
from toolkit.model.load import adapted, load_model
from toolkit.model.reference import run_reference

__all__ = ["pocl"]  # a fixture

Array = NDArray[Any]
OPERATORS = 40
IN_ONE_PROGRAM = 20  # kernels that PoCL builds at once

A53 = load("emulated-a53").target(None)
A76 = msgspec.structs.replace(A53, cpu="cortex-a76", features=("+neon", "+dotprod"))
N2 = msgspec.structs.replace(A53, cpu="neoverse-n2", features=("+neon", "+dotprod", "+i8mm"))
FAMILIES = (convolution, convolution, product, product, of_activations, of_transposed, others)
UNTUNED = 0.3  # of the operators: their loops are those that in-order cores have written in order
NARROW = (128, 127, 64, 63)  # magnitudes of weights that cores without dot products treat differently


@dataclass(frozen=True)
class Drawn:
    """An operator with a random program, operands, what it computes of them, and steps that it may be off."""

    nest: LoopNest
    operands: Sequence[Array]
    want: Array
    steps: int

    def wrong(self, got: Array) -> bool:
        assert (got.shape, got.dtype) == (self.want.shape, self.want.dtype)
        if self.want.dtype.kind == "f":
            return not np.allclose(got, self.want, 1e-5, 1e-5 * np.abs(self.want).max(initial=1e-6))
        return bool(np.abs(got.astype(np.int64) - self.want.astype(np.int64)).max(initial=0) > self.steps)


def drawn(target: Target, count: int, seed: int, folder: Path) -> list[Drawn]:
    rng = np.random.default_rng([11, seed])
    found: list[Drawn] = []
    while len(found) < count:
        case = FAMILIES[int(rng.integers(len(FAMILIES)))](rng)
        _narrow(case.proto, int(rng.choice(NARROW)))
        graph = adapted(load_model(save(folder, case.proto, "case.onnx")), target)
        found += _operators(graph, case, target, rng)
    return found


def _operators(graph: Graph, case: Quantized, target: Target, rng: np.random.Generator) -> list[Drawn]:
    untuned = rng.random() < UNTUNED
    programs, found = scheduled([graph], target, None if untuned else rng), []

    def compute(operator: Operator, operands: Sequence[Array]) -> Array:
        copies = [item.copy() for item in operands]
        for place, numbers in numbers_in_words(operator).items():
            if place not in operator.constants:
                copies[place] = numbers.words(copies[place].shape, copies[place].dtype, rng)
        want = evaluate(operator, copies)
        found.append(Drawn(programs[operator.key], copies, want, case.steps))
        return want

    run_reference(graph, case.inputs, compute)
    return found


def _narrow(proto: Any, bound: int) -> None:
    """The int8 weights of a model within a bound."""
    for tensor in proto.graph.initializer:
        if tensor.data_type == 3 and len(tensor.dims) > 1:
            values = np.frombuffer(tensor.raw_data, np.int8)
            tensor.raw_data = values.clip(-bound, bound).tobytes()


def check(found: Sequence[Drawn], outputs: Sequence[Array]) -> None:
    wrong = [item for item, got in zip(found, outputs, strict=True) if item.wrong(got)]
    assert not wrong, f"{len(wrong)} of {len(found)} are wrong, the first:\n{to_text(wrong[0].nest)}"


@pytest.mark.slow
@pytest.mark.parametrize("target", EACH_HOST)
def test_on_this_machine(target: Target, draws: Draws, tmp_path: Path) -> None:
    found = drawn(target, draws.of(OPERATORS), draws.seed, tmp_path)
    jobs = [Job(item.nest, item.operands) for item in found]
    check(found, run_here(compile_jobs(jobs, target), jobs, tmp_path))


@pytest.mark.emulated
@pytest.mark.parametrize("target", [A53, A76, N2], ids=lambda target: target.cpu)
def test_as_aarch64(target: Target, draws: Draws, tmp_path: Path) -> None:
    paths = emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    found = drawn(target, draws.of(OPERATORS), draws.seed, tmp_path)
    jobs = [Job(item.nest, item.operands) for item in found]
    link = [part.replace("cortex-a53", "max") for part in load("emulated-a53").link.command]
    check(found, run_emulated(compile_jobs(jobs, target), jobs, tmp_path, paths.command(link)))


@pytest.mark.slow
def test_on_pocl(pocl: Pocl, draws: Draws, tmp_path: Path) -> None:
    target = pocl.narrowed(load("pocl").target(None))
    found = drawn(target, draws.of(OPERATORS // 3), draws.seed, tmp_path)
    for start in range(0, len(found), IN_ONE_PROGRAM):
        part = found[start : start + IN_ONE_PROGRAM]
        jobs = [PoclJob(gpu_kernel(item.nest, target), item.nest, item.operands, 0) for item in part]
        check(part, pocl.run_all(jobs))


@pytest.mark.slow
@pytest.mark.parametrize("board", ["jetson-nano", "jetson-orin-nano"])
def test_compiled_by_nvrtc(board: str, draws: Draws, tmp_path: Path) -> None:
    """Without `__dp4a` and with it."""
    target = load(board).target("gpu")
    found = drawn(target, draws.of(OPERATORS // 3), draws.seed, tmp_path)
    jobs = [Job(item.nest, item.operands) for item in found]
    module = GpuModule.from_bytes(compile_jobs(jobs, target).code)
    codes = [kernel.code for kernel in module.kernels.values()]
    assert len(codes) == len(found) and all(isinstance(code, bytes) and usage(code) for code in codes)
    for item in found:  # NVVM makes wrong ones of its own, on every architecture (cross/codegen/c/cuda.py)
        source = gpu_program("kernel", item.nest, target).source
        text = nvrtc.compiled(source, "compute_75", "PTX").decode()
        assert "dp2a" not in text and ("dp4a" not in text or "sdot4(" in source), source
