"""Mali's OpenCL sources under the front ends of PoCL and clang."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.autotvm.mali import equal, space_of
from benchmarks.autotvm.rows import rows
from benchmarks.front_ends import FrontEnd, FrontEndMissing, accepted, clang, pocl
from benchmarks.kernels.expressions import operator
from benchmarks.kernels.workloads import chosen
from boards.board import load
from cross.loopnest import LoopNest, Programs
from cross.schedule import gpu_space

MALI = load("hikey970").target("mali")


def started(name: str, scratch: str) -> FrontEnd:
    try:
        return clang() if name == "clang" else pocl(scratch)
    except FrontEndMissing as missing:
        pytest.skip(str(missing))


def untuned(name: str) -> LoopNest:
    (workload,) = chosen([name])
    space = gpu_space(operator(workload), MALI)
    return Programs(space).nest(space.default())


def autotvms(place: int) -> LoopNest:
    row = rows()[place]
    space = space_of(row, MALI)
    return Programs(space).nest(space.parse(equal(row, space).configuration))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pocl", "clang"])
def test_a_source_that_is_no_opencl_is_refused_with_its_text(name: str, tmp_path: Path) -> None:
    refusal = started(name, str(tmp_path)).refusal
    assert not refusal("kernel void k(global float *x) { vstore4(exp(vload4(0, x)), 0, x); }")
    assert "absent" in refusal("kernel void k(global float *x) { x[0] = absent(1); }")


@pytest.mark.slow
def test_untuned_kernels_and_autotvms_are_accepted(tmp_path: Path) -> None:
    for name in ("pocl", "clang"):
        started(name, str(tmp_path))
    nests = [(name, untuned(name)) for name in ("C1", "C6", "D3", "M1024", "BERT.qk")]
    nests += [(f"AutoTVM {place}", autotvms(place)) for place in (1, 6, 8, 13, 20)]
    verdicts = accepted(nests, MALI, str(tmp_path))
    assert [line.rpartition(" accepts ")[2] for line in verdicts] == ["10 of 10", "10 of 10"], verdicts
