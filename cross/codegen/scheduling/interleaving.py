"""Long chains of arithmetic for cores that issue in program order: several at a time. Start at `interleaved`.

A SiLU is 24 instructions, most of which wait for the one before: a Cortex-A53 takes 88 cycles for one vector,
and 28 a vector where three or four are under way. LLVM's schedulers interleave two, and keep in registers the
sums of a tile that wait for their turn, so that constants are loaded again and again. Here sums that wait are
kept in memory, and lines are written in the order of a simulated issue, with fences, so that it stays so.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from cross.codegen.instructions import Definition, Instruction, Line, Value, instruction_of
from cross.codegen.scheduling.halves import FLOAT, LANES
from cross.codegen.scheduling.stored_chains import (
    Chain,
    Parked,
    by_height,
    fenced,
    from_outside,
    latency,
    live_vectors,
    slots,
    stored_chains,
    vectors,
)

REGISTERS: Final = 31  # one less than there are: LLVM may move what is between two fences
WINDOW: Final = 2  # instructions between fences: of 1 to 6 the fewest cycles by the model (EfficientNet-B0)
# How many registers the chains that are under way may need at most, each at its own worst moment, over those
# that are free: they are at it one after the other. The largest whose order fits is taken.
SHARES: Final = (1.6, 1.45, 1.3, 1.15, 1.0)

_BITS: Final = re.compile(r"0x([0-9A-Fa-f]+)")  # of a float as LLVM writes it, those of a double


def interleaved(
    body: Sequence[Line], fresh: Callable[[str], str], memory: Callable[[int], Value]
) -> list[Line] | None:
    """Straight lines in another order, with the same results under the same names.

    Args:
        body: lines of which none reads what another one stores.
        fresh: a new SSA name for a hint.
        memory: a pointer to so many vectors on the stack.

    Returns:
        None for a body that holds more than loads, arithmetic of vectors and stores, with fewer than two long
        chains, or whose chains share more values than registers last for.
    """
    found = stored_chains(body, LANES)
    if found is None:
        return None
    chains = found.chains
    lines: Chain = list(found.shared.values())
    waiting = {value: number for value, number in found.waiting().items() if value.dtype == FLOAT}
    most = max(max(live_vectors(chain)) for chain in chains)
    if waiting and _lasting(chains) + most > REGISTERS:
        parked = Parked(memory(len(waiting)), LANES, fresh, found.shared)
        for value, number in waiting.items():
            chains[number] = by_height(parked.put(value, chains[number]))
        lines += parked.lines
    free = REGISTERS - _lasting(chains)
    if free < most:
        return None
    for share in SHARES:
        ordered = _ordered(chains, int(share * free))
        if max(live_vectors(ordered)) <= free:
            break
    return fenced([*lines, *ordered, *found.unused], WINDOW)


def _lasting(chains: Sequence[Chain]) -> int:
    """Registers of what chains read and do not define: constants, but those that are part of an instruction
    (fmov), and values from outside."""
    found = set()
    for chain in chains:
        found |= {value.text for value in from_outside(chain)}
        constants = {value.text for value in vectors(chain) if not value.is_name and value.dtype == FLOAT}
        found |= {text for text in constants if not _is_immediate(text)}
    return len(found)


def _is_immediate(text: str) -> bool:
    """Whether a constant is 0, or 16 to 31 times a power of 2 from 2^-7 to 2^0 or the negative of that."""
    bits = _BITS.search(text)
    if bits is None:
        return False
    (number,) = struct.unpack(">d", bytes.fromhex(bits[1].zfill(16)))
    fraction, exponent = math.frexp(abs(number))
    return number == 0.0 or (-2 <= exponent <= 5 and (32 * fraction).is_integer())


def _ordered(chains: Sequence[Chain], registers: int) -> Chain:
    """All lines as they issue: of the first chain that need not wait, else of one more chain, where its most
    registers and the most that those under way will still need are no more than `registers` together."""
    needs = []
    for chain in chains:
        live = live_vectors(chain)
        needs.append([max(live[position:]) for position in range(len(chain))])
    ready: dict[str, int] = {}
    places = [0] * len(chains)
    open_chains: list[int] = []
    lines: Chain = []
    following = time = 0
    while open_chains or following < len(chains):
        found = next(
            (number for number in open_chains if _waits(chains[number][places[number]], ready) <= time), None
        )
        if found is None:
            needed = sum(needs[number][places[number]] for number in open_chains)
            if following < len(chains) and (not open_chains or needed + needs[following][0] <= registers):
                open_chains.append(following)
                following += 1
            else:
                time += 1
            continue
        line = chains[found][places[found]]
        lines.append(line)
        if isinstance(line, Definition):
            ready[line.name] = time + latency(line.instruction)
        time += slots(line)
        places[found] += 1
        if places[found] == len(chains[found]):
            open_chains.remove(found)
    return lines


def _waits(line: Definition | Instruction, ready: Mapping[str, int]) -> int:
    """The cycle in which the operands of a line are there."""
    return max((ready.get(use, 0) for use in instruction_of(line).uses), default=0)
