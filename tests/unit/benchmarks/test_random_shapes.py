"""Shapes from a seed, and numpy's way of computing them."""

from __future__ import annotations

import pytest

from benchmarks.kernels.expressions import documented, operands, operator
from benchmarks.kernels.libraries.numpy_worker import Numpy
from benchmarks.kernels.random_shapes import LEAST_FLOPS, MOST_FLOPS, random_workloads
from benchmarks.kernels.workloads import inputs, parsed, reference, relative_error
from cross.expression.reference import evaluate


def test_a_seed_gives_the_same_shapes() -> None:
    first, again = random_workloads(25, 7), random_workloads(25, 7)
    assert first == again
    assert first != random_workloads(25, 8)
    assert {item.of.family for item in first} == {"conv", "depthwise", "transposed", "dense", "batch_matmul"}
    assert all(LEAST_FLOPS <= item.of.flops <= MOST_FLOPS for item in first)
    assert [parsed(item.described()) for item in first] == first


@pytest.mark.parametrize("number", range(10))
def test_expression_numpy_and_reference_agree(number: int) -> None:
    workload = min(random_workloads(50, 1)[number::10], key=lambda item: item.of.flops)
    left, right = inputs(workload)
    expected = reference(workload, left, right)
    output = evaluate(operator(workload), list(operands(workload, left, right)))
    assert relative_error(documented(workload, output), expected) < 1e-6
    for variant in Numpy().open(workload, left, right):
        assert variant.output is not None
        assert relative_error(variant.output(), expected) < 1e-5
