"""Straight code as the chains of arithmetic that its stores need. Start at `stored_chains`.

Behind a tile of a product with a SiLU stands such code: one chain of a few dozen instructions for each
vector. In which order chains are written is decided by interleaving.py for cores that issue in order, and by
side_by_side.py for others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

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
from cross.codegen.scheduling.halves import FLOAT

LEAST: Final = 12  # instructions in a chain: shorter ones are bound by what they load and store
ITEM_BYTES: Final = 4  # of a float32
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

Chain = list[Definition | Instruction]  # what one store needs alone, and the store


class StoredChains(NamedTuple):
    """The chains of straight code, each with its lines by how much waits for them; definitions that several
    need; and those that none needs, which other code may."""

    chains: list[Chain]
    shared: dict[str, Definition]
    unused: Chain

    def waiting(self) -> dict[Value, int]:
        """Vectors from outside that one chain alone reads, such as sums of a tile, and the chain's number."""
        readers = Counter(value.text for chain in self.chains for value in from_outside(chain))
        return {
            value: number
            for number, chain in enumerate(self.chains)
            for value in from_outside(chain)
            if readers[value.text] == 1 and value.text not in self.shared
        }


def stored_chains(body: Sequence[Line], lanes: int) -> StoredChains | None:
    """The chains of straight lines of which none reads what another one stores.

    Returns:
        None for a body that holds more than loads, arithmetic of vectors of so many lanes and stores, or with
        fewer than two chains, or where one is not long.
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
    unused: Chain = []
    for line in defined.values():
        match users.get(line.name, []):
            case []:
                unused.append(line)
            case [number]:
                own[number].append(line)
            case _:
                shared[line.name] = line
    chains = [by_height([*chain, store]) for chain, store in zip(own, stores, strict=True)]
    if any(sum(map(slots, chain)) < LEAST for chain in chains):
        return None
    if any(value.lanes != lanes for chain in chains for value in vectors(chain)):
        return None
    return StoredChains(chains, shared, unused)


def _is_pure(instruction: Instruction) -> bool:
    if instruction.op == "call":
        return str(instruction.detail).startswith("llvm.")
    return instruction.op in PURE or instruction.op.startswith(("fcmp", "icmp"))


def is_vector(value: Value | Instruction) -> bool:
    """Whether it has several elements."""
    return value.lanes > 1


def _copies_addend(instruction: Instruction) -> bool:
    """Whether it is a multiply-add of a constant, which is moved into the register that it overwrites."""
    return is_multiply_add(instruction) and not instruction.operands[2].is_name


def latency(instruction: Instruction) -> int:
    """Cycles from its issue to that of what uses its result."""
    if instruction.op in NO_CODE:
        return 0
    if is_multiply_add(instruction):
        return SUM_LATENCY + (MOVE_LATENCY if _copies_addend(instruction) else 0)
    if instruction.op == "fdiv":
        return QUOTIENT_LATENCY
    return FLOAT_LATENCY if instruction.dtype == FLOAT and instruction.op != "select" else INTEGER_LATENCY


def slots(line: Definition | Instruction) -> int:
    """Cycles in which no other arithmetic of vectors issues."""
    instruction = instruction_of(line)
    if instruction.op in NO_CODE or (isinstance(line, Definition) and not is_vector(instruction)):
        return 0
    return 2 if instruction.op == "load" or _copies_addend(instruction) else 1


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


def vectors(chain: Chain) -> Iterator[Value]:
    """The vectors that a chain reads."""
    for line in chain:
        yield from filter(is_vector, instruction_of(line).operands)


def from_outside(chain: Chain) -> list[Value]:
    """Those of them with a name that the chain does not define, each once."""
    defined = {line.name for line in chain if isinstance(line, Definition)}
    return list(
        dict.fromkeys(value for value in vectors(chain) if value.is_name and value.text not in defined)
    )


def by_height(chain: Chain) -> Chain:
    """The lines by how much waits for them: each as late as it may be, so that few values live."""
    heights: dict[str, int] = {}
    placed: list[tuple[int, Definition | Instruction]] = []
    for line in reversed(chain):
        height = 0
        if isinstance(line, Definition):
            height = heights.get(line.name, 0) + latency(line.instruction) + slots(line)
        for use in instruction_of(line).uses:
            heights[use] = max(heights.get(use, 0), height)
        placed.append((height, line))
    placed.reverse()
    return [line for _, line in sorted(placed, key=lambda pair: -pair[0])]


def live_vectors(lines: Chain) -> list[int]:
    """The vectors that live after each line, of those that the lines define."""
    same: dict[str, str] = {}  # a bitcast is in the register of its operand
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, line in enumerate(lines):
        for use in instruction_of(line).uses:
            last[same.get(use, use)] = position
        if not isinstance(line, Definition) or not is_vector(line.instruction):
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


class Parked:
    """Values that chains begin with, kept in memory until it is their turn."""

    def __init__(
        self, place: Value, lanes: int, fresh: Callable[[str], str], shared: Collection[str]
    ) -> None:
        self._place, self._lanes, self._fresh, self._shared = place, lanes, fresh, {*shared}
        self._again = Value(fresh("parked"), "pointer")
        self._lines: Chain = []
        self._count = 0

    @property
    def _bytes(self) -> int:
        return ITEM_BYTES * self._lanes

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
        self._lines.append(Instruction("store", "", 1, (value, pointer), self._bytes))
        loads: Chain = []
        pointer = self._address(self._again, loads)
        loads.append(Definition(self._fresh("parked"), load_from(pointer, FLOAT, self._lanes, self._bytes)))
        again = loads[-1]
        assert isinstance(again, Definition)
        self._count += 1
        return [*loads, *(_renamed(line, {value.text: again.name}) for line in rest)]

    def _address(self, place: Value, lines: Chain) -> Value:
        name = self._fresh("parked")
        lines.append(Definition(name, element_pointer(place, FLOAT, integer(self._lanes * self._count))))
        return Value(name, "pointer")


def _renamed(line: Definition | Instruction, names: dict[str, str]) -> Definition | Instruction:
    if isinstance(line, Definition):
        return Definition(line.name, line.instruction.renamed(names))
    return line.renamed(names)


def fenced(lines: Iterable[Definition | Instruction], window: int) -> list[Line]:
    """The lines with a fence behind every `window` instructions, so that LLVM keeps their order."""
    found: list[Line] = []
    count = 0
    for line in lines:
        found.append(line)
        count += slots(line) > 0
        if count == window:
            found.append(FENCE)
            count = 0
    return found
