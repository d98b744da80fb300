"""Bridges as real operators: what the main stage of another one computes, over other loops."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.harness.operators import Convolution, Product
from boards.board import load
from cross.expression.families.elementwise import relu
from cross.expression.language.operator import Operator
from cross.expression.language.tensor import compute, placeholder
from cross.expression.reference import evaluate
from cross.schedule.choose import space_of
from toolkit.explore.neighbourhood.loops import IrregularLoops, major_loops
from toolkit.reuse.plan.bridge_operator import bridge_operator, bridge_operators

STRIDED = Convolution("conv2d", (9, 9), 6, 8, (3, 3), (2, 2), (1, 1))
LAYERS = [
    STRIDED,
    Convolution("conv1d", (16,), 4, 8, (5,), (1,), (2,)),
    Convolution("conv3d", (4, 6, 6), 4, 8, (3, 3, 3), (1, 2, 2), (1, 1, 1)),
    Convolution("depthwise", (8, 8), 8, 8, (3, 3), (2, 2), (1, 1)),
    Convolution("grouped", (8, 8), 8, 16, (3, 3), (1, 1), (1, 1), groups=2),
    Convolution("transposed", (4, 4), 8, 4, (4, 4), (2, 2), (1, 1)),
    Product(2, 8, 6, 12),
]


@pytest.mark.parametrize("layer", LAYERS, ids=lambda layer: layer.form)
def test_a_bridge_has_the_loops_that_are_asked_for_and_a_space(layer: Convolution | Product) -> None:
    like = layer.operator()
    extents = tuple(max(1, extent // 2) for extent in major_loops(like, "").extents)
    bridge = bridge_operator(like, extents)
    loops = major_loops(bridge, bridge.name)
    assert loops.extents == extents
    assert len(loops.inputs) == 2
    assert bridge.constants == like.constants
    assert bridge.name == like.name
    known, found = (
        {knob.name.partition(".")[2] for knob in space_of(item, load("host").target(), winograd=False).knobs}
        for item in (like, bridge)
    )
    assert {name for name in known if "pad" not in name} <= found | known


def test_a_bridge_of_a_convolution_has_stride_1_and_no_padding() -> None:
    bridge = bridge_operator(STRIDED.operator(), (1, 4, 3, 5, 2, 3, 6))
    data, weight = bridge.inputs
    assert (data.shape, weight.shape) == ((1, 5, 5, 6), (2, 3, 6, 5))
    rng = np.random.default_rng(0)
    values = [rng.standard_normal(item.shape).astype(np.float32) for item in bridge.inputs]
    windows = np.lib.stride_tricks.sliding_window_view(values[0], (2, 3), axis=(1, 2))
    expected = np.einsum("byxiuv,uvio->byxo", windows, values[1])
    np.testing.assert_allclose(evaluate(bridge, values), expected, rtol=1e-4, atol=1e-5)


def test_what_follows_the_main_stage_is_left_out() -> None:
    plain = STRIDED.operator()
    output = compute(plain.output.shape, lambda b, y, x, c: relu(plain.output[b, y, x, c]), name="R")
    followed = Operator("conv2d", plain.inputs, output, plain.constants)
    extents = (1, 4, 3, 5, 2, 3, 6)
    assert bridge_operator(followed, extents).key == bridge_operator(plain, extents).key


def test_operators_without_a_reduction_have_no_bridges() -> None:
    data = placeholder((4, 8), "X")
    plain = Operator("relu", (data,), compute((4, 8), lambda i, j: relu(data[i, j]), name="Y"))
    with pytest.raises(IrregularLoops, match="no reduction"):
        bridge_operator(plain, (2, 4))
    wide = placeholder((8, 4), "X")
    others = [plain, Operator("relu", (wide,), compute((8, 4), lambda i, j: relu(wide[i, j]), name="Y"))]
    assert bridge_operators([(item, major_loops(item, item.name)) for item in others], "one-hop") == []


def test_bridges_of_several_kinds() -> None:
    layers = [Product(1, 8, 32, 8), Product(1, 32, 8, 8), Product(1, 8, 8, 32), STRIDED]
    operators = [layer.operator() for layer in layers]
    pairs = [(item, major_loops(item, item.name)) for item in operators]
    assert bridge_operators(pairs, "none") == []
    found = bridge_operators(pairs, "one-hop")
    assert [bridge.loops.extents for bridge in found] == [(1, 8, 8, 8)]
    assert found[0].name == "bridge batch_matmul 1x8x8x8"
