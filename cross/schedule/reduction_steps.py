"""How many steps of a reduction the untuned program has in its innermost loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

from boards.target import Target
from cross.schedule.core import FEW_REGISTERS, PAIRED_STEPS, WRITTEN_OUT, Core
from cross.schedule.in_order_tiles import LANE_STEPS, Overlap, lane_steps
from cross.schedule.tiles import divisors

OUT_OF_ORDER_STEPS = 8  # of a loop written out at most: the loop's own instructions weigh little then
WHOLE_LOOP_CYCLES = 12.0
"""Cycles of a step's multiply-adds from which on AVX-512 has all of the last reduction loop innermost, a step
at a time: the loop's own instructions run beside them, and loops over a window begin it seldom. Measured on
one core of a Zen 4 with steps of 14 cycles, in place of 8 steps written out: 3x3 convolutions with stride 2
of 512 channels 1.3 times as fast, of 256 1.05, pointwise ones of 1024 1.04. With AVX2, whose steps take 6, a
MobileNet-v2 would be 0.97 times as fast, others 1.00."""
USUALLY_WRITTEN_OUT = 16  # statements of a loop body in untuned programs of cores out of order
SHORT_STEPS_WRITTEN_OUT = 64
"""The same of sums of floats with few registers: a loop has four instructions of its own. On one core of an
Emerald Rapids Xeon with AVX2, whose other thread somebody else had now and then, BERT was 1.11 times as fast
as with 16, a ViT and MobileNet-v1 1.08, v2 1.04, ResNet-18 0.99. Tiles of more than 8 rows stay loops: with
several steps of those LLVM spills sums."""
SSE_BYTES = 16  # of a vector
PAIRED_WRITTEN_OUT = 224  # where PAIRED_STEPS share 16 bits


def written_out(core: Core) -> int:
    """Statements of a loop body at most."""
    return PAIRED_WRITTEN_OUT if core.in_order and core.shared_steps == PAIRED_STEPS else WRITTEN_OUT


def usually_written_out(target: Target, *, plain: bool) -> int:
    """Statements of a loop body in the untuned program on cores out of order. `plain`: it sums whole vectors
    of floats, with no guards for them.

    LLVM spills sums of several steps in parts of vectors, in tiles at the borders of images, and with SSE,
    whose products go to a register before they are added.
    """
    few = target.vector_registers <= FEW_REGISTERS and target.vector_bytes > SSE_BYTES
    return SHORT_STEPS_WRITTEN_OUT if plain and few else USUALLY_WRITTEN_OUT


def has_long_steps(core: Core, step_cycles: float) -> bool:
    """Whether a step of a reduction is worth an iteration of a loop of its own; see WHOLE_LOOP_CYCLES."""
    return core.masks and step_cycles >= WHOLE_LOOP_CYCLES


def inner_reduction(
    extents: Sequence[int],
    core: Core,
    counts: Sequence[int],
    step_cycles: float,
    overlap: Overlap | None = None,
    *,
    multiplies: bool = False,
) -> list[int]:
    """Wanted inner extents of the reduction loops, in loop order; the space takes the closest divisors.

    `counts`: sizes of the register tile, the last in vectors; each row of these is a statement of every step
    that is written out. `step_cycles`: of the multiply-adds of a step. `overlap`: of a window, see
    `overlap_of`. `multiplies`: whether a step multiplies operands.

    Out of order, on x86-64 with several vectors in a cache line, products over a window have all channels
    innermost: of eight channels of each tap, taps guard what they read again and again, and lines of many
    channels, which lie in few sets of the first cache, are lost before their next eight are read. Measured
    on a Zen 3 in place of eight, 24 convolutions with strides or windows of one row, 64 to 512 channels: with
    AVX2 0.9 to 1.5 times as fast (once 0.74), 1.06 in the mean, with SSE 0.93 to 1.34.
    """
    if not core.in_order or not extents:
        inner = [max(step for step in divisors(extent) if step <= OUT_OF_ORDER_STEPS) for extent in extents]
        whole = multiplies and len(extents) > 1 and core.line_vectors > 0
        whole = whole or has_long_steps(core, step_cycles)
        return [*inner[:-1], extents[-1]] if extents and whole else inner
    rows = math.prod(counts[:-1])
    # Long straight bodies are what the ordering of loads needs: a row of the window, four channels a step.
    alone = len(extents) == 1
    inner = [1] * (len(extents) - 2) + ([] if alone else [extents[-2]])
    if core.shared_steps:
        units = extents[-1] / core.shared_steps
        long = alone and (units >= 32 or units == 16)  # of others, two rounds at least; these need no loop
        steps = (16 if long else 8 if alone else 4) * core.shared_steps
        while rows * math.prod(inner) * steps > written_out(core) and steps > core.shared_steps:
            steps //= 2
        return [*inner, steps]
    if overlap is None and not alone:  # no operand is repeated, as in a depthwise convolution
        return [*inner, LANE_STEPS]
    window, steps = lane_steps(core, counts, overlap)
    while steps > LANE_STEPS and rows * steps > written_out(core):
        steps //= 2
    return [*inner[:-1], window, steps] if inner else [steps]
