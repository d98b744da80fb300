"""onnx's node cases with a random schedule of every operator: as aarch64 code under qemu, and on PoCL.

    pytest tests/conformance/test_random_schedules.py --draws 12 --seed 1

takes 12 times as many as `make test` of the cases that pass on this machine (test_onnx_node_cases.py), others
and other schedules for another seed. Each operator computes what it is given when numpy runs the model, whose
outputs are the case's.
"""

from __future__ import annotations

import json
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx.backend.test.case.node
import pytest
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.compile import compile
from cross.expression import Operator
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, to_text, verify
from device_runtime.protocol import GpuModule
from tests.conformance.node_cases import Trial, difference, node_cases, variants
from tests.conformance.test_onnx_node_cases import KNOWN
from tests.conftest import Draws
from tests.fuzz.kernels import Job, compile_jobs, run_emulated
from tests.fuzz.pocl import Pocl, PoclJob, pocl
from tests.whole_models import scheduled
from toolkit.errors import ModelError
from toolkit.measure import emulation
from toolkit.model.load import load_model
from toolkit.model.reference import cut, run_reference

__all__ = ["pocl"]  # a fixture

Array = NDArray[Any]

CASES = 25
MOST_OF_A_MODULE = 8  # cases: some operators have a hundred
BATCH = 50  # operators that are one program for PoCL
TOLERANCE = {"float16": 2e-3}  # of the largest element; 1e-4 of other floats


@dataclass(frozen=True)
class Drawn:
    """An operator of a case with a program of it, its operands and what it computes of them."""

    case: str
    nest: LoopNest
    operands: Sequence[Array]
    want: Array
    part: tuple[slice, ...]  # of the last argument: the output

    def wrong(self, got: Array) -> str:
        """What is wrong with the last argument; "" when nothing is."""
        got = got[self.part]
        assert (got.shape, got.dtype) == (self.want.shape, self.want.dtype)
        if self.want.dtype.kind != "f":
            step = 1 if "quantizelinear" in self.case else 0  # quotients near a half
            right = np.abs(got.astype(np.float64) - self.want.astype(np.float64)) <= step
        else:
            largest = np.abs(self.want[np.isfinite(self.want)].astype(np.float64)).max(initial=0.0)
            atol = TOLERANCE.get(str(self.want.dtype), 1e-4) * largest
            right = np.isclose(got, self.want, 0.0, atol, equal_nan=True)
        if right.all():
            return ""
        place = np.argmin(right.ravel())
        return f"{self.case}: {got.ravel()[place]}, not {self.want.ravel()[place]}\n{to_text(self.nest)}"


def sampled(count: int, rng: np.random.Generator) -> Iterator[Any]:
    """Cases that pass on this machine, of modules in a random order."""
    known: dict[str, str] = {}
    for path in KNOWN.glob("*.json"):
        known |= json.loads(path.read_text())
    modules = [item.name for item in pkgutil.iter_modules(onnx.backend.test.case.node.__path__)]
    seen: set[str] = set()
    for module in rng.permutation(modules):
        new = [case for case in node_cases([str(module)]) if case.name not in seen]
        seen |= {case.name for case in new}
        passing = [case for case in new if known.get(case.name) == "passed"]
        for place in rng.permutation(len(passing))[:MOST_OF_A_MODULE]:
            if not count:
                return
            yield passing[place]
            count -= 1


def imported(case: Any, folder: Path) -> Trial:
    """The first of a case's variants that is imported."""
    for proto, inputs, expected in variants(case):
        path = folder / "case.onnx"
        path.write_bytes(proto.SerializeToString())
        try:
            graph = load_model(path, {name: array.shape for name, array in inputs.items()})
        except ModelError:
            continue
        return Trial(case.name, case, graph, inputs, expected)
    raise AssertionError(f"{case.name} passes, but no variant of it is imported")


def drawn(trial: Trial, target: Target, rng: np.random.Generator) -> list[Drawn]:
    """The operators of a case, with what they are given first when it runs."""
    programs = scheduled([trial.graph], target, rng)
    found: dict[str, Drawn] = {}

    def compute(operator: Operator, operands: Sequence[Array]) -> Array:
        want = evaluate(operator, operands)
        copies = [item.copy() for item in operands]
        new = Drawn(trial.name, programs[operator.key], copies, want, operator.part)
        found.setdefault(operator.key, new)
        return want

    outputs = cut(trial.graph, run_reference(trial.graph, trial.inputs, compute))
    assert not difference(trial, outputs)
    for item in found.values():
        verify(item.nest)
    return list(found.values())


def operators(draws: Draws, target: Target, folder: Path) -> list[Drawn]:
    rng = np.random.default_rng([5, draws.seed])
    return [
        item for case in sampled(draws.of(CASES), rng) for item in drawn(imported(case, folder), target, rng)
    ]


@pytest.mark.emulated
def test_node_cases_as_aarch64(draws: Draws, tmp_path: Path) -> None:
    board = load("emulated-a53")
    paths = emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    found = operators(draws, board.target(None), tmp_path)
    jobs = [Job(item.nest, item.operands) for item in found]
    artifact = compile_jobs(jobs, board.target(None))
    outputs = run_emulated(artifact, jobs, tmp_path, paths.command(board.link.command))
    wrong = [item.wrong(got) for item, got in zip(found, outputs, strict=True)]
    assert not any(wrong), "\n".join(filter(None, wrong))


@pytest.mark.slow
def test_node_cases_on_pocl(draws: Draws, pocl: Pocl, tmp_path: Path) -> None:
    target = pocl.narrowed(load("pocl").target("opencl"))
    found = operators(draws, target, tmp_path)
    wrong = []
    for start in range(0, len(found), BATCH):
        batch = found[start : start + BATCH]
        module = GpuModule.from_bytes(
            compile([(f"k{n}", item.nest) for n, item in enumerate(batch)], target).code
        )
        jobs = [PoclJob(module.kernels[f"k{n}"], item.nest, item.operands) for n, item in enumerate(batch)]
        wrong += [item.wrong(got) for item, got in zip(batch, pocl.run_all(jobs), strict=True)]
    assert not any(wrong), "\n".join(filter(None, wrong))
