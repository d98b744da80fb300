"""Half floats in memory, float32 in computation: what is rounded, and how the sources load and store."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from boards.board import load
from cross.codegen.c.gpu_code import gpu_program
from cross.expression import Operator, compute, maximum, placeholder, reduce_axis, sum
from cross.expression.reference import evaluate
from cross.expression.rewrites.half_storage import with_half_storage
from cross.loopnest import Programs, verify
from cross.nvrtc import compile_cubin, usage
from cross.schedule import gpu_space
from tests.interpreter.interpreter import interpret

POCL, NANO = load("pocl").target(None), load("jetson-nano").target("gpu")
LENGTH = 64


def product() -> Operator:
    """A matrix product with bias, over 64 terms, and ReLU."""
    a, b = placeholder((32, LENGTH), "A"), placeholder((LENGTH, 32), "B")
    bias, k = placeholder((32,), "bias"), reduce_axis(LENGTH, "k")
    c = compute((32, 32), lambda i, j: sum(a[i, k] * b[k, j], axis=k), name="C")
    output = compute((32, 32), lambda i, j: maximum(c[i, j] + bias[j], 0.0), name="relu")
    return Operator("product", (a, b, bias), output, frozenset({1, 2}))


def inputs_of(operator: Operator, low: float, high: float) -> list[NDArray[Any]]:
    rng = np.random.default_rng(4)
    return [rng.uniform(low, high, tensor.shape).astype(tensor.dtype) for tensor in operator.inputs]


def test_only_what_is_named_is_stored_as_halves() -> None:
    stored = with_half_storage(product(), [0, 1], output=True)
    assert [tensor.dtype for tensor in stored.inputs] == ["float16", "float16", "float32"]
    assert (stored.output.dtype, stored.constants) == ("float16", frozenset({1, 2}))
    assert {stage.dtype for stage in stored.stages} == {"float32", "float16"}
    inside = with_half_storage(product(), [1], output=False)
    assert [tensor.dtype for tensor in inside.inputs] == ["float32", "float16", "float32"]
    assert inside.output.dtype == "float32"
    assert len({product().key, stored.key, inside.key}) == 3


def test_integers_stay_integers() -> None:
    data = placeholder((5,), "X", "int32")
    operator = Operator("same", (data,), compute((5,), lambda i: data[i], name="Y"))
    assert with_half_storage(operator, [0], output=True).key == operator.key


def test_sums_are_in_float32() -> None:
    """64 products of 64 x 64 add up to more than a half float can hold."""
    operator = with_half_storage(product(), [0, 1], output=False)
    nest = Programs(gpu_space(operator, POCL)).nest(gpu_space(operator, POCL).default())
    verify(nest)
    ones = [np.full(tensor.shape, 64, tensor.dtype) for tensor in operator.inputs]
    assert float(np.finfo(np.float16).max) < 64**3 + 64
    np.testing.assert_array_equal(interpret(nest, ones), np.full((32, 32), 64**3 + 64, np.float32))


@pytest.mark.parametrize("target", [POCL, NANO], ids=["opencl", "cuda"])
def test_every_structure_rounds_once(target: Any) -> None:
    operator = with_half_storage(product(), [0, 1, 2], output=True)
    space = gpu_space(operator, target)
    inputs = inputs_of(operator, -1.0, 1.0)
    want = evaluate(operator, inputs)
    for structure in space.structures():
        shared = dict(zip((space.knobs[place].name for place in space.structural), structure, strict=True))
        described = {**space.describe(space.default()), **{name: [value] for name, value in shared.items()}}
        nest = Programs(space).nest(space.parse(described))
        verify(nest)
        got = interpret(nest, inputs)
        assert got.dtype == want.dtype == np.float16
        np.testing.assert_allclose(got.astype(np.float64), want, rtol=2e-3, atol=1e-3)


def test_opencl_loads_and_stores_vectors_without_an_extension() -> None:
    operator = with_half_storage(product(), [0, 1], output=True)
    space = gpu_space(operator, POCL)
    source = gpu_program("k", Programs(space).nest(space.default()), POCL).source
    assert "__global const ushort *restrict A" in source
    assert "__local ushort" in source
    assert re.search(r"vload_half[248]", source) and re.search(r"vstore_half[248]_rte", source)
    assert "cl_khr_fp16" not in source


def test_cuda_loads_and_stores_vectors() -> None:
    """Of 16 bytes, as of four floats; shared memory takes half of what floats take."""
    pytest.importorskip("nvidia.cuda_nvrtc")
    found = []
    for operator in (product(), with_half_storage(product(), [0, 1], output=True)):
        space = gpu_space(operator, NANO)
        (function,) = (program := gpu_program("k", Programs(space).nest(space.default()), NANO)).functions
        needs = usage(compile_cubin(program.source, "sm_53"))[function.name]
        assert needs.shared_bytes == function.shared_bytes
        found.append((function.shared_bytes, program.source))
    assert found[1][0] * 2 == found[0][0]
    assert "store_half8(&A_shared" in found[1][1] and "load_half8(&A[" in found[1][1]
    assert "load_half" not in found[0][1]
