"""Products of bytes on GPUs: the functions that OpenCL and CUDA have for them, and what those compute."""

from __future__ import annotations

import numpy as np
import pytest

from boards.board import load
from boards.target import Target
from cross.codegen.c.gpu_code import gpu_program
from cross.codegen.llvm.dot_products import product_of
from cross.loopnest import Programs, verify
from cross.nvrtc import compile_cubin
from cross.schedule.choose import space_of
from tests.fuzz.operators import random_operator
from tests.fuzz.pocl import Pocl, pocl
from tests.fuzz.test_gpu import case_of, compare
from tests.unit.cross.test_byte_products import convolution

__all__ = ["pocl"]  # a fixture
MALI, JETSON, OLD = (load(board).target(name) for board, name in (
    ("rock-5b", "mali"), ("jetson-orin-nano", "gpu"), ("jetson-nano", "gpu")))  # fmt: skip


def source(target: Target, seed: int | None = None) -> str:
    """A convolution's kernel, or a drawn one of a drawn operator."""
    rng = np.random.default_rng([21, seed or 0])
    operator = convolution("sdot4", 32, 3) if seed is None else random_operator(rng, "bytes in words")
    space = space_of(operator, target)
    rows = space.configuration(space.sample(rng, 1)[0]) if seed is not None else space.default()
    nest = Programs(space).nest(rows)
    verify(nest)
    return gpu_program("products", nest, target).source


def test_devices_with_an_instruction_use_it() -> None:
    assert all(product_of(target, 128) == "sdot4" for target in (MALI, JETSON, OLD))
    mali, jetson = source(MALI), source(JETSON)
    assert "return arm_dot(as_char4(x), as_char4(w));" in mali
    assert "return dot_4x8packed_ss_int(as_uint(x), as_uint(w));" in mali
    assert "= sdot4_" in mali or "+ sdot4_" in mali, "whole vectors of weights"
    assert "return __dp4a(x, w, 0);" in jetson and ">> 24" not in mali + jetson


@pytest.mark.parametrize("target", [JETSON, OLD], ids=["sm_87", "sm_53"])
def test_random_products_compile_for_cuda(target: Target) -> None:
    assert target.gpu is not None
    for seed in range(2):
        assert compile_cubin(source(target, seed), target.gpu.compute_capability)[:4] == b"\x7fELF"


@pytest.mark.slow
def test_random_products_on_pocl(pocl: Pocl) -> None:
    target = pocl.narrowed(load("pocl").target(None))
    cases = []
    for seed in range(6):
        rng = np.random.default_rng([22, seed])
        cases.append(
            case_of(space_of(random_operator(rng, "bytes in words"), target), rng, f"products {seed}")
        )
    compare(pocl, cases, 0.0)
