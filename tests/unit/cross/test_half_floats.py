"""Half floats on a CPU that converts none itself: the artifact's own code rounds as numpy does."""

from __future__ import annotations

import platform
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from boards.board import load
from cross.expression.families.elementwise import apply
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import placeholder
from cross.expression.language.terms import cast
from cross.loopnest import Programs
from cross.schedule import space_of
from tests.fuzz.kernels import Job, compile_jobs, run_here


@pytest.mark.skipif(platform.machine() != "x86_64", reason="other CPUs convert half floats")
def test_conversions_are_numpys(tmp_path: Path) -> None:
    """All half floats both ways; floats, and doubles, half a place around them."""
    halves = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    exact = halves.astype(np.float32)
    finite = exact[np.abs(exact) < 65000]
    middle = (finite + np.nextafter(finite.astype(np.float16), np.float16(np.inf)).astype(np.float32)) / 2
    near = [np.nextafter(middle, np.float32(way)) for way in (-np.inf, np.inf)]
    more = np.array([65519.9, 65520.0, 1e30, -1e-30], np.float32)
    floats = np.concatenate([exact, middle, *near, more])
    # doubles whose nearest float is the middle between two halves, but which lie on one side of it
    beside = [np.nextafter(middle.astype(float), way) for way in (-np.inf, np.inf)]
    ends = [65519.999, 65520, 1e300, -1e300, 3.5e38, -1e-46, 1e-320, -0.0, np.inf, np.nan]
    doubles = np.concatenate([finite.astype(float), middle.astype(float), *beside, ends])
    target, jobs = load("host:x86-64-v2").target(None), []
    for array, dtype in ((halves, "float32"), (floats, "float16"), (doubles, "float16")):
        data = placeholder(array.shape, "x", str(array.dtype))
        output = apply(partial(cast, dtype), data, "y")
        programs = Programs(space_of(Operator("cast", (data,), output), target))
        jobs.append(Job(programs.nest(programs.space.default()), [array]))
    with np.errstate(over="ignore"):
        wanted = [exact, floats.astype(np.float16), doubles.astype(np.float16)]
    for got, want in zip(run_here(compile_jobs(jobs, target), jobs, tmp_path), wanted, strict=True):
        np.testing.assert_array_equal(got, want)
