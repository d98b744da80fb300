"""Products of pairs of bytes on a core that issues in program order, in as few registers as can be.

byte_order.py multiplies a row of a tile step by step: as many sums of 16 bits are alive as the tile has
columns, and every word fills both halves of a register. Tiles with more sums than that leaves room for are
multiplied column by column, with the words of two steps in one register, beside weights of the same steps:

    smull t0, x01, w01    smull t1, x01, w'01    sadalp of the row before
    smlal2 t0, x01, w01   smlal t0, x23, w23     smlal2 t0, x23, w23    then t1, sadalp of t0, t2 ...

Three sums of 16 bits are alive, two registers of words and two of weights for every column. A word enters the
high half of its register from a general one that holds it four times, made beside multiplications.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from cross.codegen.instructions import (
    FENCE,
    Instruction,
    Line,
    Value,
    binary,
    conversion,
    insertion,
    literal,
    poison,
)
from cross.codegen.scheduling.byte_loads import Body, Loads, body_of
from cross.codegen.scheduling.byte_order import row_by_row
from cross.codegen.scheduling.byte_products import LANES, Fresh, Unit

STEPS: Final = 4  # of a sum of 16 bits
ISSUED: Final = 2  # instructions in a cycle
AHEAD: Final = 30
"""Multiplications between the first load for an operand and its vector register: by llvm-mca's model of a
Cortex-A53 24 to 36 are alike, and 18, byte_loads.py's, take 4 % longer."""
SHIFTED_CYCLES: Final = 2  # of an `orr` that shifts what it reads; of others one (llvm-mca, Cortex-A53)
SUMS: Final = 3  # of 16 bits, alive at a time: one is begun, one gets its products, one is added
REGISTERS: Final = 32
BOTH: Final = (0, 2, 1, 3)  # steps of both registers: two at a time enter different ones in one cycle
ALONE: Final = " alone"  # of a number's name: without those beside it
TWICE: Final = " twice"
REPEATED: Final = " in all lanes"
_MADE_OF: Final = {REPEATED: TWICE, TWICE: ALONE}

Tile = list[list[Unit]]
"""Of a block: the units of each row, in the same order of columns."""


def arranged(body: Sequence[Line], fresh: Fresh) -> list[Line] | None:
    """The lines of a loop body in the order in which they should issue, with the same results.

    Returns:
        None for a body that holds more than loads and products of pairs, or few of these.
    """
    found = body_of(body)
    if found is None:
        return None
    blocks = _tiles(found.units)
    arrangement = _ColumnByColumn(fresh, found)
    if blocks and _exceeds_registers(blocks[0]) and arrangement.can_write(found.units):
        return arrangement.of(blocks)
    return row_by_row(found, fresh)


def _tiles(units: Sequence[Unit]) -> list[Tile]:
    """The blocks as tiles of rows and columns; empty where some is no tile or has other steps than STEPS."""
    blocks: dict[int, dict[tuple[str, ...], dict[tuple[str, ...], Unit]]] = {}
    for unit in units:
        words, weights = (tuple(factors[side].text for factors in unit.factors) for side in (0, 1))
        row = blocks.setdefault(unit.block, {}).setdefault(words, {})
        if weights in row or len(unit.factors) != STEPS:
            return []
        row[weights] = unit
    tiles = []
    for block in sorted(blocks):
        rows = list(blocks[block].values())
        if any(row.keys() != rows[0].keys() for row in rows):
            return []
        tiles.append([[row[weights] for weights in rows[0]] for row in rows])
    return tiles


def _exceeds_registers(tile: Tile) -> bool:
    """Whether the sums and what feeds them do not fit in the other order, but do in this."""
    columns = len(tile[0])
    sums = len(tile) * columns
    others = STEPS * -(-columns // 2) + max(columns, STEPS) + 3
    return len(tile) > 1 < columns and sums + others > REGISTERS >= sums + SUMS + STEPS // 2 * (columns + 1)


class _Multiply(msgspec.Struct, frozen=True):
    unit: Unit
    column: int
    step: int


class _Arrive(msgspec.Struct, frozen=True):
    """A vector of weights, or a word, enters half of a register; `column` is -1 of words."""

    unit: Unit
    column: int
    step: int


class _Add(msgspec.Struct, frozen=True):
    unit: Unit


_Event = _Multiply | _Arrive | _Add


def _events(blocks: Sequence[Tile]) -> Iterator[_Event]:
    """What issues, in order, but for what is done in general registers beside it.

    Three others lie between the first product of a unit and the second, which waits for it.
    """
    rows = [(row, place + 1 == len(tile)) for tile in blocks for place, row in enumerate(tile)]
    firsts = [*(tile[0] for tile in blocks[1:]), None]  # the first row of the next block
    for column, unit in ((-1, rows[0][0][0]), *enumerate(rows[0][0])):
        yield from _halves(unit, column, BOTH)
    last: Unit | None = None
    for number, (row, ends_block) in enumerate(rows):
        following = rows[number + 1][0][0] if number + 1 < len(rows) else None
        later = firsts.pop(0) if ends_block else None
        for column in (0, 1):
            yield _Multiply(row[column], column, 0)
        if last is not None:
            yield _Add(last)
        for column, unit in enumerate(row):
            yield from (_Multiply(unit, column, step) for step in range(1, STEPS))
            if later is not None:
                yield from _halves(later[column], column, BOTH)
            if following is not None and column + 1 == len(row):
                yield from _halves(following, -1, BOTH)
            if column > 0:
                yield _Add(row[column - 1])
            if column + 2 < len(row):
                yield _Multiply(row[column + 2], column + 2, 0)
        last = row[-1]
    assert last is not None
    yield _Add(last)


def _halves(unit: Unit, column: int, steps: Sequence[int]) -> list[_Arrive]:
    return [_Arrive(unit, column, step) for step in steps]


def _register(number: int) -> str:
    """A fixed one: where all are taken, LLVM's own choice leaves sums without any."""
    return f"{{v{number}}}"


class _ColumnByColumn(Loads):
    """Writes the blocks of a body."""

    def __init__(self, fresh: Fresh, body: Body) -> None:
        super().__init__(fresh, body)
        self.registers: dict[tuple[int, int], Value] = {}  # by column, -1 of words, and pair of steps

    def can_write(self, units: Sequence[Unit]) -> bool:
        """Whether words are numbers in all lanes, and weights vectors, as they were loaded."""
        return all(
            self._splatted(words) and weights.text in self.loads and weights.lanes == LANES
            for unit in units
            for words, weights in unit.factors
        )

    def of(self, blocks: Sequence[Tile]) -> list[Line]:
        """The lines."""
        self.lines += self._without_loads()
        events, position = list(_events(blocks)), 0
        wanted: list[tuple[int, tuple[int, str]]] = []
        for event in events:
            match event:
                case _Multiply():
                    position += 1
                case _Arrive():
                    wanted += [(position, (event.unit.block, name)) for name in self._needs(event)]
        wanted, position = list(dict.fromkeys(wanted)), 0
        sums: dict[str, Value] = {}
        numbers: dict[str, int] = {}  # of units, as they are begun
        first = next(place for place, event in enumerate(events) if isinstance(event, _Multiply))
        self._start([event for event in events[:first] if isinstance(event, _Arrive)])
        del events[:first]
        for event in events:
            match event:
                case _Multiply(unit, column, step):
                    operands = self.registers[-1, step // 2], self.registers[column, step // 2]
                    sum_at = numbers.setdefault(unit.name, len(numbers)) % SUMS
                    self._product(unit, operands, step % 2, sums, _register(sum_at))
                    self._load_one(wanted, position, AHEAD)
                    position += 1
                case _Arrive():
                    self._enter(event)
                case _Add(unit):
                    self._add(unit, sums)
        self.lines += self._left_over()
        return self.lines

    def _start(self, entering: list[_Arrive]) -> None:
        """What the first products need: a load a cycle, words first; beside it what is made or enters."""
        entering.sort(key=lambda event: event.column >= 0)
        names = dict.fromkeys((event.unit.block, name) for event in entering for name in self._needs(event))
        loads = [load for load in names if not self._source(load[1])]
        made = [load for load in names if self._source(load[1])]
        while loads or made or entering:
            free = ISSUED
            if loads:
                self._load(*loads.pop(0))
                free -= 1
            for load in [load for load in made if self._is_ready(*load)][:free]:
                self._load(*load)
                made.remove(load)
                free -= 1
            for event in [event for event in entering if self._has_arrived(event)][:free]:
                self._enter(event)
                entering.remove(event)
            self.lines.append(FENCE)
            self.cycle += 1

    def _has_arrived(self, event: _Arrive) -> bool:
        """Whether an operand can enter a vector register in this cycle, a high half behind the low one."""
        load = event.unit.block, self._last(event)
        is_next = event.step % 2 == 0 or (event.column, event.step // 2) in self.registers
        return is_next and self.ready.get(load, self.cycle + 1) <= self.cycle

    def _needs(self, event: _Arrive) -> list[str]:
        """What has to be in general registers, in the order in which it is made."""
        names = [self._last(event)]
        while source := self._source(names[-1]):
            names.append(source)
        return names[::-1]

    def _last(self, event: _Arrive) -> str:
        words, weights = event.unit.factors[event.step]
        if event.column >= 0:
            return weights.text
        return self._splatted(words) + (REPEATED if event.step % 2 else "")

    def _enter(self, event: _Arrive) -> None:
        """Into the low half, of words into both, or into the high half."""
        for name in self._needs(event):
            self._load(event.unit.block, name)
        block, name = event.unit.block, self._last(event)
        place, half = (event.column, event.step // 2), event.step % 2
        register = _register(SUMS + STEPS // 2 * (event.column + 1) + event.step // 2)
        if event.column < 0 and half == 0:
            self.registers[place] = self._everywhere(self._number(block, name), register)
        else:
            whole = poison("int64", 2)
            if half == 1:
                whole = self.writer.value(Instruction("bitcast", "int64", 2, (self.registers[place],)))
            joined = self.writer.value(insertion(whole, self.general[block, name], half))
            found = self.writer.placed(joined, register=register)
            self.registers[place] = self.writer.value(Instruction("bitcast", "int16", 2 * LANES, (found,)))
        self.lines.append(FENCE)

    def _source(self, name: str) -> str:
        for suffix, before in _MADE_OF.items():
            if name.endswith(suffix):
                return name.removesuffix(suffix) + before
        if name.endswith(ALONE):
            number = name.removesuffix(ALONE)
            return self.joined.get(number, (number, 0))[0]
        return super()._source(name)

    def _made_in(self, name: str) -> int:
        return SHIFTED_CYCLES if name.endswith((TWICE, REPEATED)) else super()._made_in(name)

    def _made(self, name: str, whole: Value) -> Value:
        """A word alone in 64 bits, twice in the lower 32, or in all four lanes; others as ever."""
        if name.endswith(ALONE):
            number = name.removesuffix(ALONE)
            if whole.dtype != "int64":
                whole = self.writer.value(conversion("zext", whole, "int64"))
            shift = literal(16 * self.joined.get(number, (number, 0))[1], "int64")
            shifted = self.writer.value(binary("lshr", whole, shift))
            return self.writer.value(binary("and", shifted, literal(0xFFFF, "int64")))
        for suffix, bits in ((TWICE, 16), (REPEATED, 32)):
            if name.endswith(suffix):
                shifted = self.writer.value(binary("shl", whole, literal(bits, "int64")))
                return self.writer.value(binary("or", whole, shifted))
        return super()._made(name, whole)
