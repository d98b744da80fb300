"""Random programs of operators that are large enough for cores in order to have their loops arranged.

    pytest tests/fuzz/test_in_order.py --draws 20 --seed 1

Random pairs (test_compiler.py) are small: few of their loops have as many multiply-adds as are put in order,
few of their tiles wait for registers. These are run under qemu and compared with the reference in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, Tensor, Term, placeholder, sigmoid
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.dense import dense
from cross.expression.families.elementwise import UNARY, apply, bias_add, combine, gelu
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.expression.rewrites.composition import composed
from cross.loopnest import Programs, to_text
from cross.schedule import cpu_space
from tests.conftest import Draws
from tests.fuzz.kernels import Job, compile_jobs, run_emulated
from toolkit.measure import emulation

PROGRAMS = 6  # of each operator in a run of `make test`
BATCH = 60  # in one library


def silu(x: Term) -> Term:
    return x * sigmoid(x)


def product(rows: int, inside: int, outside: int, function: Callable[[Term], Term]) -> Operator:
    data, weight, bias = (
        placeholder(shape, name)
        for shape, name in (((rows, inside), "X"), ((inside, outside), "W"), ((outside,), "b"))
    )
    output = apply(function, bias_add(dense(data, weight), bias, 1), "f")
    return Operator("dense", (data, weight, bias), output, frozenset({1, 2}))


def convolution(
    size: int, inside: int, outside: int, kernel: int, stride: int = 1, residual: bool = False
) -> Operator:
    data, weight = (
        placeholder((1, size, size, inside), "X"),
        placeholder((kernel, kernel, inside, outside), "W"),
    )
    bias, inputs = placeholder((outside,), "b"), []
    window = Window((stride, stride), (kernel // 2,) * 4)
    output: Tensor = bias_add(conv2d(data, weight, window), bias)
    if residual:
        inputs.append(placeholder(output.shape, "R"))
        output = combine(lambda x, y: x + y, output, inputs[0], "sum")
    output = apply(silu, output, "f")
    return Operator("conv", (data, weight, bias, *inputs), output, frozenset({1, 2}))


def depthwise(size: int, channels: int, kernel: int, stride: int = 1) -> Operator:
    data, weight = placeholder((1, size, size, channels), "D"), placeholder((kernel, kernel, channels), "V")
    window = Window((stride, stride), (kernel // 2,) * 4)
    output = apply(UNARY["Relu"], depthwise_conv(data, weight, window), "relu")
    return Operator("depthwise", (data, weight), output, frozenset({1}))


OPERATORS = {
    "product": product(24, 48, 40, gelu),
    "product of rows that divide badly": product(29, 37, 52, silu),
    "product of a prime number of steps": product(15, 83, 28, silu),
    "pointwise": convolution(14, 32, 36, 1),
    "3x3": convolution(14, 12, 24, 3, residual=True),
    "3x3 with stride": convolution(17, 8, 20, 3, 2),
    "5x5 depthwise": depthwise(14, 24, 5),
    "strided depthwise": depthwise(19, 20, 3, 2),
    "pointwise, depthwise": composed(convolution(14, 16, 24, 1), depthwise(14, 24, 3), 0),
    "pointwise, strided 5x5": composed(convolution(15, 8, 32, 1), depthwise(15, 32, 5, 2), 0),
    "depthwise, pointwise": composed(depthwise(14, 16, 3), convolution(14, 16, 28, 1, residual=True), 0),
}


@pytest.mark.slow
@pytest.mark.emulated
@pytest.mark.parametrize("name", OPERATORS)
def test_random_programs_compute_what_the_operator_says(name: str, draws: Draws, tmp_path: Path) -> None:
    board, paths = load("emulated-a53"), emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    operator, target = OPERATORS[name], board.target(None)
    rng = np.random.default_rng([*name.encode(), draws.seed])
    inputs = [rng.uniform(-1, 1, item.shape).astype(np.float32) for item in operator.inputs]
    want, space = evaluate(operator, inputs), cpu_space(operator, target)
    programs = Programs(space)
    nests = [programs.nest(item) for item in map(space.configuration, space.sample(rng, draws.of(PROGRAMS)))]
    for start in range(0, len(nests), BATCH):
        jobs = [Job(nest, inputs) for nest in nests[start : start + BATCH]]
        outputs = run_emulated(compile_jobs(jobs, target), jobs, tmp_path, paths.command(board.link.command))
        for job, got in zip(jobs, outputs, strict=True):
            assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max(), to_text(job.nest)
