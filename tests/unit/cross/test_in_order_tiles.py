"""What tiles cost by their merit, against the issue model of a Cortex-A53 over the code of their loops."""

from __future__ import annotations

import pytest

from boards.board import load
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.window import Window
from cross.inspection.cpu_loops import inspect
from cross.loopnest import Programs
from cross.schedule import cpu_space
from cross.schedule.core import core_of
from cross.schedule.in_order_tiles import Overlap, lane_steps, tile_merit

TARGET = load("rpi3b").target(None)
CORE = core_of(TARGET, "float32")
PRODUCTS = ((1,), (0,))  # rows of pixels, and vectors of channels
TILES = [
    (rows, vectors)
    for vectors in range(1, 5)
    for rows in range(3, 15)
    if 9 <= rows * vectors <= 21 and rows * vectors + rows + vectors < CORE.registers
]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", [1, 3])
def test_the_merit_of_tiles_is_that_of_their_loops_in_the_issue_model(kernel: int) -> None:
    """Within 8 %, where registers last; of 64 channels."""
    overlap = Overlap(kernel, ((0, 1),), 64) if kernel > 1 else None
    ratios = {}
    for rows, vectors in TILES:
        size = 4 * rows + kernel - 1
        data, weight = (
            placeholder((1, size, size, 64), "X"),
            placeholder((kernel, kernel, 64, 12 * vectors), "W"),
        )
        output = conv2d(data, weight, Window())
        space = cpu_space(Operator("conv", (data, weight), output, frozenset({1})), TARGET, winograd=False)
        described = space.describe(space.default())
        window, steps = lane_steps(CORE, (rows, vectors), overlap)
        tile = {"conv.y": 1, "conv.x": rows, "conv.c": 4 * vectors}
        chosen = {name: [1] * (len(described[name]) - 1) + [inner] for name, inner in tile.items()}
        chosen |= {"conv.acc.kc": [steps]} | ({"conv.acc.kw": [window]} if kernel > 1 else {})
        nest = Programs(space).nest(space.parse(described | chosen))
        hot = inspect("conv", nest, TARGET).hot
        assert hot is not None and (hot.fma, hot.spills) == (rows * vectors * window * steps, 0)
        reached = hot.fma / hot.predictions[0].cycles
        ratios[rows, vectors] = tile_merit((rows, vectors), PRODUCTS, CORE, overlap) / reached
    assert all(0.92 < ratio < 1.08 for ratio in ratios.values()), ratios
