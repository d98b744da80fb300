"""Any operator under any configuration: reference == interpreter == generated machine code.

A case is an operator of a random family and shape with a random configuration of its space. Every nest passes
the verifier before and after binding; the interpreter's output is compared with the numpy reference of
the expression, and the machine code's with the interpreter's.

    pytest tests/fuzz/test_compiler.py tests/fuzz/test_gpu.py --draws 6 --seed 1
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from boards.board import load
from boards.target import Target
from cross.expression import Operator, placeholder
from cross.expression.families.data_movement import concat
from cross.expression.reference import evaluate
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.schedule import Configuration, ScheduleSpace, cpu_space
from tests.conftest import Draws
from tests.fuzz.kernels import Job, compile_jobs, run_emulated, run_here
from tests.fuzz.operators import FAMILIES, SEED_STRIDE, random_inputs, random_operator
from tests.interpreter.interpreter import interpret
from tests.targets import HOST, HOSTS
from tests.unoptimized import unoptimized
from toolkit.measure import emulation

Array = NDArray[Any]

TOLERANCE = 1e-4  # of the largest magnitude in the expected output
SEED = 20261120
PAIRS = 120
EMULATED_PAIRS = 100  # under qemu, also of one run of it
OPTIMIZED_EVERY = 4  # the others take less time, and the code that LLVM is given is the same
BATCH = 100  # cases that are one shared object


def named(target: Target) -> str:
    """A level of this machine, for the name of a test."""
    return "".join([target.cpu, *target.features])


@dataclass(frozen=True)
class Case:
    """One operator under one configuration, with values for its inputs."""

    operator: Operator
    space: ScheduleSpace
    configuration: Configuration
    nest: LoopNest
    inputs: list[Array]

    def __str__(self) -> str:
        shapes = ", ".join(f"{item.name}{list(item.shape)}" for item in self.operator.inputs)
        return (
            f"{self.operator.name}({shapes}) {self.space.describe(self.configuration)}\n{to_text(self.nest)}"
        )


def random_case(rng: np.random.Generator, target: Target, family: str | None = None) -> Case:
    """A case whose nest the verifier has passed, parametric and bound."""
    operator = random_operator(rng, family)
    space = cpu_space(operator, target)
    rows = space.sample(rng, 1)
    configuration = space.configuration(rows[0]) if len(rows) else space.default()
    programs = Programs(space)
    verify(programs.parametric(programs.structure(configuration)).nest, parametric=True)
    nest = programs.nest(configuration)
    verify(nest)
    return Case(operator, space, configuration, nest, random_inputs(operator, rng))


def check_close(what: str, got: Array, want: Array, case: Case) -> None:
    assert (got.shape, got.dtype) == (want.shape, want.dtype), f"{what}: {got.shape} {got.dtype}\n{case}"
    assert np.isfinite(got).all(), f"{what}: not finite\n{case}"
    exact = want.astype(np.float64)  # differences of bytes are no bytes
    error, scale = np.abs(got.astype(np.float64) - exact).max(), np.abs(exact).max()
    assert error <= TOLERANCE * scale, f"{what}: error {error} of {scale}\n{case}"


def interpreted(case: Case) -> Array:
    """The interpreter's output, which equals the reference."""
    output = interpret(case.nest, case.inputs)
    check_close("interpreter against reference", output, evaluate(case.operator, case.inputs), case)
    return output


def check_machine_code(cases: Sequence[Case], target: Target, folder: Path) -> None:
    """Machine code equals the interpreter, on one thread and on two."""
    want = [interpreted(case) for case in cases]
    jobs = [Job(case.nest, case.inputs) for case in cases]
    artifact = compile_jobs(jobs, target)
    for threads in (1, 2):
        outputs = run_here(artifact, jobs, folder, threads)
        for case, got, expected in zip(cases, outputs, want, strict=True):
            check_close(f"machine code on {threads} threads against interpreter", got, expected, case)


def numbered_case(number: int, target: Target) -> Case:
    """The case of this number: it has a seed of its own, so that one can be run alone."""
    return random_case(np.random.default_rng([SEED, number]), target)


SEEDS = st.builds(
    lambda family, seed: (family, seed), st.sampled_from(sorted(FAMILIES)), st.integers(0, 2**32 - 1)
)
# A seed says nothing about the size of its case, so there is nothing to shrink.
QUICK = settings(
    deadline=None,
    derandomize=True,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.slow
@settings(QUICK, max_examples=30)
@given(SEEDS)
def test_interpreter_equals_reference(seed: tuple[str, int]) -> None:
    interpreted(random_case(np.random.default_rng(seed[1]), HOST, seed[0]))


@pytest.mark.parametrize("target", HOSTS, ids=named)
@settings(QUICK, max_examples=1)
@given(st.lists(SEEDS, min_size=24 // len(HOSTS), max_size=24 // len(HOSTS)))
def test_machine_code_equals_interpreter(
    tmp_path_factory: pytest.TempPathFactory, target: Target, seeds: list[tuple[str, int]]
) -> None:
    cases = [random_case(np.random.default_rng(seed), target, family) for family, seed in seeds]
    check_machine_code(cases, target, tmp_path_factory.mktemp("kernels"))


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_untuned_program_of_every_family(family: str, tmp_path: Path) -> None:
    target = HOSTS[sorted(FAMILIES).index(family) % len(HOSTS)]
    case = random_case(np.random.default_rng([SEED, len(family)]), target, family)
    nest = Programs(case.space).nest(case.space.default())
    verify(nest)
    check_machine_code(
        [Case(case.operator, case.space, case.space.default(), nest, case.inputs)], target, tmp_path
    )


@pytest.mark.slow
@pytest.mark.parametrize("level", range(len(HOSTS)), ids=map(named, HOSTS))
def test_random_pairs_on_this_machine(level: int, draws: Draws, tmp_path: Path) -> None:
    """Each level of this machine gets its share of them, and other ones. A quarter is compiled as the product
    compiles, the others without LLVM's optimizations."""
    last = draws.of(PAIRS)
    numbers = [draws.seed * SEED_STRIDE + number for number in range(level, last, len(HOSTS))]
    for part in range(OPTIMIZED_EVERY):
        with nullcontext() if part == 0 else unoptimized():
            mine = numbers[part::OPTIMIZED_EVERY]
            for start in range(0, len(mine), BATCH):
                cases = [numbered_case(number, HOSTS[level]) for number in mine[start : start + BATCH]]
                check_machine_code(cases, HOSTS[level], tmp_path)


@pytest.mark.emulated
def test_random_pairs_as_aarch64(draws: Draws, tmp_path: Path) -> None:
    board = load("emulated-a53")
    paths = emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    target = board.target(None)
    command = paths.command(board.link.command)
    first, last = 10_000 + draws.seed * SEED_STRIDE, draws.of(EMULATED_PAIRS)
    for start in range(0, last, EMULATED_PAIRS):
        numbers = range(first + start, first + min(start + EMULATED_PAIRS, last))
        cases = [numbered_case(number, target) for number in numbers]
        jobs = [Job(case.nest, case.inputs) for case in cases]
        outputs = run_emulated(compile_jobs(jobs, target), jobs, tmp_path, command)
        for case, got in zip(cases, outputs, strict=True):
            check_close("aarch64 code against interpreter", got, interpreted(case), case)


def test_truth_values_under_random_schedules(tmp_path: Path) -> None:
    """Bytes in memory and bits in vectors, whose lanes are stored one by one in some schedules."""
    rng = np.random.default_rng(SEED)
    parts = tuple(placeholder((rows, 3, 1), f"x{rows}", "bool") for rows in (5, 3))
    operator = Operator("concat", parts, concat(parts, 0))
    given = [np.asarray(rng.integers(0, 2, part.shape), bool) for part in parts]
    space = cpu_space(operator, HOST)
    nests = [Programs(space).nest(space.configuration(row)) for row in space.sample(rng, 24)]
    jobs = [Job(nest, given) for nest in nests]
    for nest, got in zip(nests, run_here(compile_jobs(jobs, HOST), jobs, tmp_path), strict=True):
        np.testing.assert_array_equal(got, np.concatenate(given), to_text(nest), strict=True)
