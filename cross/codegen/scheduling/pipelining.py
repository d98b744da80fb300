"""Loops of cores that issue in program order: what an iteration begins with is loaded in the one before.

`arranged` (in_order.py) hides loads behind multiply-adds, but not those that the first multiply-adds wait
for: in a product of 7 pixels and 12 channels they took 20 of 117 cycles. `pipelined` loads them in halves,
through integer registers, beside multiply-adds at the end of the iteration before; for the first iteration in
front of the loop. The last one loads its own once more: nothing is read that the loop does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    binary,
    comparison,
    element_pointer,
    insertion,
    integer,
    is_constant_place,
    is_multiply_add,
    passed_on,
    poison,
    selection,
)
from cross.expression.language.dtypes import ITEM_BYTES

MOST: Final = 8  # vectors: of 6 to 10 the fewest cycles of four networks by the model; 16 integer registers
FLOAT: Final = "float32"
LANES: Final = 4
HALF_BYTES: Final = 8

Definitions = Mapping[str, Instruction]


@dataclass(frozen=True, slots=True)
class Loop:
    """A loop over `index` from 0 to below `extent`; `prologue` and `body` are what each iteration runs."""

    index: Value
    extent: int
    prologue: Sequence[Line]
    body: Sequence[Line]


@dataclass(frozen=True, slots=True)
class Carried:
    """An integer in the loop: its name, that of its value in front, and of what an iteration leaves."""

    name: str
    before: str
    after: str


@dataclass(slots=True)
class Pipelined:
    """Lines in front of the loop, what goes around it, and its body."""

    before: list[Line] = field(default_factory=list)
    carried: list[Carried] = field(default_factory=list)
    body: list[Line] = field(default_factory=list)


def pipelined(loop: Loop, fresh: Callable[[str], str]) -> Pipelined | None:
    """A loop of the same results; `fresh`: a new SSA name for a hint.

    Returns None for a loop whose body is not arranged, that stores anything, which the next iteration might
    read, or that begins with no loads of vectors at addresses that move by the same distance each time.
    """
    only_computes = all(isinstance(line, Definition) or line == FENCE for line in loop.body)
    if loop.extent < 2 or FENCE not in loop.body or not only_computes:
        return None
    lines = [line for line in (*loop.prologue, *loop.body) if isinstance(line, Definition)]
    defined = {line.name: line.instruction for line in lines}
    sums = [place for place, line in enumerate(loop.body) if is_multiply_add(_instruction(line))]
    if not sums:
        return None
    free = _free(loop.body, sums)
    heads = [line for line in loop.body[: sums[0]] if isinstance(line, Definition)]
    reads = [line for line in heads if _is_vector_load(line.instruction)][: min(MOST, len(free) // 2)]
    steps = [_step(line.instruction.operands[0], loop.index, defined) for line in reads]
    if not reads or None in steps:
        return None
    writer = _Writer(loop, defined, fresh)
    for line, step in zip(reads, steps, strict=True):
        assert step is not None
        writer.carry(line, step)
    return writer.write(free[-2 * len(reads) :])


def _instruction(line: Line) -> Instruction:
    return line.instruction if isinstance(line, Definition) else FENCE if isinstance(line, str) else line


def _is_vector_load(instruction: Instruction) -> bool:
    return instruction.op == "load" and (instruction.dtype, instruction.lanes) == (FLOAT, LANES)


def _free(body: Sequence[Line], sums: Sequence[int]) -> list[int]:
    """The places of multiply-adds beside which nothing is loaded yet."""
    ends = [*sums[1:], len(body)]
    return [
        start
        for start, end in zip(sums, ends, strict=True)
        if not any(_instruction(line).op.startswith("load") for line in body[start:end])
    ]


def _step(value: Value, index: Value, defined: Definitions) -> int | None:
    """By how much an integer or a pointer, in bytes, grows with the index; None where that may differ."""
    if value.text == index.text:
        return 1
    instruction = defined.get(value.text)
    if instruction is None:
        return 0
    if instruction.op == "load":
        return None
    steps = [_step(operand, index, defined) for operand in instruction.operands]
    if not any(steps):
        return None if None in steps else 0
    match instruction, steps:
        case Instruction("getelementptr", detail=str(dtype)), [int(base), int(distance)]:
            return base + distance * ITEM_BYTES[dtype]
        case Instruction("add"), [int(left), int(right)]:
            return left + right
        case Instruction("mul", operands=(_, factor)), [int(step), 0] if not factor.is_name:
            return step * int(factor.text)
        case Instruction("asm", operands=(_,)), [int(step)]:
            return step
    return None


def _base(pointer: Value, defined: Definitions) -> tuple[Value, int]:
    """The pointer from which another one is counted, and how many bytes it is on."""
    place = defined.get(pointer.text)
    if place is None or not is_constant_place(place):
        return pointer, 0
    base, offset = _base(place.operands[0], defined)
    return base, offset + int(place.operands[1].text) * ITEM_BYTES[str(place.detail)]


class _Writer:
    """Writes the loop: `lows` and `wholes` put together what came by halves, `ahead` are the addresses of the
    next iteration, `loads` each load a half from there."""

    def __init__(self, loop: Loop, defined: Definitions, fresh: Callable[[str], str]) -> None:
        self.loop, self.defined, self.fresh = loop, defined, fresh
        self.found = Pipelined()
        self.loads: list[list[Line]] = []
        self.lows: list[list[Line]] = []
        self.wholes: list[list[Line]] = []
        self.names: set[str] = set()
        self.first: dict[str, Value] = {loop.index.text: integer(0)}  # what values are in the first iteration
        self.following: dict[str, Value] = {}  # the pointers of the next one
        self.moved: dict[int, Value] = {}  # by their steps: by how much these move
        self.ahead: list[Line] = []
        following = self.define(self.ahead, binary("add", loop.index, integer(1)))
        self.more = self.define(self.ahead, comparison("icmp slt", following, integer(loop.extent)))

    def define(self, lines: list[Line], instruction: Instruction) -> Value:
        line = Definition(self.fresh("ahead"), instruction)
        lines.append(line)
        return line.value

    def carry(self, line: Definition, step: int) -> None:
        """Has a load come from the iteration before."""
        base, offset = _base(line.instruction.operands[0], self.defined)
        alignment = line.instruction.detail
        assert isinstance(alignment, int)
        first, following = self.in_first(base), self.in_following(base, step)
        halves = []
        for distance in (offset, offset + HALF_BYTES):
            before = self.half(self.found.before, first, distance, alignment)
            self.loads.append([])
            after = self.half(self.loads[-1], following, distance, alignment)
            self.found.carried.append(Carried(self.fresh("half"), before.text, after.text))
            halves.append(Value(self.found.carried[-1].name, "int64"))
        self.lows.append([])
        low = self.define(self.lows[-1], insertion(poison("int64", 2), halves[0], 0))
        low = self.define(self.lows[-1], passed_on(low, "=w,0", ordered=True))
        self.wholes.append([])
        both = self.define(self.wholes[-1], insertion(low, halves[1], 1))
        self.wholes[-1].append(Definition(line.name, Instruction("bitcast", FLOAT, LANES, (both,))))
        self.names.add(line.name)

    def half(self, lines: list[Line], base: Value, distance: int, alignment: int) -> Value:
        """Loads half a vector; the empty assembly keeps LLVM from joining the halves again."""
        place = self.define(lines, element_pointer(base, "int8", integer(distance)))
        load = Instruction("load volatile", "int64", 1, (place,), min(alignment, HALF_BYTES))
        loaded = self.define(lines, load)
        return self.define(lines, passed_on(loaded, "=r,0", ordered=False))

    def in_first(self, value: Value) -> Value:
        """What a value is in the first iteration, computed in front of the loop."""
        if value.text not in self.defined and value.text not in self.first:
            return value
        if value.text not in self.first:
            instruction = self.defined[value.text]
            operands = tuple(map(self.in_first, instruction.operands))
            self.first[value.text] = self.define(self.found.before, instruction._replace(operands=operands))
        return self.first[value.text]

    def in_following(self, base: Value, step: int) -> Value:
        """What a pointer is in the next iteration; in the last one, what it is there."""
        if base.text not in self.following:
            if step not in self.moved:
                self.moved[step] = self.define(self.ahead, selection(self.more, integer(step), integer(0)))
            place = element_pointer(base, "int8", self.moved[step])
            self.following[base.text] = self.define(self.ahead, place)
        return self.following[base.text]

    def write(self, places: Sequence[int]) -> Pipelined:
        """With a half loaded behind the multiply-add at each of the places."""
        body = self.found.body
        loads = dict(zip(places, self.loads, strict=True))
        begun = False
        for place, line in enumerate(self.loop.body):
            if not (isinstance(line, Definition) and line.name in self.names):
                body.append(line)
            elif not begun:
                begun = True
                body += self.lows[0]
                for low, whole in zip([*self.lows[1:], []], self.wholes, strict=True):
                    body += [
                        *low,
                        *whole,
                        FENCE,
                    ]  # the start of one vector and the end of another share a cycle
            if place == places[0]:
                body += self.ahead
            body += loads.get(place, [])
        return self.found
