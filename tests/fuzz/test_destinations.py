"""Operators that write a part of a larger tensor, under random configurations: all of it, nothing beside."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.errors import ExpressionError
from cross.expression import Operator, compute, placeholder
from cross.expression.language.description import from_json, to_json
from cross.expression.language.operator import Destination
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.schedule import space_of
from tests.fuzz.kernels import Job, compile_jobs, run_emulated, run_here
from tests.fuzz.operators import FAMILIES, random_inputs, random_operator
from tests.fuzz.pocl import Pocl, PoclJob, pocl
from tests.fuzz.test_gpu import POCL, gpu_kernel
from tests.interpreter.interpreter import interpret, undefined
from tests.targets import HOSTS
from toolkit.measure import emulation

__all__ = ["pocl"]  # a fixture

Array = NDArray[Any]
TOLERANCE = 1e-4  # of the largest magnitude in the expected output
AROUND = (0, 0, 1, 3, 8, 16)  # elements before and behind the part in a dimension


def placed(operator: Operator, rng: np.random.Generator) -> Operator:
    """The operator with a destination of which its output is not all."""
    while True:
        before, behind = rng.choice(AROUND, (2, len(operator.output.shape)))
        if before.sum() + behind.sum():
            shape = np.add(operator.output.shape, before + behind)
            return replace(operator, destination=Destination(tuple(shape.tolist()), tuple(before.tolist())))


def case(family: str, seed: int, target: Target) -> tuple[Operator, LoopNest, list[Array]]:
    rng = np.random.default_rng([17, seed])
    operator = placed(random_operator(rng, family), rng)
    space = space_of(operator, target)
    nest = Programs(space).nest(space.configuration(space.sample(rng, 1)[0]))
    verify(nest)
    return operator, nest, random_inputs(operator, rng)


def check(operator: Operator, nest: LoopNest, got: Array, inputs: Sequence[Array]) -> None:
    want = undefined(operator.written, operator.output.dtype)
    result = evaluate(operator, inputs)
    want[operator.part] = result
    allowed = TOLERANCE * np.abs(result).max()
    np.testing.assert_allclose(got, want, rtol=0, atol=allowed, equal_nan=True, err_msg=to_text(nest))


@pytest.mark.parametrize("target", HOSTS, ids=lambda item: item.cpu + "".join(item.features))
def test_on_this_machine(target: Target, tmp_path: Path) -> None:
    families = sorted(FAMILIES)[HOSTS.index(target) :: len(HOSTS)]
    cases = [case(family, seed, target) for family in families for seed in range(6)]
    jobs = [Job(nest, inputs) for _, nest, inputs in cases]
    outputs = run_here(compile_jobs(jobs, target), jobs, tmp_path, 2)
    for (operator, nest, inputs), got in zip(cases, outputs, strict=True):
        check(operator, nest, interpret(nest, inputs), inputs)
        check(operator, nest, got, inputs)


@pytest.mark.slow
def test_on_pocl(pocl: Pocl) -> None:
    target = pocl.narrowed(POCL)
    cases = [case(family, 0, target) for family in sorted(FAMILIES)[::3]]
    jobs = [PoclJob(gpu_kernel(nest, target), nest, inputs) for _, nest, inputs in cases]
    for (operator, nest, inputs), got in zip(cases, pocl.run_all(jobs), strict=True):
        check(operator, nest, interpret(nest, inputs), inputs)
        check(operator, nest, got, inputs)


@pytest.mark.emulated
def test_as_aarch64(tmp_path: Path) -> None:
    board, paths = load("emulated-a53"), emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    target = board.target(None)
    cases = [case(family, 1, target) for family in sorted(FAMILIES)]
    jobs = [Job(nest, inputs) for _, nest, inputs in cases]
    command = paths.command(board.link.command)
    outputs = run_emulated(compile_jobs(jobs, target), jobs, tmp_path, command)
    for (operator, nest, inputs), got in zip(cases, outputs, strict=True):
        check(operator, nest, got, inputs)


def test_a_destination_is_part_of_what_an_operator_means() -> None:
    operator = _doubled()
    inside = replace(operator, destination=Destination((4, 9), (0, 2)))
    other = replace(operator, destination=Destination((4, 9), (0, 3)))
    assert len({operator.key, inside.key, other.key}) == 3
    read = from_json(to_json(inside))
    assert (read.destination, read.key) == (inside.destination, inside.key)


@pytest.mark.parametrize(("shape", "starts"), [((4, 5), (0, 1)), ((4, 5), (0, -1)), ((20,), (0,))])
def test_a_destination_holds_the_output(shape: tuple[int, ...], starts: tuple[int, ...]) -> None:
    with pytest.raises(ExpressionError, match=r"an output of shape \[4, 5\] does not fit"):
        replace(_doubled(), destination=Destination(shape, starts))


def _doubled() -> Operator:
    data = placeholder((4, 5), "data")
    return Operator("double", (data,), compute((4, 5), lambda i, j: 2.0 * data[i, j]))
