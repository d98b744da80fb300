"""Any operator under any configuration for a Mali: numpy reference == interpreter == OpenCL C on PoCL."""

from __future__ import annotations

from typing import Any

import pytest

from boards.board import load
from tests.fuzz.operators import FAMILIES
from tests.fuzz.test_gpu import check, queue

__all__ = ["queue"]  # a fixture

MIDGARD, BIFROST = load("rock960").target("mali"), load("odroid-n2").target("mali")


@pytest.mark.parametrize("family", ["convolution", "matmul", "normalization"])
def test_opencl_equals_interpreter_and_reference(queue: Any, family: str) -> None:
    check(queue, family, 100, MIDGARD)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(101, 103))
def test_every_family_on_pocl(queue: Any, seed: int) -> None:
    for number, family in enumerate(sorted(FAMILIES)):
        check(queue, family, seed, (MIDGARD, BIFROST)[(seed + number) % 2])
