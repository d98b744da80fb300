"""Operators that read and write parts of larger tensors, under random configurations."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.errors import ExpressionError
from cross.expression import Operator, compute, placeholder
from cross.expression.language.description import from_json, to_json
from cross.expression.language.operator import Subview
from cross.expression.reference import evaluate
from cross.expression.rewrites.joined_dimensions import with_joined_dimensions
from cross.expression.rewrites.parts import with_parts
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.schedule import space_of
from tests.fuzz.kernels import Job, compile_jobs, run_emulated, run_here
from tests.fuzz.operators import FAMILIES, random_inputs, random_operator
from tests.fuzz.pocl import Pocl, PoclJob, pocl
from tests.fuzz.test_gpu import POCL, gpu_kernel
from tests.interpreter.interpreter import interpret, undefined
from tests.targets import EACH_HOST, HOSTS
from tests.unoptimized import unoptimized
from toolkit.measure import emulation

__all__ = ["pocl"]  # a fixture

Array = NDArray[Any]
TOLERANCE = 1e-4  # of the largest magnitude in the expected output
AROUND = (0, 0, 1, 3, 8, 16)  # elements before and behind the part in a dimension


def around(shape: tuple[int, ...], rng: np.random.Generator) -> Subview:
    """A larger tensor, and where one of this shape lies in it."""
    while True:
        before, behind = rng.choice(AROUND, (2, len(shape)))
        if before.sum() + behind.sum():
            whole = np.add(shape, before + behind)
            return Subview(tuple(whole.tolist()), tuple(before.tolist()))


@dataclass(frozen=True)
class Case:
    """A program of `operator`, which is `plain` with parts of larger tensors, and its inputs; the program's
    operator may have dimensions joined, as on CPUs."""

    plain: Operator
    operator: Operator
    subviews: dict[int, Subview]  # of the inputs that are parts
    nest: LoopNest
    inputs: list[Array]

    def check(self, got: Array) -> None:
        """All of the output's part is right, and nothing is written beside it."""
        whole = zip(self.inputs, self.operator.inputs, strict=True)
        given = [data.reshape(tensor.shape) for data, tensor in whole]
        for position, subview in self.subviews.items():
            shape = self.plain.inputs[position].shape
            ends = np.add(subview.starts, shape)
            given[position] = given[position][tuple(map(slice, subview.starts, ends))]
        result = evaluate(self.plain, given)
        want = undefined(self.operator.written, str(result.dtype))
        want[self.operator.part] = result
        allowed = TOLERANCE * np.abs(result).max()
        text = to_text(self.nest)
        got = got.reshape(want.shape)
        np.testing.assert_allclose(got, want, rtol=0, atol=allowed, equal_nan=True, err_msg=text)


def drawn(family: str, seed: int, target: Target) -> Case:
    rng = np.random.default_rng([17, seed])
    plain = random_operator(rng, family)
    output = around(plain.output.shape, rng) if seed % 3 else None
    subviews = {
        position: around(tensor.shape, rng)
        for position, tensor in enumerate(plain.inputs)
        if seed % 3 != 1 and tensor.shape and position not in plain.constants
    }
    operator = with_parts(plain, subviews, output)
    joins = target.kind == "cpu" and seed % 2 == 0  # as networks have them there; others keep both dimensions
    run = with_joined_dimensions(operator) if joins else operator
    space = space_of(run, target)
    rows = space.sample(rng, 1)
    nest = Programs(space).nest(space.configuration(rows[0]) if len(rows) else space.default())
    verify(nest)
    return Case(plain, operator, subviews, nest, random_inputs(run, rng))


@pytest.mark.parametrize("target", EACH_HOST)
def test_on_this_machine(target: Target, tmp_path: Path) -> None:
    families = sorted(FAMILIES)[HOSTS.index(target) :: len(HOSTS)]
    cases = [drawn(family, seed, target) for family in families for seed in range(4)]
    jobs = [Job(case.nest, case.inputs) for case in cases]
    with unoptimized():
        outputs = run_here(compile_jobs(jobs, target), jobs, tmp_path, 2)
    for case, got in zip(cases, outputs, strict=True):
        case.check(interpret(case.nest, case.inputs))
        case.check(got)


@pytest.mark.slow
def test_on_pocl(pocl: Pocl) -> None:
    target = pocl.narrowed(POCL)
    cases = [drawn(family, 2, target) for family in sorted(FAMILIES)[::3]]
    jobs = [PoclJob(gpu_kernel(case.nest, target), case.nest, case.inputs) for case in cases]
    for case, got in zip(cases, pocl.run_all(jobs), strict=True):
        case.check(interpret(case.nest, case.inputs))
        case.check(got)


@pytest.mark.emulated
def test_as_aarch64(tmp_path: Path) -> None:
    board, paths = load("emulated-a53"), emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    target = board.target(None)
    cases = [drawn(family, 2, target) for family in sorted(FAMILIES)]
    jobs = [Job(case.nest, case.inputs) for case in cases]
    command = paths.command(board.link.command)
    outputs = run_emulated(compile_jobs(jobs, target), jobs, tmp_path, command)
    for case, got in zip(cases, outputs, strict=True):
        case.check(got)


def test_a_subview_is_part_of_what_an_operator_means() -> None:
    operator = _doubled()
    inside = replace(operator, destination=Subview((4, 9), (0, 2)))
    other = replace(operator, destination=Subview((4, 9), (0, 3)))
    assert len({operator.key, inside.key, other.key}) == 3
    read = from_json(to_json(inside))
    assert (read.destination, read.key) == (inside.destination, inside.key)


@pytest.mark.parametrize(("shape", "starts"), [((4, 5), (0, 1)), ((4, 5), (0, -1)), ((20,), (0,))])
def test_a_subview_holds_the_output(shape: tuple[int, ...], starts: tuple[int, ...]) -> None:
    with pytest.raises(ExpressionError, match=r"an output of shape \[4, 5\] does not fit"):
        replace(_doubled(), destination=Subview(shape, starts))


def _doubled() -> Operator:
    data = placeholder((4, 5), "data")
    return Operator("double", (data,), compute((4, 5), lambda i, j: 2.0 * data[i, j]))
