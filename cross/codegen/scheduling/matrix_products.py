"""Products of two rows and two columns of bytes by one instruction of Arm cores (Armv8.6, I8MM).

Values write one step of a sum as STEP: for each of `lanes` columns, the products of eight bytes of a row with
eight bytes of the column. `smmla` multiplies two rows, a and b, by two columns, c and d, for four sums:

    a * c    a * d    b * c    b * d

So two sums of the same columns, taken with different rows, share registers from where they begin to where
something else reads them: `with_instructions` finds such sums and writes them in pairs. A sum that is alone
multiplies its row twice, which is as many instructions as `sdot` would take.

A sum is all that one register of an unoptimized program would hold: the results of its steps, and the phis
of the loops that go around them.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import msgspec

from cross.codegen.instructions import (
    Definition,
    Instruction,
    Line,
    Value,
    call,
    insertion,
    poison,
    shuffle,
)

STEP: Final = "step of matrix products"
LANES: Final = (2, 4)
"""How many columns a step may have."""
FUNCTIONS: Final = {
    "sdot8": "llvm.aarch64.neon.smmla.v4i32.v16i8",
    "dot8": "llvm.aarch64.neon.usmmla.v4i32.v16i8",
}
"""The instruction of each operation, by LLVM's name."""

_PHI: Final = re.compile(r"  (%[\w.]+) = phi (?:.+?) \[ (.+?), %([\w.]+) \], \[ (.+?), %([\w.]+) \]")
_NAME: Final = re.compile(r"%[\w.]+")
_LABEL: Final = re.compile(r"([\w.]+):")

Fresh = Callable[[str], str]


def declaration(function: str) -> str:
    """What a module says of the instruction of an operation."""
    return f"<4 x i32> @{FUNCTIONS[function]}(<4 x i32>, <16 x i8>, <16 x i8>)"


def with_instructions(lines: Sequence[Line], fresh: Fresh) -> list[Line]:
    """The lines of a function with instructions in place of every STEP."""
    if not any(isinstance(line, Definition) and line.instruction.op == STEP for line in lines):
        return list(lines)
    return _Writer(fresh, _places(_pairs(_sums(lines)), fresh)).written(lines)


class _Member(msgspec.Struct):
    """One place where a sum gets a value: a step, or a phi with a value for each block that it comes from."""

    name: str
    line: int
    lanes: int
    before: dict[str, str]  # values, by the block that they come from; a step's total has the block ""
    step: Instruction | None = None


class _Sum(msgspec.Struct):
    """Its members in the order of the lines."""

    members: list[_Member] = []
    read: dict[str, int] = {}  # by member: the first line that reads it from outside

    @property
    def form(self) -> tuple[object, ...]:
        """What two sums have in common that may be a pair: the steps, their columns and the loops."""
        places = {member.name: number for number, member in enumerate(self.members)}
        return tuple(
            (
                member.lanes,
                None if member.step is None else (member.step.operands[2], member.step.detail),
                tuple((block, places.get(value)) for block, value in member.before.items()),
            )
            for member in self.members
        )


class _Place(msgspec.Struct):
    """Two members of a pair of sums, or one twice; `four`: of every two columns the name of the four sums."""

    rows: tuple[_Member, _Member]
    four: list[str]


# ------------------------------------------------------------------------------------------------ finding


def _sums(lines: Sequence[Line]) -> list[_Sum]:
    """The sums of a function, in the order in which they begin."""
    members: dict[str, _Member] = {}
    for number, line in enumerate(lines):
        if isinstance(line, Definition) and line.instruction.op == STEP:
            step = line.instruction
            members[line.name] = _Member(line.name, number, step.lanes, {"": step.operands[0].text}, step)
        elif isinstance(line, str) and (found := _PHI.fullmatch(line)) is not None:
            name, one, its_block, other, other_block = found.groups()
            members[name] = _Member(name, number, 0, {its_block: one, other_block: other})
    of = _joined(members)
    sums: dict[str, _Sum] = defaultdict(_Sum)
    for name, member in members.items():
        sums[of[name]].members.append(member)
    found_sums = []
    for item in sums.values():
        lanes = max(member.lanes for member in item.members)
        if lanes:  # there is a step among them
            for member in item.members:
                member.lanes = lanes
            found_sums.append(item)
    _note_readers(found_sums, lines)
    return found_sums


def _joined(members: dict[str, _Member]) -> dict[str, str]:
    """By member, one of the members of the same sum."""
    parents = {name: name for name in members}

    def root(name: str) -> str:
        while parents[name] != name:
            name = parents[name]
        return name

    for name, member in members.items():
        for value in member.before.values():
            if value in members:
                parents[root(name)] = root(value)
    return {name: root(name) for name in members}


def _note_readers(sums: Iterable[_Sum], lines: Sequence[Line]) -> None:
    owner = {member.name: item for item in sums for member in item.members}
    places = {member.line for item in sums for member in item.members}
    for number, line in enumerate(lines):
        for name in () if number in places else _used(line):
            if name in owner:
                owner[name].read.setdefault(name, number)


def _used(line: Line) -> list[str]:
    if isinstance(line, str):
        return _NAME.findall(line)
    return line.instruction.uses if isinstance(line, Definition) else line.uses


def _pairs(sums: Sequence[_Sum]) -> list[tuple[_Sum, _Sum]]:
    """All sums, each with the next of its form if nobody reads the first before the second is there, or
    with itself."""
    waiting: dict[tuple[object, ...], _Sum] = {}
    found = []
    for item in sums:
        form = item.form
        other = waiting.pop(form, None)
        if other is not None and _fit(other, item):
            found.append((other, item))
            continue
        if other is not None:
            found.append((other, other))
        waiting[form] = item
    return [*found, *((item, item) for item in waiting.values())]


def _places(pairs: Iterable[tuple[_Sum, _Sum]], fresh: Fresh) -> list[_Place]:
    return [
        _Place(rows, [fresh("m") for _ in range(rows[0].lanes // 2)])
        for first, second in pairs
        for rows in zip(first.members, second.members, strict=True)
    ]


def _fit(first: _Sum, second: _Sum) -> bool:
    for one, two in zip(first.members, second.members, strict=True):
        read = {first.read.get(one.name), second.read.get(two.name)} - {None}
        if any(number < max(one.line, two.line) for number in read if number is not None):
            return False
    return True


# ------------------------------------------------------------------------------------------------ writing


class _Writer:
    """Writes the lines of a function anew, with sums in pairs."""

    def __init__(self, fresh: Fresh, places: Sequence[_Place]) -> None:
        self.fresh = fresh
        self.lines: list[Line] = []
        self.of = {member.name: (place, row) for place in places for row, member in enumerate(place.rows)}
        self.here = {max(member.line for member in place.rows): place for place in places}
        self.gone = {member.line for place in places for member in place.rows} - self.here.keys()
        self.ends: dict[str, list[tuple[_Place, list[str], list[str]]]] = defaultdict(list)
        """By block, what it joins at its end for a phi: sums of rows, and the names of the four sums."""
        self.phis = {
            number: self._phi(place) for number, place in self.here.items() if place.rows[0].step is None
        }

    def written(self, lines: Sequence[Line]) -> list[Line]:
        block = "entry"
        apart: dict[str, str] = {}  # what this block has taken out of pairs
        for number, line in enumerate(lines):
            if isinstance(line, str) and (label := _LABEL.fullmatch(line)) is not None:
                block, apart = label[1], {}
            if isinstance(line, str) and line.startswith("  br "):
                for place, names, values in self.ends.pop(block, ()):
                    self._join(place, names, values)
            if number in self.phis:
                self.lines += self.phis[number]
            elif number in self.here:
                self._step(self.here[number])
            elif number not in self.gone:
                self.lines.append(self._with_rows(line, apart))
        return self.lines

    def _phi(self, place: _Place) -> list[str]:
        """The phis of a pair of sums."""
        sources = []
        for block in place.rows[0].before:
            values = [member.before[block] for member in place.rows]
            four = self._known(values, place)
            if four is None:
                four = [self.fresh("m") for _ in place.four]
                self.ends[block].append((place, four, values))
            sources.append([f"[ {name}, %{block} ]" for name in four])
        return [
            f"  {name} = phi <4 x i32> {', '.join(source)}"
            for name, *source in zip(place.four, *sources, strict=True)
        ]

    def _known(self, values: Sequence[str], place: _Place) -> list[str] | None:
        """The four sums of every two columns, where values are of a pair already, or all the same."""
        if values[0] in self.of:
            return self.of[values[0]][0].four
        alike = values[0] == values[1] and values[0].startswith("splat")
        return [values[0]] * len(place.four) if alike else None

    def _join(self, place: _Place, names: Iterable[str], values: Sequence[str]) -> None:
        """The sums of two rows as four sums of every two columns."""
        lanes = place.rows[0].lanes
        rows = [Value(value, "int32", lanes) for value in values]
        for number, name in enumerate(names):
            columns = (2 * number, 2 * number + 1)
            wanted = (*columns, *(lanes + column for column in columns))
            self.lines.append(Definition(name, shuffle(rows[0], wanted, rows[1])))

    def _step(self, place: _Place) -> None:
        steps = [member.step for member in place.rows if member.step is not None]
        totals = [member.before[""] for member in place.rows]
        four = self._known(totals, place)
        if four is None:
            four = [self.fresh("m") for _ in place.four]
            self._join(place, four, totals)
        rows = poison("int64", 2)
        for number, step in enumerate(steps):
            rows = self._value(insertion(rows, step.operands[1], number))
        columns, function = steps[0].operands[2], FUNCTIONS[str(steps[0].detail)]
        for number, (name, total) in enumerate(zip(place.four, four, strict=True)):
            two = self._value(shuffle(columns, (2 * number, 2 * number + 1)))
            operands = (Value(total, "int32", 4), self._bytes(rows), self._bytes(two))
            self.lines.append(Definition(name, call(function, "int32", 4, operands)))

    def _with_rows(self, line: Line, apart: dict[str, str]) -> Line:
        """A line that reads sums of rows, behind what takes those out of pairs."""
        for name in _used(line):
            if name not in self.of or name in apart:
                continue
            place, row = self.of[name]
            pairs = [Value(four, "int32", 4) for four in place.four]
            wanted = [4 * number + 2 * row + column for number in range(len(pairs)) for column in (0, 1)]
            apart[name] = self._value(shuffle(pairs[0], tuple(wanted), *pairs[1:])).text
        if isinstance(line, str):
            return _NAME.sub(lambda found: apart.get(found[0], found[0]), line) if apart else line
        if isinstance(line, Definition):
            return Definition(line.name, line.instruction.renamed(apart))
        return line.renamed(apart)

    def _bytes(self, words: Value) -> Value:
        return self._value(Instruction("bitcast", "int8", 16, (words,)))

    def _value(self, instruction: Instruction) -> Value:
        line = Definition(self.fresh("m"), instruction)
        self.lines.append(line)
        return line.value
