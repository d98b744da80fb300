"""What loops fetch ahead: which, the whole of the next panel once, and nothing of the result changes."""

from __future__ import annotations

import ctypes
import itertools
import math
import re
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.codegen.llvm.objects import compile_ir
from cross.codegen.llvm.prefetch import Ahead, planned
from cross.compile import kernel_of
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import dense
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.link import compile_c, link, native_objects
from cross.loopnest import Programs
from cross.schedule import cpu_space
from tests.fuzz.kernels import Job, call, compile_jobs, run_here
from tests.targets import AVX2, HOST
from tests.unit.cross.test_untuned import A53

KIB = 1 << 10
TARGET = replace(AVX2, l2_bytes=1024 * KIB)
PANEL = ("panel", 64, 96 * KIB)
STEP = ("step", 96, KIB)
TRACE = """
#include "tfb.h"
TFB_EXPORT int64_t count, weights, places[100000];
void fetched(void *at, int32_t kind, int32_t near, int32_t data) { places[count++] = (int64_t)at; }
int32_t layer(void *const *, void *, struct tfb_pool *);
TFB_EXPORT int32_t traced(void *const *buffers, void *workspace, struct tfb_pool *pool) {
    weights = (int64_t)buffers[1];
    return layer(buffers, workspace, pool);
}
"""


def layer(m: int, k: int, n: int) -> Operator:
    data, weight = placeholder((m, k), "data"), placeholder((k, n), "weight")
    return Operator("layer", (data, weight), dense(data, weight, "layer"), frozenset({1}))


def image(size: int, ci: int, co: int) -> Operator:
    data, weight = placeholder((1, size, size, ci), "data"), placeholder((3, 3, ci, co), "weight")
    return Operator("image", (data, weight), conv2d(data, weight, Window(pads=(1, 1, 1, 1))), frozenset({1}))


@pytest.mark.parametrize(
    ("passes", "steps", "var", "lines"),
    [
        ([("row", 2, 0)], [STEP], "step", 8),
        ([("row", 4, 0)], [STEP], "step", 4),
        ([("row", 7, 0)], [STEP], "step", 3),  # of 147 bytes, and what rounding leaves between two
        ([("row", 16, 0)], [STEP], "step", 1),
        ([("y", 3, 0), ("x", 5, 0)], [STEP], "step", 2),
        ([("row", 7, 0)], [("outer", 48, 2 * KIB), ("inner", 16, 128)], "inner", 1),
        ([("row", 8, 0)], [("outer", 48, 2 * KIB), ("inner", 16, 128)], "outer", 4),
        ([("row", 8, 0)], [("outer", 48, 2 * KIB), ("one", 1, KIB), ("inner", 16, 128)], "outer", 4),
        ([("y", 8, 0), ("x", 8, 0)], [("outer", 3, 32 * KIB), ("inner", 32, KIB)], "inner", 1),
    ],
    ids=str,
)
def test_all_passes_together_fetch_the_next_panel(
    passes: list[tuple[str, int, int]], steps: list[tuple[str, int, int]], var: str, lines: int
) -> None:
    ahead = planned([("other", 3, 0), PANEL, *passes, *steps], 2, TARGET)
    assert ahead is not None
    assert (ahead.var, ahead.lines) == (var, lines)
    check_whole_panel(ahead, PANEL, [*passes, *steps])


def check_whole_panel(ahead: Ahead, panel: tuple[str, int, int], loops: list[tuple[str, int, int]]) -> None:
    """Asserts that the loops of a panel fetch the next one, and next to nothing else."""
    running = loops[: [name for name, _, _ in loops].index(ahead.var) + 1]
    step_bytes, lines = dict(ahead.around) | dict(ahead.within), set[int]()
    for here in itertools.product(*(range(extent) for _, extent, _ in running)):
        at = dict(zip([name for name, _, _ in running], here, strict=True)) | {"panel": 5}
        place = sum(step_bytes[name] * at[name] for name, _ in ahead.around)
        place += sum(step_bytes[name] * at[name] for name, _ in ahead.within) // ahead.steps
        lines |= {(place + ahead.distance + line * ahead.part) // 64 for line in range(ahead.lines)}
    wanted = set(range(6 * panel[2] // 64, 7 * panel[2] // 64))
    assert wanted <= lines
    assert len(lines - wanted) <= 16


def test_a_part_of_few_lines_is_fetched_once_a_pass() -> None:
    small = ("panel", 64, 6 * KIB)
    rows, steps = ("row", 40, 0), ("step", 96, 64)
    ahead = planned([small, rows, steps], 2, TARGET)
    assert ahead == Ahead("row", 6 * KIB, (("panel", 6 * KIB),), (("row", 154 * 40),), 120, 3)
    check_whole_panel(ahead, small, [rows, steps])
    # Loops that run as one have nothing between them: the innermost fetches.
    split = [small, rows, ("outer", 4, 24 * 64), ("inner", 24, 64)]
    assert planned(split, 2, TARGET) == ahead
    assert planned([small, rows, ("one", 1, 64), steps], 3, TARGET) == ahead
    inner = planned(split, 3, TARGET)
    assert inner is not None
    assert (inner.var, inner.within[1:], inner.lines) == ("outer", (("outer", 24 * 64),), 1)


@pytest.mark.parametrize(
    "loops",
    [
        [PANEL, STEP],  # everything is read once
        [("row", 4, 0), PANEL, STEP],  # and all of it again
        [PANEL, STEP, ("row", 4, 0)],  # nothing moves in the innermost loop
        [PANEL, ("row", 200, 0), STEP],
        [("panel", 64, 1000 * KIB), ("row", 4, 0), STEP],
        [PANEL, ("row", 2, 0), ("step", 8, 12 * KIB)],
    ],
    ids=str,
)
def test_nothing_is_fetched_where_it_cannot_help(loops: list[tuple[str, int, int]]) -> None:
    assert planned(loops, 0, TARGET) is None


def text_of(operator: Operator, target: Target = AVX2, **knobs: list[int]) -> str:
    space = cpu_space(operator, target)
    chosen = space.parse(space.describe(space.default()) | knobs)
    return llvm_module("layer", Programs(space).nest(chosen), target)


def test_only_constants_larger_than_the_first_cache_are_fetched() -> None:
    operator = layer(64, 256, 1024)
    assert "llvm.prefetch" in text_of(operator)
    assert "llvm.prefetch" not in text_of(layer(64, 16, 320))  # 20 KiB
    assert "llvm.prefetch" not in text_of(operator, A53)  # loads have an order of their own there
    assert "llvm.prefetch" not in text_of(replace(operator, constants=frozenset()))


@pytest.mark.parametrize(("inner", "loop"), [(16, 0), (96, 1)])
def test_the_innermost_loop_fetches_nothing(inner: int, loop: int) -> None:
    """Few weights are fetched once a tile, more of them in the loop around the innermost one."""
    text = text_of(layer(35, inner, 650), unroll=[16])
    places = [
        part.count("call void @llvm.prefetch") for part in re.split(r"^loop\d+:$", text, flags=re.M)[1:]
    ]
    assert [place for place, count in enumerate(places) if count] == [loop]
    assert len(places) == 3


def test_a_kernel_fetches_all_panels_but_the_first_and_computes_the_same(tmp_path: Path) -> None:
    """The instruction is replaced by a function that writes its address down."""
    operator, target = layer(35, 96, 650), replace(HOST, l2_bytes=64 * KIB)
    space = cpu_space(operator, target)
    nest = Programs(space).nest(space.default())
    text = llvm_module("layer", nest, target)
    assert "@llvm.prefetch" in text
    traced = compile_ir(text.replace("@llvm.prefetch.p0", "@fetched"), target)
    path = tmp_path / "traced.so"
    path.write_bytes(link([traced, compile_c(TRACE, target)], target, extra_objects=native_objects(target)))
    library = ctypes.CDLL(str(path))
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(item.shape).astype(item.dtype) for item in operator.inputs]
    found = call(library, kernel_of("traced", nest), inputs)
    np.testing.assert_allclose(found, evaluate(operator, inputs), rtol=1e-4, atol=1e-4)
    count, weights = (ctypes.c_int64.in_dll(library, name).value for name in ("count", "weights"))
    places = (ctypes.c_int64 * 100_000).in_dll(library, "places")[:count]
    lines = {(place - weights) // 64 for place in places}
    packing = nest.arguments[1].packing
    assert packing is not None
    size = math.prod(packing.packed_shape) * 4 // 64
    panels = packing.loops[0].extent
    assert set(range(size // panels, size)) <= lines
    assert len(lines) <= size + 16


@pytest.mark.parametrize("operator", [layer(35, 96, 650), image(8, 20, 48)], ids=lambda item: item.name)
def test_every_schedule_computes_the_same(operator: Operator, tmp_path: Path) -> None:
    target = replace(HOST, l1d_bytes=8 * KIB, l2_bytes=16 * KIB)
    space = cpu_space(operator, target, winograd=False)
    rng = np.random.default_rng(0)
    inputs = [rng.standard_normal(item.shape).astype(item.dtype) for item in operator.inputs]
    rows = space.sample(rng, 12)
    jobs = [Job(Programs(space).nest(space.configuration(row)), inputs) for row in rows]
    assert sum("@llvm.prefetch" in llvm_module("layer", job.nest, target) for job in jobs) >= 3
    for found in run_here(compile_jobs(jobs, target), jobs, tmp_path, threads=2):
        np.testing.assert_allclose(found, evaluate(operator, inputs), rtol=1e-4, atol=1e-4)
