"""Four steps of a sum together where tiles leave them alone: which loops, and the same results."""

from __future__ import annotations

import numpy as np
import pytest

from boards.board import load
from cross.codegen.llvm.steps_together import with_steps_together
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import batch_matmul, dense
from cross.expression.families.pool import reduce
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.inspection.cpu_loops import inspect
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.schedule import cpu_space
from tests.interpreter.interpreter import interpret

TARGET = load("rpi3b").target(None)


def product(steps: int, dtype: str = "float32") -> Operator:
    data, weight = placeholder((3, 10, steps), "X", dtype), placeholder((3, steps, 32), "W", dtype)
    return Operator("product", (data, weight), batch_matmul(data, weight))


def untuned(operator: Operator) -> LoopNest:
    space = cpu_space(operator, TARGET)
    return Programs(space).nest(space.default())


@pytest.mark.parametrize("steps", [53, 59, 197])
def test_four_steps_are_together_and_the_rest_behind_them(steps: int) -> None:
    nest = untuned(product(steps))
    after = with_steps_together(nest)
    text = to_text(after)
    assert f".k.1 in {steps}:" in to_text(nest) and f".k.1 in {steps}:" not in text
    assert f".k.1 in {steps // 4}:" in text and ".step in 4:" in text and f".rest in {steps % 4}:" in text
    verify(after)
    rng = np.random.default_rng(steps)
    inputs = [rng.standard_normal(shape).astype(np.float32) for shape in ((3, 10, steps), (3, steps, 32))]
    got = interpret(after, inputs)
    np.testing.assert_allclose(got, evaluate(product(steps), inputs), rtol=1e-4, atol=1e-4)


def maxima() -> Operator:
    data = placeholder((24, 13, 8), "X")
    return Operator("most", (data,), reduce(data, (1,), "max", name="most"))


def window() -> Operator:
    data, weight = placeholder((1, 9, 9, 3), "X"), placeholder((3, 3, 3, 24), "W")
    return Operator("conv", (data, weight), conv2d(data, weight, Window()), frozenset({1}))


def even() -> Operator:
    data, weight = placeholder((9, 64), "X"), placeholder((64, 20), "W")
    return Operator("dense", (data, weight), dense(data, weight), frozenset({1}))


@pytest.mark.parametrize(
    "operator", [product(7), product(16), product(13, "int32"), maxima(), window(), even()]
)
def test_other_loops_stay_as_they_are(operator: Operator) -> None:
    nest = untuned(operator)
    assert with_steps_together(nest) == nest


def test_drawn_programs_compute_the_same() -> None:
    operator, rng = product(37), np.random.default_rng(6)
    inputs = [rng.standard_normal(item.shape).astype(np.float32) for item in operator.inputs]
    space, changed = cpu_space(operator, TARGET), 0
    for configuration in map(space.configuration, space.sample(rng, 20)):
        nest = Programs(space).nest(configuration)
        after = with_steps_together(nest)
        changed += after != nest
        verify(after)
        got, want = interpret(after, inputs), evaluate(operator, inputs)
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
    assert changed >= 5


def test_a_product_of_a_prime_number_of_steps_is_nearly_as_quick() -> None:
    """A row of 197 elements begins anywhere: its elements are still loaded four at a time."""
    cycles = []
    for steps in (196, 197):
        hot = inspect("product", untuned(product(steps)), TARGET).hot
        assert hot is not None and hot.spills == 0
        cycles.append(hot.predictions[0].cycles / hot.fma)
    assert cycles[1] < 1.1 * cycles[0]
