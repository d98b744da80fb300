"""The door of the schedule room: which space a target gets."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from benchmarks.kernels.expressions import operator as workload_operator
from benchmarks.kernels.workloads import WORKLOADS
from benchmarks.replay.operators import operator
from boards.board import board_names, load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.errors import ScheduleError
from cross.expression.reference import evaluate
from cross.loopnest import Programs, verify
from cross.schedule import cpu_space, gpu_space, space_of
from tests.fuzz.operators import FAMILIES, random_inputs, random_operator
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2

POCL = load("pocl").target(None)
GPUS = {f"{name} {item.name}": item for name in board_names() for item in load(name).targets if item.gpu}


def test_the_kind_of_target_decides() -> None:
    tiny = operator("tiny")
    assert space_of(tiny, AVX2).key == cpu_space(tiny, AVX2).key
    assert space_of(tiny, POCL).key == gpu_space(tiny, POCL).key
    assert space_of(tiny, AVX2).key != space_of(tiny, POCL).key


def test_without_winograd_a_convolution_has_one_algorithm_on_a_cpu() -> None:
    convolution = operator("tiny")
    direct = space_of(convolution, AVX2, winograd=False)
    assert direct.key == cpu_space(convolution, AVX2, winograd=False).key
    assert direct.key != space_of(convolution, AVX2).key


def test_a_gpu_without_limits_is_refused() -> None:
    with pytest.raises(ScheduleError, match="expected one with GPU limits"):
        space_of(operator("tiny"), msgspec.structs.replace(POCL, gpu=None))


@pytest.mark.slow
@pytest.mark.parametrize("target", GPUS.values(), ids=GPUS)
def test_the_untuned_program_fits_every_gpu(target: Target) -> None:
    """Small and large convolutions, a depthwise and a transposed one, a matrix product."""
    for name in ("C1", "C12", "D1", "T1", "M1024"):
        space = space_of(workload_operator(WORKLOADS[name]), target)
        assert space.valid(space.batch([space.default()])).all()
        nest = Programs(space).nest(space.default())
        verify(nest)
        assert gpu_program("untuned", nest, target).functions


@pytest.mark.slow
@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_the_untuned_gpu_program_of_any_operator_is_right(family: str) -> None:
    rng = np.random.default_rng([11, *family.encode()])
    made = random_operator(rng, family)
    space = space_of(made, POCL)
    inputs = random_inputs(made, rng)
    want = evaluate(made, inputs)
    for untuned in space.defaults():
        assert space.valid(space.batch([untuned])).all()
        got = interpret(Programs(space).nest(untuned), inputs)
        np.testing.assert_allclose(got, want, rtol=0, atol=1e-4 * max(np.abs(want).max(initial=0.0), 1.0))
