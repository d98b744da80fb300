"""The order of products of pairs of bytes on a core that issues in program order.

`arranged` orders a loop body (inspection/cortex_a53.py has the rules of the machine). The weights of all
steps that share 16 bits stay in registers, two vectors in each; the words pass by, row by row, each in both
halves of a register:

    smull t0, x0, w01    smull2 t1, x0, w01    smull t2, x0, w23    smull2 t3, x0, w23
    smlal t0, x1, w45    ...                                        then sadalp of t0, t1, t2 and t3

Words and weights enter vector registers two at a time, which takes a cycle, right before they are needed; the
weights of the next steps behind the last use of those before. They are loaded into general registers beside
multiplications, long before.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

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
from cross.codegen.scheduling.byte_products import LANES, STEP, Fresh, Unit, Writer, units_of

LEAST: Final = 16  # units in a body: below, a loop is bound by latency and LLVM's order is as good
AHEAD: Final = 18  # multiplications between a load into a general register and its move to a vector register
PRODUCT_CYCLES: Final = 4  # before something else than a multiplication reads a product
ADDITION_CYCLES: Final = 2
LOAD_CYCLES: Final = 3
SIGN_BITS: Final = {"int16": -0x7F80, "int32": -0x7F7F7F80, "int64": -0x7F7F7F7F7F7F7F80}  # of every byte
RAW: Final = " as read"
PURE: Final = ("getelementptr", "insertelement", "shufflevector", "xor")


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
    units = units_of(body)
    return _Arrangement(fresh, pure, loads).of(units) if len(units) >= LEAST else None


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


_Place = tuple[int, int, int]
"""Of an operand: its row or, of weights, block; the column of weights or -1; the step."""


@dataclass(frozen=True, slots=True)
class _Product:
    """The multiplication of one step of a unit.

    Units in one row multiply the same words; those in one column of a block, the same weights.
    """

    unit: Unit
    step: int
    row: int
    group: int  # of rows that are multiplied together, the first one's number
    column: int

    @property
    def words(self) -> _Place:
        return self.row, -1, self.step

    @property
    def weights(self) -> _Place:
        return self.unit.block, self.column, self.step


@dataclass(frozen=True, slots=True)
class _Arrival:
    """An operand that enters a vector register, or half of one, in front of multiplication `at`."""

    at: int
    place: _Place
    block: int
    value: Value
    columns: int  # of weights in the block

    @property
    def order(self) -> tuple[int, ...]:
        """Weights that share a register enter it one after the other, with others between them."""
        _, column, step = self.place
        half = column % 2 if column >= 0 else 1
        return self.at, *((half, step) if self.columns < 3 else (step, half)), column


def _row_by_row(units: Sequence[Unit]) -> list[_Product]:
    """Block by block, row by row, step by step the products of all columns.

    Of few columns, several rows together: the next step of a product waits for the one before.
    """
    rows: dict[int, dict[tuple[str, ...], list[tuple[int, Unit]]]] = {}
    columns: dict[int, dict[tuple[str, ...], int]] = {}
    for unit in units:
        words, weights = (tuple(factors[side].text for factors in unit.factors) for side in (0, 1))
        known = columns.setdefault(unit.block, {})
        place = known.setdefault(weights, len(known))
        rows.setdefault(unit.block, {}).setdefault(words, []).append((place, unit))
    found: list[_Product] = []
    for block in sorted(rows):
        numbered = list(enumerate(rows[block].values(), len(found)))  # numbers that no other block has
        together = max(1, PRODUCT_CYCLES // len(columns[block]))
        for start in range(0, len(numbered), together):
            group = numbered[start : start + together]
            found += [
                _Product(unit, step, row, group[0][0], place)
                for step in range(max(len(unit.factors) for _, row_units in group for _, unit in row_units))
                for row, row_units in group
                for place, unit in sorted(row_units, key=lambda pair: pair[0])
                if step < len(unit.factors)
            ]
    return found


def _arrivals(products: Sequence[_Product]) -> Iterator[_Arrival]:
    """Every operand once for the row or the block that reads it, and when its register is free."""
    first: dict[tuple[int, int], int] = {}  # by group and step: positions among the multiplications
    last: dict[tuple[int, int], int] = {}
    groups: dict[int, list[int]] = {}  # by block
    columns: dict[int, int] = {}  # by block: how many there are
    alone = {item.group for item in products} - {item.group for item in products if item.row != item.group}
    for position, item in enumerate(products):
        first.setdefault((item.group, item.step), position)
        last[item.group, item.step] = position
        groups.setdefault(item.unit.block, []).append(item.group)
        columns[item.unit.block] = max(columns.get(item.unit.block, 0), item.column + 1)
    seen: set[tuple[_Place, bool]] = set()
    for item in products:
        block, step = item.unit.block, item.step
        words, weights = item.unit.factors[step]
        if (item.words, False) not in seen:  # two enter together, where need be those of two steps
            before = first[item.group, step - step % 2 if item.group in alone else step]
            yield _Arrival(max(0, before - 1), item.words, block, words, columns[block])
        if (item.weights, True) not in seen:
            at = first[item.group, step] - 1
            others = groups.get(block - 1, [])
            if others and others[0] != others[-1]:  # weights that one group alone reads do not stay
                odd = columns[block] % 4 > 0  # two enter together, here only where two steps do
                later = min(step | 1, len(item.unit.factors) - 1) if odd else step
                at = min(at + odd, last.get((others[-1], later), at) + 1)
            yield _Arrival(max(0, at), item.weights, block, weights, columns[block])
        seen |= {(item.words, False), (item.weights, True)}


def _gaps(products: Sequence[_Product]) -> list[int]:
    """Of every product: how many later steps of its group come too soon for the one before.

    An addition of another group fits in between.
    """
    sizes = Counter((item.group, item.step) for item in products)
    return [
        len(item.unit.factors) - 1 - item.step if sizes[item.group, item.step] < PRODUCT_CYCLES else 0
        for item in products
    ]


class _Arrangement:
    """Writes the units of a body in order, and loads at their places."""

    def __init__(self, fresh: Fresh, pure: dict[str, Instruction], loads: dict[str, Definition]) -> None:
        self.lines: list[Line] = []
        self.writer = Writer(self.lines, fresh, ordered=True)
        self.pure, self.loads = pure, loads
        self.joined = _joined(pure, loads)
        self.flips = _flips(pure, loads)
        self.general: dict[tuple[int, str], Value] = {}  # by block: loads in general registers
        self.vectors: dict[tuple[int, str], Value] = {}  # by block: what is computed of them otherwise
        self.operands: dict[tuple[_Place, bool], Value] = {}
        self.columns: dict[int, int] = {}  # by block: how many there are
        self.seated: dict[tuple[tuple[int, int], int], _Place] = {}  # by register and half: weights
        self.cycle = 0
        self.ready: dict[tuple[int, str], int] = {}  # by block: the cycle from which loads can be used

    def of(self, units: Sequence[Unit]) -> list[Line]:
        """The lines."""
        self.lines += [Definition(name, self.pure[name]) for name in self.pure if not self._loads_of(name)]
        products = _row_by_row(units)
        for item in products:
            self.columns[item.unit.block] = max(self.columns.get(item.unit.block, 0), item.column + 1)
        arrivals = sorted(_arrivals(products), key=lambda arrival: arrival.order)
        wanted = [(item.at, (item.block, name)) for item in arrivals for name in self._loads_for(item.value)]
        self._begin([load for at, load in wanted if at == 0])
        sums: dict[str, Value] = {}
        waiting: list[tuple[int, Unit]] = []
        gaps = _gaps(products)
        for position, product in enumerate(products):
            while arrivals and arrivals[0].at <= position:
                self._arrive(arrivals.pop(0))
                if position == 0:
                    self._load_one(wanted, position)
            self._multiply(product, sums)
            if product.step + 1 == len(product.unit.factors):
                waiting.append((self.cycle + PRODUCT_CYCLES - 1, product.unit))
            self._load_one(wanted, position)
            held = gaps[position + 1] if position + 1 < len(products) else 0
            while len(waiting) > held and waiting[0][0] <= self.cycle:
                self._add(waiting.pop(0)[1], sums)
        for _, unit in waiting:
            self._add(unit, sums)
        # other loops may use what the body computes; where none does, LLVM drops it
        self.lines += [*self.loads.values()]
        self.lines += [Definition(name, self.pure[name]) for name in self.pure if self._loads_of(name)]
        return self.lines

    def _begin(self, loads: Sequence[tuple[int, str]]) -> None:
        """What the first multiplication needs: loads of words, of weights, then what is made of words."""
        for block, name in sorted(
            loads, key=lambda load: (bool(self._source(load[1])), self._lanes(load[1]))
        ):
            self._load(block, name)
            self.lines.append(FENCE)

    def _lanes(self, name: str) -> int:
        return self.loads[name.removesuffix(RAW)].instruction.lanes

    def _is_ready(self, block: int, name: str) -> bool:
        """Whether what a number is made of has arrived in its general register."""
        source = self._source(name)
        return not source or self.ready.get((block, source), self.cycle + 1) <= self.cycle

    def _load_one(self, wanted: list[tuple[int, tuple[int, str]]], position: int) -> None:
        """The first number wanted soon whose bits have arrived, beside what was written last."""
        for item in wanted:
            at, load = item
            if load not in self.general and at <= position + AHEAD and self._is_ready(*load):
                self._load(*load)
                self.lines.append(FENCE)
                wanted.remove(item)
                return

    def _multiply(self, product: _Product, sums: dict[str, Value]) -> None:
        words = self.operands[product.words, False]
        weights = self.operands[product.weights, True]
        high = self._seat(product.weights)[1] if weights.lanes > LANES else 0
        name = product.unit.name
        sums[name] = self.writer.multiplied(
            self._half(words, high), self._half(weights, high), sums.get(name)
        )
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

    def _arrive(self, arrival: _Arrival) -> None:
        """Through general registers into a vector register: words into all its lanes, weights into a half."""
        for name in self._loads_for(arrival.value):
            self._load(arrival.block, name)
        value, (_, column, _) = arrival.value, arrival.place
        number = self._splatted(value)
        if number and column < 0:
            found = self._everywhere(self._number(arrival.block, number))
        elif column >= 0 and value.text in self.loads and value.lanes == LANES:
            found = self._joined_half(arrival)
        else:
            found = self._vector(arrival.block, value)
        self.operands[arrival.place, column >= 0] = found
        self.lines.append(FENCE)

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

    def _everywhere(self, number: Value) -> Value:
        first = self.writer.value(insertion(poison("int16", 2 * LANES), number, 0))
        return self.writer.placed(self.writer.value(shuffle(first, (0,) * 2 * LANES)))

    def _joined_half(self, arrival: _Arrival) -> Value:
        """The vector of weights in its half of a register, beside what is still wanted of the other half."""
        register, half = self._seat(arrival.place)
        loaded, whole = self.general[arrival.block, arrival.value.text], poison("int64", 2)
        other = self.seated.get((register, 1 - half))
        joins = other is not None and (half == 1 or not self._is_pair(arrival.place))
        if other is not None and joins:
            whole = self.writer.value(Instruction("bitcast", "int64", 2, (self.operands[other, True],)))
        found = self.writer.placed(self.writer.value(insertion(whole, loaded, half)))
        found = self.writer.value(Instruction("bitcast", "int16", 2 * LANES, (found,)))
        if other is not None and joins:
            self.operands[other, True] = found
        self.seated[register, half] = arrival.place
        return found

    def _seat(self, place: _Place) -> tuple[tuple[int, int], int]:
        """The register of a vector of weights, as a column and a step, and its half of that.

        Two columns of a step share a register; a last one without a neighbour, two steps.
        """
        _, column, step = place
        if self._is_pair(place):
            return (column - column % 2, step), column % 2
        return (column, step - step % 2), step % 2

    def _is_pair(self, place: _Place) -> bool:
        block, column, _ = place
        return column % 2 == 1 or column + 1 < self.columns[block]

    def _loads_for(self, value: Value) -> list[str]:
        """What a value is computed of, words before the numbers in them."""
        names = self._loads_of(value.text)
        words = [self.joined.get(name, (name, 0))[0] for name in names]
        read = [f"{word}{RAW}" for word in words if word in self.flips.values()]
        return list(dict.fromkeys([*read, *words, *names]))

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
        source, lane = self._source(name), self.joined.get(name, ("", 0))[1]
        self.ready[block, name] = self.cycle + (1 if source else LOAD_CYCLES)
        if source:
            self._load(block, source)
            whole = self.general[block, source]
            op, other = ("lshr", 16 * lane) if lane else ("xor", SIGN_BITS[whole.dtype])
            changed = self.writer.value(binary(op, whole, literal(other, whole.dtype)))
            self.general[block, name] = self.writer.value(passed_on(changed, "=r,0", ordered=True))
            return
        self.general[block, name] = self._read(name.removesuffix(RAW))

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

    def _vector(self, block: int, value: Value) -> Value:
        """A value computed of loads; what ends in a vector register gets there at this place."""
        name = self.flips.get(value.text, value.text)
        if name not in self.loads and not self._loads_of(name):
            return value
        if (block, name) in self.vectors:
            return self.vectors[block, name]
        if name in self.loads:
            loaded, lanes = self.general[block, name], value.lanes
            found = (
                self._number(block, name)
                if lanes == 1
                else self.writer.value(Instruction("bitcast", "int16", lanes, (loaded,)))
            )
        else:
            instruction = self.pure[name]
            operands = tuple(self._vector(block, operand) for operand in instruction.operands)
            found = self.writer.value(instruction._replace(operands=operands))
        self.vectors[block, name] = found
        return found
