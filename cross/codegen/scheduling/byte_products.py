"""Products of pairs of bytes on Arm cores without dot products: which steps share 16 bits, and their order.

Values write one step of a sum as STEP: four 32-bit sums plus the products of four pairs of bytes. Where
consecutive steps of a sum stand in straight code, several share one addition to the 32-bit sums:

    smull t, x0, w0        eight products of bytes in 16-bit lanes
    smlal t, x1, w1        eight more of the next step; two or four, as `BYTE_BOUNDS` says of the weights
    sadalp sum, t          pairs of lanes added to four sums

`with_instructions` writes these for any core. `arranged` orders a loop body for one that issues in program
order: a vector of weights at a time, each step of it for all rows, so that no multiplication waits for the
one before, then the additions; behind the first of these what the next vector of weights needs. Loads go into
general registers beside multiplications, long before (inspection/cortex_a53.py has the rules).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    binary,
    call,
    conversion,
    is_constant_place,
    literal,
    passed_on,
)
from cross.expression.language.operations import SHARED_STEPS

STEP: Final = "step of byte products"
LANES: Final = 4
DECLARATIONS: Final = (
    "<8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8>, <8 x i8>)",
    "<4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16>)",
)
LEAST: Final = 16  # units in a body: below, a loop is bound by latency and LLVM's order is as good
AHEAD: Final = 18  # multiplications between a load into a general register and its move to a vector register
SIGN_BITS: Final = {"int16": -0x7F80, "int32": -0x7F7F7F80, "int64": -0x7F7F7F7F7F7F7F80}  # of every byte
RAW: Final = " as read"
PURE: Final = ("getelementptr", "insertelement", "shufflevector", "xor")
_NAME: Final = re.compile(r"%[\w.]+")

Fresh = Callable[[str], str]


@dataclass(slots=True)
class _Unit:
    """Steps of one sum that share 16 bits, and the block of the sum that they are, from 0."""

    name: str
    total: Value
    factors: list[tuple[Value, Value]] = field(default_factory=list)
    block: int = 0


def with_instructions(lines: Sequence[Line], fresh: Fresh) -> list[Line]:
    """The lines with instructions in place of every STEP."""
    if not any(isinstance(line, Definition) and line.instruction.op == STEP for line in lines):
        return list(lines)
    last = {unit.name: unit for unit in _units(lines)}
    inner = {
        line.name for line in lines if isinstance(line, Definition) and line.instruction.op == STEP
    } - last.keys()
    found: list[Line] = []
    for line in lines:
        if not isinstance(line, Definition) or line.name not in inner | last.keys():
            found.append(line)
        elif line.name in last:
            writer, unit = _Writer(found, fresh), last[line.name]
            writer.add(unit, writer.products(unit))
    return found


def _units(lines: Sequence[Line]) -> list[_Unit]:
    """The steps of all sums, as many together as may be and as nothing else reads in between."""
    uses: Counter[str] = Counter()
    for line in lines:
        if isinstance(line, str):
            uses.update(_NAME.findall(line))
        else:
            uses.update(line.instruction.uses if isinstance(line, Definition) else line.uses)
    units: dict[str, _Unit] = {}
    for line in lines:
        if not isinstance(line, Definition) or line.instruction.op != STEP:
            continue
        total, words, weights = line.instruction.operands
        before = units.get(total.text)
        most = SHARED_STEPS[str(line.instruction.detail)]
        if before is not None and len(before.factors) < most and uses[total.text] == 1:
            del units[total.text]
            before.name = line.name
            unit = before
        else:
            unit = _Unit(line.name, total, [], 0 if before is None else before.block + 1)
        unit.factors.append((words, weights))
        units[line.name] = unit
    return list(units.values())


@dataclass(slots=True)
class _Writer:
    """Appends to lines."""

    lines: list[Line]
    fresh: Fresh
    ordered: bool = False

    def placed(self, value: Value, name: str = "") -> Value:
        """The value computed at this place of the code, if lines are ordered."""
        if not self.ordered:
            return value
        return self.value(passed_on(value, "=w,0", ordered=True), name)

    def value(self, instruction: Instruction, name: str = "") -> Value:
        line = Definition(name or self.fresh("p"), instruction)
        self.lines.append(line)
        return line.value

    def multiplied(self, words: Value, weights: Value, sums: Value | None) -> Value:
        """smull, or with sums in 16 bits smlal."""
        operands = [
            self.value(Instruction("bitcast", "int8", 2 * LANES, (item,))) for item in (words, weights)
        ]
        products = self.value(call("llvm.aarch64.neon.smull.v8i16", "int16", 2 * LANES, operands))
        return self.placed(products if sums is None else self.value(binary("add", sums, products)))

    def products(self, unit: _Unit) -> Value:
        sums: Value | None = None
        for words, weights in unit.factors:
            sums = self.multiplied(words, weights, sums)
        assert sums is not None
        return sums

    def add(self, unit: _Unit, products: Value) -> None:
        """sadalp."""
        pairs = self.value(call("llvm.aarch64.neon.saddlp.v4i32.v8i16", "int32", LANES, (products,)))
        if self.ordered:
            self.placed(self.value(binary("add", unit.total, pairs)), unit.name)
        else:
            self.value(binary("add", unit.total, pairs), unit.name)


# ---------------------------------------------------------------------------------------------- in order


def arranged(body: Sequence[Line], fresh: Fresh) -> list[Line] | None:
    """The lines of a loop body in the order in which they should issue, with the same results.

    Returns:
        None for a body that holds more than loads and products of pairs, or few of these.
    """
    pure: dict[str, Instruction] = {}
    loads: dict[str, Definition] = {}
    for line in body:
        if not isinstance(line, Definition):
            return None
        if line.instruction.op in PURE:
            pure[line.name] = line.instruction
        elif line.instruction.op == "load" and line.instruction.dtype == "int16":
            loads[line.name] = line
        elif line.instruction.op != STEP:
            return None
    units = _units(body)
    if len(units) < LEAST:
        return None
    ranks: dict[str, int] = {}
    for unit in units:
        ranks.setdefault(unit.factors[0][1].text, len(ranks))
    groups: dict[tuple[int, int], list[_Unit]] = {}
    for unit in units:
        groups.setdefault((unit.block, ranks[unit.factors[0][1].text]), []).append(unit)
    return _Arrangement(fresh, pure, loads).of([groups[key] for key in sorted(groups)])


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


class _Arrangement:
    """Writes the units of a body in order, and loads at their places."""

    def __init__(self, fresh: Fresh, pure: dict[str, Instruction], loads: dict[str, Definition]) -> None:
        self.lines: list[Line] = []
        self.writer = _Writer(self.lines, fresh, ordered=True)
        self.pure, self.loads = pure, loads
        self.joined = _joined(pure, loads)
        self.flips = _flips(pure, loads)
        self.general: dict[tuple[int, str], Value] = {}  # by block: loads in general registers
        self.vectors: dict[str, Value] = {}  # of the block at hand: what is computed of loads, by name
        self.block = 0

    def of(self, groups: Sequence[Sequence[_Unit]]) -> list[Line]:
        """The lines; the units of a group share their weights."""
        self.lines += [Definition(name, self.pure[name]) for name in self.pure if not self._loads_of(name)]
        wanted = self._wanted(groups)
        operands = self._operands(groups[0])
        wanted = [item for item in wanted if item[1] not in self.general]
        position = 0
        for number, units in enumerate(groups):
            sums: list[Value | None] = [None] * len(units)
            for step in range(max(len(unit.factors) for unit in units)):
                for place, unit in enumerate(units):
                    if step >= len(unit.factors):
                        continue
                    words, weights = (operands[item.text] for item in unit.factors[step])
                    sums[place] = self.writer.multiplied(words, weights, sums[place])
                    self.lines.append(FENCE)
                    position += 1
                    if wanted and wanted[0][0] <= position + AHEAD:
                        self._load(*wanted.pop(0)[1])
                        self.lines.append(FENCE)
            for place, (unit, products) in enumerate(zip(units, sums, strict=True)):
                assert products is not None
                self.writer.add(unit, products)
                self.lines.append(FENCE)
                if place == 0 and number + 1 < len(groups):
                    operands = self._operands(groups[number + 1])
        # other loops may use what the body computes; where none does, LLVM drops it
        self.lines += [*self.loads.values()]
        self.lines += [Definition(name, self.pure[name]) for name in self.pure if self._loads_of(name)]
        return self.lines

    def _wanted(self, groups: Sequence[Sequence[_Unit]]) -> list[tuple[int, tuple[int, str]]]:
        """Every load of every block, with the multiplications before its first use."""
        first: dict[tuple[int, str], int] = {}
        position = 0
        for units in groups:
            for name in self._loads_of_group(units):
                first.setdefault((units[0].block, name), position)
            position += sum(len(unit.factors) for unit in units)
        return [(place, load) for load, place in first.items()]

    def _loads_of_group(self, units: Sequence[_Unit]) -> list[str]:
        """What a group reads, words before the numbers in them."""
        operands = dict.fromkeys(item.text for unit in units for factors in unit.factors for item in factors)
        names = [load for name in operands for load in self._loads_of(name)]
        words = [self.joined.get(name, (name, 0))[0] for name in names]
        read = [f"{word}{RAW}" for word in words if word in self.flips.values()]
        return list(dict.fromkeys([*read, *words, *names]))

    def _loads_of(self, name: str) -> list[str]:
        if name in self.loads:
            return [name]
        return (
            [load for use in self.pure[name].uses for load in self._loads_of(use)]
            if name in self.pure
            else []
        )

    def _operands(self, units: Sequence[_Unit]) -> dict[str, Value]:
        """Everything that a group multiplies, in vector registers.

        Blocks share none of it: what lived from one to the next would leave too few registers.
        """
        if units[0].block != self.block:
            self.block, self.vectors = units[0].block, {}
        for name in self._loads_of_group(units):
            self._load(self.block, name)
        found = {
            item.text: self._vector(item) for unit in units for factors in unit.factors for item in factors
        }
        self.lines.append(FENCE)
        return found

    def _load(self, block: int, name: str) -> None:
        """A number in a general register; empty assembly keeps LLVM from joining this with what follows.

        A load reads as many numbers as lie side by side and are used by element; others are shifted out.
        """
        if (block, name) in self.general:
            return
        first, lane = self.joined.get(name, (name, 0))
        if lane or name in self.flips.values():
            source = first if lane else f"{name}{RAW}"
            self._load(block, source)
            whole = self.general[block, source]
            op, other = ("lshr", 16 * lane) if lane else ("xor", SIGN_BITS[whole.dtype])
            changed = self.writer.value(binary(op, whole, literal(other, whole.dtype)))
            self.general[block, name] = self.writer.value(passed_on(changed, "=r,0", ordered=True))
            return
        self.general[block, name] = self._read(name.removesuffix(RAW))

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

    def _vector(self, value: Value) -> Value:
        """A value computed of loads; what ends in a vector register gets there at this place."""
        name = value.text
        if name not in self.loads and not self._loads_of(name):
            return value
        if name in self.vectors:
            return self.vectors[name]
        if name in self.flips:
            value = value._replace(text=self.flips[name])
            name = value.text
        if name in self.loads:
            loaded, lanes = self.general[self.block, name], value.lanes
            if lanes == 1:
                found = self.writer.value(conversion("trunc", loaded, "int16"))
            else:
                found = self.writer.value(Instruction("bitcast", "int16", lanes, (loaded,)))
        else:
            instruction = self.pure[name]
            operands = tuple(map(self._vector, instruction.operands))
            found = self.writer.value(instruction._replace(operands=operands))
        self.vectors[name] = self.writer.placed(found) if found.lanes > 1 and self._is_whole(name) else found
        return self.vectors[name]

    def _is_whole(self, name: str) -> bool:
        """Whether a vector is in its register, not on its way there."""
        return name in self.loads or self.pure[name].op == "shufflevector"
