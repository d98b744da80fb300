"""Operands of products of pairs of bytes in general registers, on a core that issues in program order.

Words and weights are loaded into these beside multiplications, long before they enter vector registers:
`Loads`. byte_order.py and byte_columns.py say in which order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    binary,
    conversion,
    insertion,
    is_constant_place,
    literal,
    passed_on,
    poison,
    shuffle,
)
from cross.codegen.scheduling.byte_products import ANY, LANES, STEP, Fresh, Unit, Writer, units_of

LEAST: Final = 16  # units in a body: below, a loop is bound by latency and LLVM's order is as good
AHEAD: Final = 18  # multiplications between a load into a general register and its move to a vector register
PRODUCT_CYCLES: Final = 4  # before something else than a multiplication reads a product
ADDITION_CYCLES: Final = 2
LOAD_CYCLES: Final = 3
SIGN_BITS: Final = {"int16": -0x7F80, "int32": -0x7F7F7F80, "int64": -0x7F7F7F7F7F7F7F80}  # of every byte
RAW: Final = " as read"
PURE: Final = ("getelementptr", "insertelement", "shufflevector", "xor")


class Body(msgspec.Struct, frozen=True):
    """A loop body that holds nothing but loads and products of pairs."""

    pure: dict[str, Instruction]
    loads: dict[str, Definition]
    units: list[Unit]


def body_of(lines: Sequence[Line]) -> Body | None:
    """What the lines of a loop body hold; None if it is more than that, or few products."""
    pure: dict[str, Instruction] = {}
    loads: dict[str, Definition] = {}
    for line in lines:
        if not isinstance(line, Definition):
            return None
        if line.instruction.op in PURE:
            pure[line.name] = line.instruction
        elif line.instruction.op == "load" and line.instruction.dtype == "int16":
            loads[line.name] = line
        elif line.instruction.op != STEP:
            return None
    units = units_of(lines)
    return Body(pure, loads, units) if len(units) >= LEAST else None


def _joined(pure: dict[str, Instruction], loads: dict[str, Definition]) -> dict[str, tuple[str, int]]:
    """Of numbers that fill an aligned word of 8 or 4 bytes in memory: the first one's load, and the place."""
    places: dict[tuple[str, int], str] = {}
    for name, line in loads.items():
        if line.instruction.lanes == 1:
            (pointer,) = line.instruction.operands
            address = pure.get(pointer.text)
            if address is not None and is_constant_place(address):
                places[address.operands[0].text, int(address.operands[1].text)] = name
            else:
                places[pointer.text, 0] = name
    found: dict[str, tuple[str, int]] = {}
    for count in (4, 2):
        for (base, place), name in places.items():
            names = [places.get((base, place + lane), "") for lane in range(count)]
            alignment = loads[name].instruction.detail
            assert isinstance(alignment, int)
            if alignment >= 2 * count and "" not in names and not found.keys() & set(names):
                found |= {other: (name, lane) for lane, other in enumerate(names)}
    return found


def _flips(pure: dict[str, Instruction], loads: dict[str, Definition]) -> dict[str, str]:
    """Numbers with their sign bits flipped, and the loads that these are of; none if some number is not."""
    found = {}
    for name, instruction in pure.items():
        if instruction.op == "xor" and instruction.operands[1].text == str(SIGN_BITS["int16"]):
            found[name] = instruction.operands[0].text
    numbers = {name for name, line in loads.items() if line.instruction.lanes == 1}
    return found if numbers == set(found.values()) else {}


class Loads:
    """Writes lines: loads into general registers at their places, and the parts of products."""

    def __init__(self, fresh: Fresh, body: Body) -> None:
        self.lines: list[Line] = []
        self.writer = Writer(self.lines, fresh, ordered=True)
        self.pure, self.loads = body.pure, body.loads
        self.joined = _joined(body.pure, body.loads)
        self.flips = _flips(body.pure, body.loads)
        self.general: dict[tuple[int, str], Value] = {}  # by block: loads in general registers
        self.cycle = 0
        self.ready: dict[tuple[int, str], int] = {}  # by block: the cycle from which loads can be used

    def _without_loads(self) -> list[Line]:
        """What is computed of no loads."""
        return [Definition(name, self.pure[name]) for name in self.pure if not self._loads_of(name)]

    def _left_over(self) -> list[Line]:
        """What other loops may use; where none does, LLVM drops it."""
        computed = [Definition(name, self.pure[name]) for name in self.pure if self._loads_of(name)]
        return [*self.loads.values(), *computed]

    def _is_ready(self, block: int, name: str) -> bool:
        """Whether what a number is made of has arrived in its general register."""
        source = self._source(name)
        return not source or self.ready.get((block, source), self.cycle + 1) <= self.cycle

    def _load_one(self, wanted: list[tuple[int, tuple[int, str]]], position: int, ahead: int = AHEAD) -> None:
        """The first number wanted soon whose bits have arrived, beside what was written last."""
        for item in wanted:
            at, load = item
            if load not in self.general and at <= position + ahead and self._is_ready(*load):
                self._load(*load)
                self.lines.append(FENCE)
                wanted.remove(item)
                return

    def _product(
        self,
        unit: Unit,
        operands: tuple[Value, Value],
        high: int,
        sums: dict[str, Value],
        register: str = ANY,
    ) -> None:
        """A multiplication of low or high halves of registers, added to the 16-bit sums of the unit."""
        words, weights = (self._half(operand, high) for operand in operands)
        sums[unit.name] = self.writer.multiplied(words, weights, sums.get(unit.name), register)
        self.lines.append(FENCE)
        self.cycle += 1

    def _add(self, unit: Unit, sums: dict[str, Value]) -> None:
        self.writer.add(unit, sums.pop(unit.name))
        self.lines.append(FENCE)
        self.cycle += ADDITION_CYCLES

    def _half(self, value: Value, high: int) -> Value:
        """Four 16-bit lanes of a register."""
        if value.lanes == LANES:
            return value
        return self.writer.value(shuffle(value, tuple(range(high * LANES, (high + 1) * LANES))))

    def _splatted(self, value: Value) -> str:
        """The number that a load gives, flipped or not, which fills all lanes of a value; "" for another."""
        shuffled = self.pure.get(value.text)
        if shuffled is None or shuffled.op != "shufflevector" or shuffled.detail != (0,) * LANES:
            return ""
        inserted = self.pure.get(shuffled.operands[0].text)
        if inserted is None or inserted.op != "insertelement" or inserted.detail != 0:
            return ""
        name = self.flips.get(inserted.operands[1].text, inserted.operands[1].text)
        return name if name in self.loads and self.loads[name].instruction.lanes == 1 else ""

    def _everywhere(self, number: Value, register: str = ANY) -> Value:
        first = self.writer.value(insertion(poison("int16", 2 * LANES), number, 0))
        return self.writer.placed(self.writer.value(shuffle(first, (0,) * 2 * LANES)), register=register)

    def _loads_of(self, name: str) -> list[str]:
        if name in self.loads:
            return [name]
        uses = self.pure[name].uses if name in self.pure else []
        return [load for use in uses for load in self._loads_of(use)]

    def _load(self, block: int, name: str) -> None:
        """A number in a general register; empty assembly keeps LLVM from joining this with what follows.

        A load reads as many numbers as lie side by side and are used by element; others are shifted out.
        """
        if (block, name) in self.general:
            return
        source = self._source(name)
        self.ready[block, name] = self.cycle + (self._made_in(name) if source else LOAD_CYCLES)
        if source:
            self._load(block, source)
            whole = self.general[block, source]
            changed = self._made(name, whole)
            self.general[block, name] = self.writer.value(passed_on(changed, "=r,0", ordered=True))
            return
        self.general[block, name] = self._read(name.removesuffix(RAW))

    def _made_in(self, name: str) -> int:
        """Cycles until what is made of another number may be used."""
        return 1

    def _made(self, name: str, whole: Value) -> Value:
        """A number of what it is made of: shifted out of it, or with its sign bits flipped."""
        lane = self.joined.get(name, ("", 0))[1]
        op, other = ("lshr", 16 * lane) if lane else ("xor", SIGN_BITS[whole.dtype])
        return self.writer.value(binary(op, whole, literal(other, whole.dtype)))

    def _source(self, name: str) -> str:
        """Of a number: the one whose bits are shifted or flipped; "" for a load."""
        first, lane = self.joined.get(name, (name, 0))
        if lane:
            return first
        return f"{name}{RAW}" if name in self.flips.values() else ""

    def _read(self, name: str) -> Value:
        instruction = self.loads[name].instruction
        count = instruction.lanes if instruction.lanes > 1 else self._neighbours(name)
        loaded = self.writer.value(
            instruction._replace(op="load volatile", dtype=f"int{16 * count}", lanes=1)
        )
        if count == 1:
            loaded = self.writer.value(conversion("zext", loaded, "int32"))
        return self.writer.value(passed_on(loaded, "=r,0", ordered=False))

    def _neighbours(self, name: str) -> int:
        return max((lane + 1 for first, lane in self.joined.values() if first == name), default=1)

    def _number(self, block: int, name: str) -> Value:
        return self.writer.value(conversion("trunc", self.general[block, name], "int16"))
