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
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    element_pointer,
    instruction_of,
    integer,
    is_multiply_add,
    load_from,
    passed_on,
)
from cross.codegen.scheduling.halves import FLOAT, HALF_BYTES, LANES

LEAST: Final = 12  # instructions in a chain: shorter ones are bound by what they load and store
REGISTERS: Final = 31  # one less than there are: LLVM may move what is between two fences
WINDOW: Final = 2  # instructions between fences: of 1 to 6 the fewest cycles by the model (EfficientNet-B0)
# How many registers the chains that are under way may need at most, each at its own worst moment, over those
# that are free: they are at it one after the other. The largest whose order fits is taken.
SHARES: Final = (1.6, 1.45, 1.3, 1.15, 1.0)
VECTOR_BYTES: Final = 2 * HALF_BYTES
# cycles, see cross/inspection/cortex_a53.py
SUM_LATENCY: Final = 8
MOVE_LATENCY: Final = 2  # of an addend that a multiply-add may not overwrite
QUOTIENT_LATENCY: Final = 14
FLOAT_LATENCY: Final = 4  # and of a load
INTEGER_LATENCY: Final = 2
NO_CODE: Final = ("bitcast", "getelementptr")
PURE: Final = (
    *NO_CODE, "load", "select", "insertelement", "extractelement", "shufflevector", "fneg", "fadd", "fsub",
    "fmul", "fdiv", "add", "sub", "mul", "and", "or", "xor", "shl", "lshr", "ashr",
)  # fmt: skip

_BITS: Final = re.compile(r"0x([0-9A-Fa-f]+)")  # of a float as LLVM writes it, those of a double

Chain = list[Definition | Instruction]  # what one store needs alone, and the store


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
    defined = {line.name: line for line in body if isinstance(line, Definition)}
    stores = [line for line in body if isinstance(line, Instruction) and line.op == "store"]
    if len(defined) + len(stores) < len(body) or len(stores) < 2:
        return None
    if not all(_is_pure(line.instruction) for line in defined.values()):
        return None
    users = _users(stores, defined)
    own: list[Chain] = [[] for _ in stores]
    shared: dict[str, Definition] = {}
    unused: Chain = []  # here: other code may read it later
    for line in defined.values():
        match users.get(line.name, []):
            case []:
                unused.append(line)
            case [number]:
                own[number].append(line)
            case _:
                shared[line.name] = line
    chains = [_by_height([*chain, store]) for chain, store in zip(own, stores, strict=True)]
    if any(sum(map(_slots, chain)) < LEAST for chain in chains):
        return None
    if any(value.lanes != LANES for chain in chains for value in _vectors(chain)):
        return None
    readers = Counter(value.text for chain in chains for value in _from_outside(chain))
    waiting = {
        value: number
        for number, chain in enumerate(chains)
        for value in _from_outside(chain)
        if readers[value.text] == 1 and value.text not in shared and value.dtype == FLOAT
    }
    most = max(max(_live(chain)) for chain in chains)
    lines: Chain = list(shared.values())
    if waiting and _lasting(chains) + most > REGISTERS:
        parked = _Parked(memory(len(waiting)), fresh, shared)
        for value, number in waiting.items():
            chains[number] = _by_height(parked.put(value, chains[number]))
        lines += parked.lines
    free = REGISTERS - _lasting(chains)
    if free < most:
        return None
    for share in SHARES:
        ordered = _ordered(chains, int(share * free))
        if max(_live(ordered)) <= free:
            break
    return _fenced([*lines, *ordered, *unused])


def _is_pure(instruction: Instruction) -> bool:
    if instruction.op == "call":
        return str(instruction.detail).startswith("llvm.")
    return instruction.op in PURE or instruction.op.startswith(("fcmp", "icmp"))


def _is_vector(value: Value | Instruction) -> bool:
    return value.lanes > 1


def _copies_addend(instruction: Instruction) -> bool:
    """Whether it is a multiply-add of a constant, which is moved into the register that it overwrites."""
    return is_multiply_add(instruction) and not instruction.operands[2].is_name


def _latency(instruction: Instruction) -> int:
    """Cycles from its issue to that of what uses its result."""
    if instruction.op in NO_CODE:
        return 0
    if is_multiply_add(instruction):
        return SUM_LATENCY + (MOVE_LATENCY if _copies_addend(instruction) else 0)
    if instruction.op == "fdiv":
        return QUOTIENT_LATENCY
    return FLOAT_LATENCY if instruction.dtype == FLOAT and instruction.op != "select" else INTEGER_LATENCY


def _slots(line: Definition | Instruction) -> int:
    """Cycles in which no other arithmetic of vectors issues."""
    instruction = instruction_of(line)
    if instruction.op in NO_CODE or (isinstance(line, Definition) and not _is_vector(instruction)):
        return 0
    return 2 if instruction.op == "load" or _copies_addend(instruction) else 1


# ------------------------------------------------------------------------------------------------- chains


def _users(stores: Sequence[Instruction], defined: Mapping[str, Definition]) -> dict[str, list[int]]:
    """Of each definition: the numbers of the stores that need it."""
    found: dict[str, list[int]] = {}
    for number, store in enumerate(stores):
        waiting = store.uses
        while waiting:
            name = waiting.pop()
            if name not in defined or found.setdefault(name, [])[-1:] == [number]:
                continue
            found[name].append(number)
            waiting += defined[name].instruction.uses
    return found


def _vectors(chain: Chain) -> Iterator[Value]:
    """The vectors that a chain reads."""
    for line in chain:
        yield from filter(_is_vector, instruction_of(line).operands)


def _from_outside(chain: Chain) -> list[Value]:
    """Those of them with a name that the chain does not define, each once."""
    defined = {line.name for line in chain if isinstance(line, Definition)}
    return list(
        dict.fromkeys(value for value in _vectors(chain) if value.is_name and value.text not in defined)
    )


def _lasting(chains: Sequence[Chain]) -> int:
    """Registers of what chains read and do not define: constants, but those that are part of an instruction
    (fmov), and values from outside."""
    found = set()
    for chain in chains:
        found |= {value.text for value in _from_outside(chain)}
        constants = {value.text for value in _vectors(chain) if not value.is_name and value.dtype == FLOAT}
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


def _by_height(chain: Chain) -> Chain:
    """The lines by how much waits for them: each as late as it may be, so that few values live."""
    heights: dict[str, int] = {}
    placed: list[tuple[int, Definition | Instruction]] = []
    for line in reversed(chain):
        height = 0
        if isinstance(line, Definition):
            height = heights.get(line.name, 0) + _latency(line.instruction) + _slots(line)
        for use in instruction_of(line).uses:
            heights[use] = max(heights.get(use, 0), height)
        placed.append((height, line))
    placed.reverse()
    return [line for _, line in sorted(placed, key=lambda pair: -pair[0])]


def _live(lines: Chain) -> list[int]:
    """The vectors that live after each line, of those that the lines define."""
    same: dict[str, str] = {}  # a bitcast is in the register of its operand
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, line in enumerate(lines):
        for use in instruction_of(line).uses:
            last[same.get(use, use)] = position
        if not isinstance(line, Definition) or not _is_vector(line.instruction):
            continue
        if line.instruction.op == "bitcast":
            source = line.instruction.operands[0].text
            same[line.name] = same.get(source, source)
        else:
            first[line.name] = position
    changes = [0] * (len(lines) + 1)
    for name, position in first.items():
        changes[position] += 1
        changes[last.get(name, position + 1)] -= 1
    found = [0]
    for change in changes[:-1]:
        found.append(found[-1] + change)
    return found[1:]


class _Parked:
    """Values that chains begin with, kept in memory until it is their turn."""

    def __init__(self, place: Value, fresh: Callable[[str], str], shared: Collection[str]) -> None:
        self._place, self._fresh, self._shared = place, fresh, {*shared}
        self._again = Value(fresh("parked"), "pointer")
        self._lines: Chain = []
        self._count = 0

    @property
    def lines(self) -> Chain:
        """What stores them; memory is read through a pointer of which LLVM does not know what it holds."""
        return [*self._lines, Definition(self._again.text, passed_on(self._place, "=r,0", ordered=True))]

    def put(self, value: Value, chain: Chain) -> Chain:
        """The chain with the value loaded; a sum of it and what chains share is stored in its place."""
        rest = list(chain)
        match [line for line in chain if value.text in instruction_of(line).uses]:
            case [Definition(_, Instruction("fadd") as sum_) as line]:
                if self._shared.issuperset({*sum_.uses} - {value.text}):
                    rest.remove(line)
                    self._lines.append(line)
                    value = line.value
        pointer = self._address(self._place, self._lines)
        self._lines.append(Instruction("store", "", 1, (value, pointer), VECTOR_BYTES))
        loads: Chain = []
        pointer = self._address(self._again, loads)
        loads.append(Definition(self._fresh("parked"), load_from(pointer, FLOAT, LANES, VECTOR_BYTES)))
        again = loads[-1]
        assert isinstance(again, Definition)
        self._count += 1
        return [*loads, *(_renamed(line, {value.text: again.name}) for line in rest)]

    def _address(self, place: Value, lines: Chain) -> Value:
        name = self._fresh("parked")
        lines.append(Definition(name, element_pointer(place, FLOAT, integer(LANES * self._count))))
        return Value(name, "pointer")


def _renamed(line: Definition | Instruction, names: dict[str, str]) -> Definition | Instruction:
    if isinstance(line, Definition):
        return Definition(line.name, line.instruction.renamed(names))
    return line.renamed(names)


# -------------------------------------------------------------------------------------------------- order


def _ordered(chains: Sequence[Chain], registers: int) -> Chain:
    """All lines as they issue: of the first chain that need not wait, else of one more chain, where its most
    registers and the most that those under way will still need are no more than `registers` together."""
    needs = []
    for chain in chains:
        live = _live(chain)
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
            ready[line.name] = time + _latency(line.instruction)
        time += _slots(line)
        places[found] += 1
        if places[found] == len(chains[found]):
            open_chains.remove(found)
    return lines


def _waits(line: Definition | Instruction, ready: Mapping[str, int]) -> int:
    """The cycle in which the operands of a line are there."""
    return max((ready.get(use, 0) for use in instruction_of(line).uses), default=0)


def _fenced(lines: Iterable[Definition | Instruction]) -> list[Line]:
    found: list[Line] = []
    count = 0
    for line in lines:
        found.append(line)
        count += _slots(line) > 0
        if count == WINDOW:
            found.append(FENCE)
            count = 0
    return found
