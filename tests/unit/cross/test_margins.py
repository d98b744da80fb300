"""Margins around kept buffers: guards that say nothing else are gone, and every result is the same."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d, depthwise_conv
from cross.expression.families.elementwise import UNARY, apply
from cross.expression.families.pool import pool2d
from cross.expression.families.window import Window
from cross.expression.language.terms import Int, Select, walk
from cross.expression.reference import evaluate
from cross.expression.rewrites.composition import composed
from cross.loopnest import LoopNest, Programs, to_text, verify
from cross.loopnest.bind import bind
from cross.loopnest.margins import with_margins
from cross.loopnest.nodes import Allocate, Scope, statements, stores
from cross.schedule import ScheduleSpace, cpu_space
from cross.schedule.cpu_schedule import BLOCKS, SLIDING
from tests.interpreter.interpreter import interpret
from tests.targets import AVX2_TWO_CORES as TARGET


def pointwise(size: int, channels: int) -> Operator:
    data, weight = placeholder((1, size, size, 5), "X"), placeholder((1, 1, 5, channels), "W")
    output = apply(UNARY["Relu"], conv2d(data, weight, Window()), "relu")
    return Operator("pointwise", (data, weight), output, frozenset({1}))


def depthwise(size: int, channels: int, kernel: int, stride: int = 1) -> Operator:
    data, weight = placeholder((1, size, size, channels), "D"), placeholder((kernel, kernel, channels), "V")
    pads = ((kernel - 1) // 2,) * 2 + (kernel // 2,) * 2  # more behind than before where the kernel is even
    output = depthwise_conv(data, weight, Window((stride, stride), pads))
    return Operator("depthwise", (data, weight), output, frozenset({1}))


def pooling(size: int, channels: int, kind: str) -> Operator:
    data = placeholder((1, size, size, channels), "D")
    return Operator("pool", (data,), pool2d(data, (3, 3), Window((2, 2), (1, 1, 1, 1)), kind))


CHAINS = {
    "3x3": (pointwise(9, 8), depthwise(9, 8, 3)),
    "strided": (pointwise(10, 24), depthwise(10, 24, 3, 2)),
    "more behind than before": (pointwise(9, 7), depthwise(9, 7, 4)),
    "maxima": (pointwise(9, 8), pooling(9, 8, "max")),
    "5x5": (pointwise(7, 8), depthwise(7, 8, 5)),
}
"""Of the last no window slides: it reaches over the ends by more than steps share."""


def space_of(links: Sequence[Operator]) -> ScheduleSpace:
    return cpu_space(composed(links[0], links[1], 0), TARGET)


def bound(space: ScheduleSpace, how: int, count: int, seed: int = 3) -> list[LoopNest]:
    """Programs of a chain in blocks or with a window that slides, before they have margins."""
    names, programs = [knob.name for knob in space.knobs], Programs(space)
    rows = space.sample(np.random.default_rng(seed), 40 * count)
    rows[:, names.index("chain")] = how
    if how == SLIDING:
        rows[:, [names.index("padding"), names.index("tiling")]] = 1, 0
    found = map(space.configuration, rows[space.valid(rows)])
    return [
        bind(programs.parametric(programs.structure(item)), space.fields(item))
        for item in itertools.islice(found, count)
    ]


def guards(nest: LoopNest) -> int:
    return sum(isinstance(term, Select) for _, store in stores(nest.body) for term in walk(store.value))


@pytest.mark.parametrize(("name", "how"), [(name, how) for name in CHAINS for how in (BLOCKS, SLIDING)][:-1])
def test_programs_with_margins_compute_the_same(name: str, how: int) -> None:
    links, rng = CHAINS[name], np.random.default_rng(2)
    inputs = [[rng.standard_normal(item.shape).astype(np.float32) for item in link.inputs] for link in links]
    want = evaluate(links[1], [evaluate(links[0], inputs[0]), *inputs[1][1:]])
    widened = 0
    for nest in bound(space_of(links), how, 8):
        after = with_margins(nest)
        widened += after != nest
        assert guards(after) <= guards(nest)
        verify(after)
        got = interpret(after, [*inputs[0], *inputs[1][1:]])
        np.testing.assert_allclose(got, want, rtol=1e-4, atol=1e-5)
    assert widened


def test_a_ring_has_columns_of_zeros_and_keeps_the_guards_of_its_rows() -> None:
    found = bound(space_of(CHAINS["3x3"]), SLIDING, 40)
    nest = next(nest for nest in found if ", 9, 8] in local" in to_text(nest) and guards(nest) == 1)
    before, after = to_text(nest), to_text(with_margins(nest))
    assert ", 9, 8] in local" in before and ", 11, 8] in local" in after
    assert "relu[0, relu.margin2.0.1, 0, relu.margin2.0.lanes] = 0.0" in after
    assert ", 10, relu.margin2.10.lanes] = 0.0" in after
    assert (before.count(" and "), after.count(" and ")) == (
        3,
        1,
    )  # both ends of a row and a column, of a row


def test_what_holds_the_whole_image_needs_no_guard() -> None:
    """Blocks of channels: an untuned program of a small image on a board with 512 KiB of second cache."""
    data, weight = placeholder((1, 14, 14, 64), "X"), placeholder((1, 1, 64, 384), "W")
    expand = Operator("expand", (data, weight), conv2d(data, weight, Window()), frozenset({1}))
    space = cpu_space(composed(expand, depthwise(14, 384, 3), 0), load("rpi3b").target())
    nest = Programs(space).nest(space.default())
    (kept,) = (
        item.buffer
        for item in statements(nest.body)
        if isinstance(item, Allocate) and item.buffer.scope is Scope.LOCAL
    )
    assert kept.shape[1:3] == (Int(16), Int(16))
    assert guards(nest) == 0


def test_a_buffer_that_would_become_much_larger_stays_as_it_is() -> None:
    """Two columns with three on either side."""
    wide = depthwise(2, 8, 7)
    for nest in bound(space_of((pointwise(2, 8), wide)), BLOCKS, 4):
        assert with_margins(nest) == nest


def test_no_other_program_changes() -> None:
    space = cpu_space(depthwise(9, 8, 3), TARGET)
    programs = Programs(space)
    for item in map(space.configuration, space.sample(np.random.default_rng(1), 6)):
        nest = bind(programs.parametric(programs.structure(item)), space.fields(item))
        assert with_margins(nest) == nest == programs.nest(item)
