"""Products of pairs of bytes on Arm cores without dot products: which steps share 16 bits.

Values write one step of a sum as STEP: four 32-bit sums plus the products of four pairs of bytes. Where
consecutive steps of a sum stand in straight code, several share one addition to the 32-bit sums:

    smull t, x0, w0        eight products of bytes in 16-bit lanes
    smlal t, x1, w1        eight more of the next step; two or four, as `BYTE_BOUNDS` says of the weights
    sadalp sum, t          pairs of lanes added to four sums

`with_instructions` writes these for any core; byte_order.py and byte_columns.py
have the orders for one that issues in it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from cross.codegen.instructions import (
    Definition,
    Instruction,
    Line,
    Value,
    binary,
    call,
    passed_on,
)
from cross.expression.language.operations import SHARED_STEPS

STEP: Final = "step of byte products"
LANES: Final = 4
ANY: Final = "w"  # vector register, as a constraint of assembly
DECLARATIONS: Final = (
    "<8 x i16> @llvm.aarch64.neon.smull.v8i16(<8 x i8>, <8 x i8>)",
    "<4 x i32> @llvm.aarch64.neon.saddlp.v4i32.v8i16(<8 x i16>)",
)
_NAME: Final = re.compile(r"%[\w.]+")

Fresh = Callable[[str], str]


class Unit(msgspec.Struct):
    """Steps of one sum that share 16 bits, and the block of the sum that they are, from 0."""

    name: str
    total: Value
    factors: list[tuple[Value, Value]] = []
    block: int = 0


def with_instructions(lines: Sequence[Line], fresh: Fresh) -> list[Line]:
    """The lines with instructions in place of every STEP."""
    if not any(isinstance(line, Definition) and line.instruction.op == STEP for line in lines):
        return list(lines)
    last = {unit.name: unit for unit in units_of(lines)}
    inner = {
        line.name for line in lines if isinstance(line, Definition) and line.instruction.op == STEP
    } - last.keys()
    found: list[Line] = []
    for line in lines:
        if not isinstance(line, Definition) or line.name not in inner | last.keys():
            found.append(line)
        elif line.name in last:
            writer, unit = Writer(found, fresh), last[line.name]
            writer.add(unit, writer.products(unit))
    return found


def units_of(lines: Sequence[Line]) -> list[Unit]:
    """The steps of all sums, as many together as may be and as nothing else reads in between."""
    uses: Counter[str] = Counter()
    for line in lines:
        if isinstance(line, str):
            uses.update(_NAME.findall(line))
        else:
            uses.update(line.instruction.uses if isinstance(line, Definition) else line.uses)
    units: dict[str, Unit] = {}
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
            unit = Unit(line.name, total, [], 0 if before is None else before.block + 1)
        unit.factors.append((words, weights))
        units[line.name] = unit
    return list(units.values())


class Writer(msgspec.Struct):
    """Appends to lines."""

    lines: list[Line]
    fresh: Fresh
    ordered: bool = False

    def placed(self, value: Value, name: str = "", register: str = ANY) -> Value:
        """The value computed at this place of the code, if lines are ordered, in "{v0}" or ANY register."""
        if not self.ordered:
            return value
        return self.value(passed_on(value, f"={register},0", ordered=True), name)

    def value(self, instruction: Instruction, name: str = "") -> Value:
        line = Definition(name or self.fresh("p"), instruction)
        self.lines.append(line)
        return line.value

    def multiplied(self, words: Value, weights: Value, sums: Value | None, register: str = ANY) -> Value:
        """smull, or with sums in 16 bits smlal."""
        operands = [
            self.value(Instruction("bitcast", "int8", 2 * LANES, (item,))) for item in (words, weights)
        ]
        products = self.value(call("llvm.aarch64.neon.smull.v8i16", "int16", 2 * LANES, operands))
        found = products if sums is None else self.value(binary("add", sums, products))
        return self.placed(found, register=register)

    def products(self, unit: Unit) -> Value:
        sums: Value | None = None
        for words, weights in unit.factors:
            sums = self.multiplied(words, weights, sums)
        assert sums is not None
        return sums

    def add(self, unit: Unit, products: Value) -> None:
        """sadalp."""
        pairs = self.value(call("llvm.aarch64.neon.saddlp.v4i32.v8i16", "int32", LANES, (products,)))
        if self.ordered:
            self.placed(self.value(binary("add", unit.total, pairs)), unit.name)
        else:
            self.value(binary("add", unit.total, pairs), unit.name)
