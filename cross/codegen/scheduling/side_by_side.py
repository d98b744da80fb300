"""Long chains of arithmetic for cores out of order with few registers: four side by side, step by step.

LLVM writes the chains behind a tile one after the other, each a SiLU or a GELU of some 30 instructions, and
with 16 registers loads every constant again for each of them. A core looks ahead over two or three chains,
whose instructions mostly wait for one another. Side by side four chains share each constant that is loaded,
and of four instructions in a row none waits for another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from boards.target import Target
from cross.codegen.instructions import Definition, Instruction, Line, Value
from cross.codegen.scheduling.halves import FLOAT
from cross.codegen.scheduling.stored_chains import (
    Chain,
    Parked,
    by_height,
    fenced,
    live_vectors,
    stored_chains,
)

REGISTERS: Final = 16  # with more LLVM keeps the constants in registers
GROUP: Final = 4  # chains side by side: of 2 to 6 the fastest on a Zen 3; each has four or five vectors alive
ONE_GROUP: Final = (
    8  # chains that go in step at most; of 7 that was as fast as LLVM's order on a Zen 3, or faster
)
LANES_WITH_FMA: Final = 8  # of AVX2; without multiply-adds products take registers, and no sum can wait there
WINDOW: Final = 8  # instructions between fences: of 1 to 16 all are within 2 %


def side_by_side(
    body: Sequence[Line], target: Target, fresh: Callable[[str], str], memory: Callable[[int], Value]
) -> list[Line] | None:
    """As `interleaved` in interleaving.py, whose arguments it has besides the target.

    Returns:
        None for targets with more registers or other than x86-64, and for what is not long chains of float32.
    """
    if target.vector_registers != REGISTERS or not target.triple.startswith("x86_64"):
        return None
    lanes = target.vector_lanes()
    found = stored_chains(body, lanes)
    if found is None:
        return None
    chains, waiting, size = found.chains, found.waiting(), len(found.chains)
    if any(value.dtype != FLOAT for value in waiting):
        return None
    lines: Chain = list(found.shared.values())
    if size > ONE_GROUP:
        size = min(GROUP, REGISTERS // max(max(live_vectors(chain)) for chain in chains))
        if size < 2:
            return None
        # Sums that wait would be spilled one by one, or moved about inside the loop that makes them.
        kept = size if lanes == LANES_WITH_FMA else 0
        later = {value: number for value, number in waiting.items() if number >= kept}
        if later:
            parked = Parked(memory(len(later)), lanes, fresh, found.shared)
            for value, number in later.items():
                chains[number] = by_height(parked.put(value, chains[number]))
            lines += parked.lines
    for first in range(0, len(chains), size):
        lines += _in_step(chains[first : first + size])
    return fenced([*lines, *found.unused], WINDOW)


def _in_step(group: Sequence[Chain]) -> list[Definition | Instruction]:
    """The first line of each chain, the second of each, and so on."""
    longest = max(map(len, group))
    return [chain[place] for place in range(longest) for chain in group if place < len(chain)]
