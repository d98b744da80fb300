"""Any operator under any CUDA configuration: numpy reference == interpreter == CUDA C, run on the CPU."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from cross.codegen.c.gpu_code import gpu_program
from cross.expression.reference import evaluate
from cross.loopnest import Programs, verify
from cross.schedule.choose import space_of
from tests.cuda_on_cpu import Call, run_on_cpu
from tests.fuzz.operators import FAMILIES, random_inputs, random_operator
from tests.interpreter.interpreter import interpret

Array = NDArray[Any]
TOLERANCE = 1e-4  # of the largest magnitude in the expected output
JETSON = load("jetson-nano").target("gpu")


def call(family: str, seed: int) -> tuple[Call, Array]:
    """A kernel of a drawn configuration with its inputs, and the output that the reference gives."""
    rng = np.random.default_rng([11, seed])
    operator = random_operator(rng, family)
    space = space_of(operator, JETSON)
    nest = Programs(space).nest(space.configuration(space.sample(rng, 1)[0]))
    verify(nest)
    inputs = random_inputs(operator, rng)
    symbol = f"{family.replace(' ', '_')}_{seed}"
    return Call(gpu_program(symbol, nest, JETSON), nest, inputs), evaluate(operator, inputs)


def check(seeds: range, folder: Path) -> None:
    names = [(family, seed) for seed in seeds for family in sorted(FAMILIES)]
    drawn = [call(*name) for name in names]
    found = run_on_cpu([item for item, _ in drawn], folder)
    for name, (item, expected), got in zip(names, drawn, found, strict=True):
        want = expected.astype(np.float64)
        for output in (got, interpret(item.nest, item.inputs)):
            error = np.abs(output.astype(np.float64) - want).max()
            assert error <= TOLERANCE * np.abs(want).max(), f"{name}: {error}\n{item.program.source}"


@pytest.mark.slow
def test_cuda_equals_interpreter_and_reference(tmp_path: Path) -> None:
    check(range(5), tmp_path)
