"""Large results are stored past the caches: which, by whole lines alone, and with a fence behind them."""

from __future__ import annotations

from pathlib import Path

import msgspec
import numpy as np
import pytest

from boards.target import Target
from cross.codegen.llvm.module import llvm_module
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.elementwise import apply
from cross.expression.families.window import Window
from cross.expression.reference import evaluate
from cross.loopnest import Programs, lower
from cross.loopnest.bind import bind
from cross.schedule import cpu_space
from cross.schedule.winograd.cpu import winograd_spaces
from tests.fuzz.kernels import Job, compile_jobs, run_here
from tests.targets import AVX2, HOST

WIDE = msgspec.structs.replace(AVX2, cpu="x86-64-v4", vector_bytes=64, vector_registers=32)
STREAMED, FENCE = "!nontemporal", "call void @llvm.x86.sse.sfence()"


def image(size: int, channels: int, taps: int = 3) -> Operator:
    data, weight = placeholder((1, size, size, 16), "X"), placeholder((taps, taps, 16, channels), "W")
    output = conv2d(data, weight, Window(pads=(taps // 2,) * 4))
    return Operator("conv", (data, weight), output, frozenset({1}))


def doubled(elements: int) -> Operator:
    data = placeholder((elements // 64, 64), "X")
    return Operator("twice", (data,), apply(lambda value: value * 2.0, data, "twice"))


def code(operator: Operator, target: Target, last_cache_bytes: int) -> str:
    target = msgspec.structs.replace(target, l3_bytes=last_cache_bytes)
    space = cpu_space(operator, target, winograd=False)
    return llvm_module("kernel", Programs(space).nest(space.default()), target)


def test_a_result_of_a_quarter_of_the_last_cache_is_large() -> None:
    operator = doubled(1 << 16)
    text = code(operator, WIDE, 4 << 18)
    assert STREAMED in text and text.count(FENCE) == 1
    results = [line for line in text.splitlines() if " store <16 x float>" in line]
    assert results and all(STREAMED in line for line in results)
    for target, last_cache_bytes in ((WIDE, (4 << 18) + 4), (WIDE, 0), (AVX2, 4 << 18)):
        text = code(operator, target, last_cache_bytes)
        assert STREAMED not in text and FENCE not in text


def test_lines_that_a_vector_does_not_fill_are_stored_as_others() -> None:
    """Of 17 channels no vector is sure to begin where a line does; of 144 each is, also the last, which
    overlaps the one before it."""
    assert STREAMED not in code(image(7, 17, 1), WIDE, 64)
    text = code(image(8, 144, 1), WIDE, 64)
    results = [line for line in text.splitlines() if " store <16 x float>" in line]
    assert results and all(STREAMED in line and "align 64," in line for line in results)


def test_what_is_read_again_stays_in_the_caches() -> None:
    """Without a schedule, sums are added up in the result itself."""
    target = msgspec.structs.replace(WIDE, l3_bytes=64)
    text = llvm_module("kernel", bind(lower(image(8, 144), ()), {}), target)
    assert STREAMED not in text and FENCE not in text


@pytest.mark.parametrize("threads", [1, 2])
def test_results_are_the_same(threads: int, tmp_path: Path) -> None:
    target = msgspec.structs.replace(HOST, l3_bytes=64)
    for operator in (image(9, 144), image(12, 48), image(7, 20), doubled(1 << 12)):
        rng = np.random.default_rng(3)
        inputs = [rng.uniform(-1.0, 1.0, item.shape).astype(np.float32) for item in operator.inputs]
        spaces = [cpu_space(operator, target, winograd=False), *winograd_spaces(operator, target).values()]
        jobs = [Job(Programs(space).nest(space.default()), inputs) for space in spaces]
        want = evaluate(operator, inputs)
        for got in run_here(compile_jobs(jobs, target), jobs, tmp_path, threads):
            np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-4)
