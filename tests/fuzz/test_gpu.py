"""Any operator under any GPU configuration: numpy reference == interpreter == OpenCL C on PoCL."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.compile import compile
from cross.expression import Axis, Operator, Term, compute, placeholder
from cross.expression.language.operations import TRIGONOMETRY
from cross.expression.language.terms import call
from cross.expression.reference import evaluate
from cross.expression.rewrites.half_storage import with_half_storage
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.nvrtc import compile_cubin, usage
from cross.schedule import ScheduleSpace, gpu_space
from cross.schedule.gpu_chain import fed_space
from cross.schedule.gpu_operands import shared_size
from cross.schedule.winograd.gpu import gpu_winograd_spaces
from device_runtime.protocol import GpuKernel, GpuModule
from tests.conftest import Draws
from tests.fuzz.operators import FAMILIES, SEED_STRIDE, random_inputs, random_operator
from tests.fuzz.pocl import Pocl, PoclJob, pocl
from tests.interpreter.interpreter import interpret
from tests.unit.cross.test_gpu_chain import chain
from tests.unit.cross.test_gpu_rows import OPERATORS

__all__ = ["pocl"]  # a fixture

Array = NDArray[Any]
TOLERANCE = 1e-4  # of the largest magnitude in the expected output
POCL = load("pocl").target(None)
PAIRS = 108
CHAINS = ((7, 8, 6), (9, 16, 12, 2), (8, 24, 8, 1, 5), (13, 20, 33))
OPTIMIZED_EVERY = 4  # a build with PoCL's optimizer takes three times as long
SEEDS_OF_A_PROGRAM = 4  # each program takes PoCL a second before its first kernel


@dataclass(frozen=True)
class Case:
    """A random program of a space with values for its inputs; `what` names it."""

    what: str
    nest: LoopNest
    inputs: list[Array]
    kernel: GpuKernel
    want: Array


def random_case(family: str, seed: int, target: Target) -> Case:
    rng = np.random.default_rng([7, seed])
    return case_of(gpu_space(random_operator(rng, family), target), rng, f"{family} {seed}")


def case_of(space: ScheduleSpace, rng: np.random.Generator, what: str) -> Case:
    """A random program of a space, verified."""
    programs, operator = Programs(space), space.operator
    configuration = space.configuration(space.sample(rng, 1)[0])
    verify(programs.parametric(programs.structure(configuration)).nest, parametric=True)
    nest = programs.nest(configuration)
    verify(nest)
    inputs = random_inputs(operator, rng)
    return Case(what, nest, inputs, gpu_kernel(nest, space.target), evaluate(operator, inputs))


def gpu_kernel(nest: LoopNest, target: Target) -> GpuKernel:
    return GpuModule.from_bytes(compile([("kernel_0", nest)], target).code).kernels["kernel_0"]


def compare(pocl: Pocl, cases: Sequence[Case], tolerance: float = TOLERANCE) -> None:
    """The programs, interpreted and on PoCL, against numpy."""
    outputs = pocl.run_all([PoclJob(case.kernel, case.nest, case.inputs) for case in cases])
    for case, output in zip(cases, outputs, strict=True):
        want = case.want.astype(np.float64)  # the magnitude of -128 is no byte
        for got in (interpret(case.nest, case.inputs), output):
            error = np.abs(got.astype(np.float64) - want).max()
            assert error <= tolerance * np.abs(want).max(), f"{case.what}: {error}\n{to_text(case.nest)}"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(OPTIMIZED_EVERY))
def test_random_pairs_on_pocl(pocl: Pocl, part: int, draws: Draws) -> None:
    """The first part is built as the product builds kernels, the others without PoCL's optimizer."""
    target, families = pocl.narrowed(POCL), sorted(FAMILIES)
    last = max(OPTIMIZED_EVERY, draws.of(PAIRS) // len(families))
    seeds = [draws.seed * SEED_STRIDE + number for number in range(last) if number % OPTIMIZED_EVERY == part]
    for start in range(0, len(seeds), SEEDS_OF_A_PROGRAM):
        compare(
            replace(pocl, optimized=part == 0),
            [
                random_case(family, seed, target)
                for seed in seeds[start : start + SEEDS_OF_A_PROGRAM]
                for family in families
            ],
        )


@pytest.mark.slow
def test_rows_in_one_launch_on_pocl(pocl: Pocl) -> None:
    target, cases = pocl.narrowed(POCL), []
    for number, (name, operator) in enumerate(OPERATORS.items()):
        rng = np.random.default_rng([15, number])
        spaces = {part.label: part.space for part in gpu_space(operator, target).parts}
        assert len(spaces) > 1
        cases += [
            case_of(space, rng, f"{name} {label}") for label, space in spaces.items() if label != "direct"
        ]
    compare(pocl, cases)


@pytest.mark.slow
@pytest.mark.parametrize("half", [False, True], ids=["float32", "half floats"])
def test_chains_in_one_launch_on_pocl(pocl: Pocl, half: bool) -> None:
    target, cases = pocl.narrowed(POCL), []
    assert target.gpu is not None
    for number, sizes in enumerate(CHAINS):
        operator, rng = chain(*sizes), np.random.default_rng([16, number])
        if half:
            operator = with_half_storage(operator, range(len(operator.inputs)), output=True)
        space = fed_space(operator, target, target.gpu)
        assert space is not None
        cases += [case_of(space, rng, f"chain {sizes}") for _ in range(3)]
    compare(pocl, cases, 2e-3 if half else TOLERANCE)


@pytest.mark.slow
def test_half_storage_on_pocl(pocl: Pocl) -> None:
    cases = []
    for family in ("chain", "convolution", "matmul", "movement", "normalization"):
        rng = np.random.default_rng([12, *family.encode()])
        operator = random_operator(rng, family)
        stored = with_half_storage(operator, range(len(operator.inputs)), output=True)
        space = gpu_space(stored, pocl.narrowed(POCL))
        cases.append(case_of(space, rng, f"{family} in half floats"))
    compare(pocl, cases, 2e-3)


@pytest.mark.slow
def test_functions_of_the_library_on_pocl(pocl: Pocl) -> None:
    """All in one kernel, of numbers between -0.9 and 0.9, where each of them is defined."""
    x = placeholder((3, 64), "x")

    def body(i: Axis, j: Axis) -> Term:
        value = x[i, j] * 0.9
        made = [call(name, value + 2.0 if name == "acosh" else value) for name in (*TRIGONOMETRY, "round")]
        return functools.reduce(
            lambda total, part: total * 0.5 + part, made, call("fmod", value, value + 2.0)
        )

    operator = Operator("functions", (x,), compute((3, 64), body, name="functions"))
    rng = np.random.default_rng(14)
    case = case_of(gpu_space(operator, pocl.narrowed(POCL)), rng, "functions of the library")
    inputs = [rng.uniform(-1.0, 1.0, (3, 64)).astype(np.float32)]
    compare(pocl, [replace(case, inputs=inputs, want=evaluate(operator, inputs))])


@pytest.mark.slow
@pytest.mark.parametrize("family", ["winograd", "winograd transposed"])
@pytest.mark.parametrize("seed", [0, 3])
def test_winograd_algorithms_on_pocl(pocl: Pocl, family: str, seed: int) -> None:
    target = pocl.narrowed(POCL)
    assert target.gpu is not None
    rng = np.random.default_rng([11, seed])
    found = gpu_winograd_spaces(random_operator(rng, family), target, target.gpu)
    assert found
    compare(pocl, [case_of(space, rng, f"{family} {seed} by {name}") for name, space in found.items()])


@pytest.mark.parametrize("board", ["jetson-nano", "h200"])
def test_cubins_keep_the_limits_of_the_board(board: str) -> None:
    target = load(board).target("gpu")
    assert target.gpu is not None
    rng = np.random.default_rng(3)
    space = gpu_space(random_operator(rng, "convolution"), target)
    nest = Programs(space).nest(space.configuration(space.sample(rng, 1)[0]))
    program = gpu_program("kernel_0", nest, target)
    found = usage(compile_cubin(program.source, target.gpu.compute_capability))
    reserved = 1024 if board == "h200" else 0
    for function in program.functions:
        used = found[function.name]
        assert 0 < used.registers <= 255
        assert used.registers * function.threads <= target.gpu.registers_per_block
        assert shared_size(used.shared_bytes) in (function.shared_bytes, function.shared_bytes + reserved)
