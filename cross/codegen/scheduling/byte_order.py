"""The order of products of pairs of bytes on a core that issues in program order.

`row_by_row` orders a loop body (inspection/cortex_a53.py has the rules of the machine). The weights of all
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

import msgspec

from cross.codegen.instructions import (
    FENCE,
    Instruction,
    Line,
    Value,
    insertion,
    poison,
)
from cross.codegen.scheduling.byte_loads import PRODUCT_CYCLES, RAW, Body, Loads
from cross.codegen.scheduling.byte_products import LANES, Fresh, Unit


def row_by_row(body: Body, fresh: Fresh) -> list[Line]:
    """The lines in the order in which they should issue, with the same results."""
    return _RowByRow(fresh, body).of(body.units)


_Place = tuple[int, int, int]
"""Of an operand: its row or, of weights, block; the column of weights or -1; the step."""


class _Product(msgspec.Struct, frozen=True):
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


class _Arrival(msgspec.Struct, frozen=True):
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


def _products(units: Sequence[Unit]) -> list[_Product]:
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


class _RowByRow(Loads):
    """Writes the units of a body in order, and loads at their places."""

    def __init__(self, fresh: Fresh, body: Body) -> None:
        super().__init__(fresh, body)
        self.vectors: dict[tuple[int, str], Value] = {}  # by block: what is computed of loads otherwise
        self.operands: dict[tuple[_Place, bool], Value] = {}
        self.columns: dict[int, int] = {}  # by block: how many there are
        self.seated: dict[tuple[tuple[int, int], int], _Place] = {}  # by register and half: weights

    def of(self, units: Sequence[Unit]) -> list[Line]:
        """The lines."""
        self.lines += self._without_loads()
        products = _products(units)
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
        self.lines += self._left_over()
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

    def _multiply(self, product: _Product, sums: dict[str, Value]) -> None:
        words = self.operands[product.words, False]
        weights = self.operands[product.weights, True]
        high = self._seat(product.weights)[1] if weights.lanes > LANES else 0
        self._product(product.unit, (words, weights), high, sums)

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
