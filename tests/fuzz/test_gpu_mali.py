"""Any operator under any configuration for a Mali: numpy reference == interpreter == OpenCL C on PoCL."""

from __future__ import annotations

import pytest

from boards.board import load
from tests.fuzz.operators import FAMILIES
from tests.fuzz.pocl import Pocl, pocl
from tests.fuzz.test_gpu import compare, random_case

__all__ = ["pocl"]  # a fixture

MIDGARD, BIFROST = load("rock960").target("mali"), load("odroid-n2").target("mali")


@pytest.mark.slow
def test_opencl_equals_interpreter_and_reference(pocl: Pocl) -> None:
    target = pocl.narrowed(MIDGARD)
    compare(pocl, [random_case(family, 100, target) for family in ("convolution", "matmul", "normalization")])


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 103))
def test_every_family_on_pocl(pocl: Pocl, seed: int) -> None:
    targets = [pocl.narrowed(target) for target in (MIDGARD, BIFROST)]
    families = enumerate(sorted(FAMILIES))
    compare(pocl, [random_case(family, seed, targets[(seed + number) % 2]) for number, family in families])
