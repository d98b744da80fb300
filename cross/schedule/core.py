"""What matters of a CPU's core to tiles of registers, and which tiles fit its registers."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import numpy as np

from boards.target import IN_ORDER_CPUS, Target
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.expression.language.operations import EIGHTS, SHARED_STEPS
from cross.schedule.tiles import WASTE, factors, vector_count, waste

WRITTEN_OUT = 192  # statements of a loop body at most
PRODUCT_LATENCY_CYCLES = 4  # between a product of bytes and what adds pairs of it: as many sums of 16 bits
PAIRED_STEPS = 4  # that share 16 bits where tiles may be multiplied column by column
FEW_REGISTERS = 16
"""Of x86-64 without AVX-512: they hold the sums of steps with 8 to 14 multiply-adds, beside which loads and a
loop's own instructions count."""
WIDEST_TILE = 16  # rows of a register tile; more do not fit 32 registers with two vectors a row
_PRODUCT_REGISTERS = {"wide_dot2": 1, "narrow_dot4": 2}

Operands = Sequence[tuple[int, ...]]
"""For every operand, the positions of the axes that it varies along; the vector axis is the last."""


class Core(msgspec.Struct, frozen=True):
    """What matters of a core: elements of a vector register, vector registers, its kind; whether a mask makes
    a vector of any rest; how many steps of a sum share an addition; registers that a vector operand takes,
    and that a product takes before it is added; rows that one instruction multiplies; vectors in a cache line
    where it holds several and instructions take an operand from memory (0: elsewhere)."""

    lanes: int
    registers: int
    in_order: bool
    masks: bool = False
    shared_steps: int = 0  # of products of pairs of bytes; 0: of others
    operand_registers: int = 1
    product_registers: int = 0
    rows_together: int = 1
    line_vectors: int = 0

    def vectors(self, extent: int) -> int:
        """Vector registers that so many elements take."""
        return vector_count(extent, self.lanes, self.masks)

    def spare(self, extent: int, repeats: bool) -> int:
        """Registers to leave free beside so many elements, which an operand `repeats` to fill.

        LLVM moves loads under a mask further up than others; a shuffle has its pattern in a register.
        """
        masked = self.masks and (extent % self.lanes).bit_count() > 1
        return 2 * masked + self.vectors(extent) * repeats


def core_of(target: Target, dtype: str, byte_products: frozenset[str] = frozenset()) -> Core:
    """The core of a CPU target, for sums of a dtype, of these products of bytes if of any.

    On x86-64 with 16 vector registers and no VNNI (boards/probe.py names it where a host has it), words of
    four bytes become two vectors of 16-bit numbers, or products of numbers that are widened or narrow have a
    register of their own, and the latter one for ones (codegen/llvm/dot_products.py).
    """
    lanes = target.vector_lanes(ITEM_BYTES[dtype])
    masks = target.masks_lanes and dtype in FLOATS
    shared_steps = max((SHARED_STEPS.get(function, 0) for function in byte_products), default=0)
    widened = "dot4" in byte_products and target.vector_registers == 16 and "+avxvnni" not in target.features
    in_order = target.cpu in IN_ORDER_CPUS
    apart = max((_PRODUCT_REGISTERS.get(function, 0) for function in byte_products), default=0)
    rows = 2 if byte_products & EIGHTS else 1  # and words of eight bytes, a register for every two columns
    operand = 2 if widened or rows == 2 else 1
    line = target.cache_line_bytes // target.vector_bytes
    if line < 2 or dtype not in FLOATS or not target.triple.startswith("x86_64"):
        line = 0
    return Core(lanes, target.vector_registers, in_order, masks, shared_steps, operand, apart, rows, line)


def register_tiles(
    extents: Sequence[int], core: Core, vectors: Sequence[int], operands: Operands, repeats: bool = False
) -> Iterator[tuple[tuple[int, ...], int]]:
    """Sizes of the innermost loops, in axis order, that stay in registers; vectors that the last one takes.

    At most the last three of the axes, the vector axis last, have a size other than 1.
    """
    fixed = (1,) * (len(extents) - 1 - len(extents[-3:-1]))
    choices = [_sensible(factors(extent, WIDEST_TILE), extent) for extent in extents[-3:-1]]
    for vector in _sensible(vectors, extents[-1]):
        count, spare = core.vectors(vector), 0 if core.in_order else core.spare(vector, repeats)
        for sizes in itertools.product(*choices):
            if fits_registers((*fixed, *sizes, count), operands, core, spare):
                yield (*fixed, *sizes, vector), count


def fits_registers(counts: Sequence[Any], operands: Operands, core: Core, spare: Any = 0) -> Any:
    """Whether the accumulators and what feeds them stay in registers; for numbers or arrays.

    `spare` ones stay free. Out of order, every vector operand takes its registers, as many hold a broadcast,
    where bytes are widened one has the mask for it, and a product that is added apart has its own.
    In order, each broadcast operand takes one for four steps, and three hold what is being loaded. Of byte
    products, a row's sums of 16 bits are there, and if there are several rows the weights of all steps that
    share those, two vectors in a register; three hold broadcasts (codegen/scheduling/byte_order.py).
    Column by column (byte_columns.py) three sums of 16 bits are there, and two steps' words in a register.
    Of rows of whole cache lines, what each sum multiplies for itself may come from memory: data of depthwise
    convolutions.
    """
    vectors, broadcasts = operand_counts(counts, operands)
    if core.shared_steps and core.in_order:
        kept = np.where(broadcasts > 1, core.shared_steps * -(-vectors // 2), vectors)
        feeding = kept + np.maximum(vectors, PRODUCT_LATENCY_CYCLES) + 3
        by_columns = (core.shared_steps == PAIRED_STEPS) & (broadcasts > 1) & (vectors > 1)
        feeding = np.where(by_columns, np.minimum(feeding, PAIRED_STEPS // 2 * vectors + 5), feeding)
    elif core.in_order and has_broadcasts(counts, operands):
        feeding = broadcasts + 3
    else:
        feeding = (vectors + 1) * core.operand_registers + (core.operand_registers - 1)
        feeding += core.product_registers
        own = sum(len(positions) == len(counts) for positions in operands)
        if core.line_vectors and 0 < own < len(operands):
            shared = vectors - own * math.prod(counts)
            feeding = np.where(counts[-1] == core.line_vectors, np.minimum(feeding, shared), feeding)
    return math.prod(counts) + feeding + spare <= core.registers


def operand_counts(counts: Sequence[Any], operands: Operands) -> tuple[Any, Any]:
    """Vectors and broadcasts that one step reads for loop sizes, the last in vectors; numbers or arrays."""
    vectors = broadcasts = 0 * counts[-1]
    for positions in operands:
        loads = math.prod(counts[position] for position in positions)
        if len(counts) - 1 in positions:
            vectors = vectors + loads
        else:
            broadcasts = broadcasts + loads
    return vectors, broadcasts


def has_broadcasts(counts: Sequence[Any], operands: Operands) -> bool:
    """Whether some operand is the same for a whole vector."""
    return any(len(counts) - 1 not in positions for positions in operands)


def _sensible(sizes: Sequence[int], extent: int) -> list[int]:
    """The sizes that a space offers: those that cover the extent with little overlap."""
    return [size for size in sizes if waste(extent, size) <= WASTE]
