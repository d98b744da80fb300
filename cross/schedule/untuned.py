"""The untuned program: register tiles chosen by arithmetic, without a measurement.

The figure of merit of a register tile is the share of a core's peak that its inner loop can reach: FMA
units, load ports and the latency of dependent FMAs each bound the cycles of a step; empty lanes and
overlapping last tiles waste part of them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

from cross.expression.terms import Axis
from cross.schedule.tiles import WASTE, factors, vector_count, waste

FMA_PER_CYCLE = 2  # of the cores at hand; loads per cycle are as many
FMA_LATENCY_CYCLES = 4
WIDEST_TILE = 16
OPERAND_TRAFFIC = 0.05  # price of reloading the vector operands: breaks ties towards larger tiles


Operands = Sequence[tuple[int, ...]]
"""For every operand, the positions of the axes that it varies along; the vector axis is the last."""


def best_register_tile(
    axes: Sequence[Axis], lanes: int, registers: int, vectors: Sequence[int], operands: Operands
) -> tuple[int, ...]:
    """Sizes of the innermost loops, in axis order, with the largest merit.

    Args:
        axes: the space axes with more than one element, the vector axis last.
        lanes: elements of a vector register.
        registers: vector registers.
        vectors: the sizes that the vector loop may have.
        operands: what the innermost statement reads.
    """
    tiled = len(axes[-3:-1])
    fixed = (1,) * (len(axes) - 1 - tiled)
    choices = [_sensible(factors(axis.extent, WIDEST_TILE), axis) for axis in axes[-3:-1]]
    best, best_merit = (1,) * len(axes), 0.0
    for vector in _sensible(vectors, axes[-1]):
        count = vector_count(vector, lanes)
        for sizes in itertools.product(*choices):
            counts = (*fixed, *sizes, count)
            if registers_used(counts, operands) > registers:
                continue
            merit = tile_merit(counts, operands) * vector / (count * lanes)
            for axis, size in zip(axes, (*fixed, *sizes, vector), strict=True):
                merit /= waste(axis.extent, size)
            if merit > best_merit:
                best, best_merit = (*fixed, *sizes, vector), merit
    return best


def _sensible(sizes: Sequence[int], axis: Axis) -> list[int]:
    """The sizes that a space offers: those that cover the axis with little overlap."""
    return [size for size in sizes if waste(axis.extent, size) <= WASTE]


def operand_counts(counts: Sequence[Any], operands: Operands) -> tuple[Any, Any]:
    """Vectors and broadcasts that one step reads for loop sizes, the last in vectors; numbers or arrays."""
    vectors = broadcasts = 0 * counts[-1]
    for positions in operands:
        loads = 1
        for position in positions:
            loads = loads * counts[position]
        if len(counts) - 1 in positions:
            vectors = vectors + loads
        else:
            broadcasts = broadcasts + loads
    return vectors, broadcasts


def registers_used(counts: Sequence[Any], operands: Operands) -> Any:
    """Vector registers of a step: accumulators, vector operands, and one broadcast."""
    return math.prod(counts) + operand_counts(counts, operands)[0] + 1


def tile_merit(counts: Sequence[int], operands: Operands) -> float:
    """Share of the FMA peak that a step with full lanes can reach."""
    accumulators = math.prod(counts)
    vectors, broadcasts = operand_counts(counts, operands)
    loads = (vectors + broadcasts) / FMA_PER_CYCLE
    cycles = max(accumulators / FMA_PER_CYCLE, loads, FMA_LATENCY_CYCLES)
    return float(accumulators / FMA_PER_CYCLE / cycles * (1.0 - OPERAND_TRAFFIC * vectors / accumulators))
