"""Loops of cores that issue in program order: what an iteration begins with is loaded in the one before.

`arranged` (in_order.py) hides loads behind multiply-adds, but not those that the first multiply-adds wait
for: in a product of 7 pixels and 12 channels they took 20 of 117 cycles. `pipelined` loads them in halves,
through integer registers, beside multiply-adds at the end of the iteration before; for the first iteration in
front of the loop. The last one loads its own once more: nothing is read that the loop does not read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    binary,
    comparison,
    element_pointer,
    instruction_of,
    integer,
    is_multiply_add,
    selection,
)
from cross.codegen.scheduling import halves
from cross.codegen.scheduling.halves import FLOAT, HALF_BYTES, LANES, Define
from cross.codegen.scheduling.in_order import base_of
from cross.expression.language.dtypes import ITEM_BYTES

MOST: Final = 8  # vectors: of 6 to 10 the fewest cycles of four networks by the model; 16 integer registers
Definitions = Mapping[str, Instruction]


class Loop(msgspec.Struct, frozen=True):
    """A loop over `index` from 0 to below `extent`; `prologue` and `body` are what each iteration runs."""

    index: Value
    extent: int
    prologue: Sequence[Line]
    body: Sequence[Line]


class Carried(msgspec.Struct, frozen=True):
    """An integer in the loop: its name, that of its value in front, and of what an iteration leaves."""

    name: str
    before: str
    after: str


class Pipelined(msgspec.Struct):
    """Lines in front of the loop, what goes around it, and its body."""

    before: list[Line] = []
    carried: list[Carried] = []
    body: list[Line] = []


def pipelined(loop: Loop, fresh: Callable[[str], str]) -> Pipelined | None:
    """A loop of the same results; `fresh`: a new SSA name for a hint.

    Returns None for a loop whose body is not arranged, that stores anything, which the next iteration might
    read, or that begins with no loads of vectors at addresses that move by the same distance each time.
    """
    body = [line for line in loop.body if isinstance(line, Definition) or line == FENCE]
    if loop.extent < 2 or FENCE not in body or len(body) < len(loop.body):
        return None
    sums = [place for place, line in enumerate(body) if is_multiply_add(instruction_of(line))]
    if not sums:
        return None
    free = _free(body, sums)
    heads = [line for line in body[: sums[0]] if isinstance(line, Definition)]
    reads = [line for line in heads if _is_vector_load(line.instruction)][: min(MOST, len(free) // 2)]
    lines = [line for line in (*loop.prologue, *body) if isinstance(line, Definition)]
    writer = _Writer(loop, {line.name: line.instruction for line in lines}, fresh)
    if not reads or not all(map(writer.carry, reads)):
        return None
    return writer.write(body, free[-2 * len(reads) :])


def _is_vector_load(instruction: Instruction) -> bool:
    return instruction.op == "load" and (instruction.dtype, instruction.lanes) == (FLOAT, LANES)


def _free(body: Sequence[Definition | Instruction], sums: Sequence[int]) -> list[int]:
    """The places of multiply-adds beside which nothing is loaded yet."""
    ends = [*sums[1:], len(body)]
    return [
        start
        for start, end in zip(sums, ends, strict=True)
        if not any(instruction_of(line).op.startswith("load") for line in body[start:end])
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


class _Writer:
    """Writes the loop. `vectors` have, for each that comes in halves, what begins it and what completes it;
    `ahead` are the addresses of the next iteration, from which each of `loads` loads a half."""

    def __init__(self, loop: Loop, defined: Definitions, fresh: Callable[[str], str]) -> None:
        self.loop, self.defined, self.fresh = loop, defined, fresh
        self.found = Pipelined()
        self.vectors: dict[str, tuple[list[Line], list[Line]]] = {}
        self.loads: list[list[Line]] = []
        self.first: dict[str, Value] = {loop.index.text: integer(0)}  # what values are in the first iteration
        self.following: dict[str, Value] = {}  # the pointers of the next one
        self.moved: dict[int, Value] = {}  # by their steps: by how much these move
        self.ahead: list[Line] = []
        define = self.into(self.ahead)
        self.more = define(
            comparison("icmp slt", define(binary("add", loop.index, integer(1))), integer(loop.extent))
        )

    def into(self, lines: list[Line]) -> Define:
        """Writes instructions behind some lines."""

        def define(instruction: Instruction) -> Value:
            line = Definition(self.fresh("ahead"), instruction)
            lines.append(line)
            return line.value

        return define

    def carry(self, line: Definition) -> bool:
        """Has a load come from the iteration before; False where its address does not move evenly."""
        (pointer,), alignment = line.instruction.operands, line.instruction.detail
        assert isinstance(alignment, int)
        step = _step(pointer, self.loop.index, self.defined)
        if step is None:
            return False
        base, offset = base_of(pointer, self.defined)
        first, following = self.in_first(base), self.in_following(base, step)
        both = []
        for half in range(2):
            distance = ITEM_BYTES[FLOAT] * offset + HALF_BYTES * half
            self.loads.append([])
            before = halves.loaded(self.into(self.found.before), first, distance, alignment)
            after = halves.loaded(self.into(self.loads[-1]), following, distance, alignment)
            both.append(Value(self.fresh("half"), "int64"))
            self.found.carried.append(Carried(both[-1].text, before.text, after.text))
        begins, completes = self.vectors.setdefault(line.name, ([], []))
        low = halves.begun(self.into(begins), both[0])
        completes.append(Definition(line.name, halves.whole(self.into(completes), low, both[1])))
        return True

    def in_first(self, value: Value) -> Value:
        """What a value is in the first iteration, computed in front of the loop."""
        if value.text not in self.first:
            instruction = self.defined.get(value.text)
            if instruction is None:
                return value
            operands = tuple(map(self.in_first, instruction.operands))
            self.first[value.text] = self.into(self.found.before)(instruction._replace(operands=operands))
        return self.first[value.text]

    def in_following(self, base: Value, step: int) -> Value:
        """What a pointer is in the next iteration; in the last one, what it is there."""
        define = self.into(self.ahead)
        if base.text not in self.following:
            if step not in self.moved:
                self.moved[step] = define(selection(self.more, integer(step), integer(0)))
            self.following[base.text] = define(element_pointer(base, "int8", self.moved[step]))
        return self.following[base.text]

    def write(self, lines: Sequence[Definition | Instruction], places: Sequence[int]) -> Pipelined:
        """The lines of the body, with a half loaded behind the multiply-add at each of the places."""
        body, loads = self.found.body, dict(zip(places, self.loads, strict=True))
        waiting = True
        for place, line in enumerate(lines):
            if not (isinstance(line, Definition) and line.name in self.vectors):
                body.append(line)
            elif waiting:
                waiting = False
                body += self.together()
            if place == places[0]:
                body += self.ahead
            body += loads.get(place, [])
        return self.found

    def together(self) -> list[Line]:
        """Puts all vectors together: the start of one shares a cycle with the end of the one before."""
        begins = [begin for begin, _ in self.vectors.values()]
        lines = [*begins[0]]
        for begin, (_, complete) in zip([*begins[1:], []], self.vectors.values(), strict=True):
            lines += [*begin, *complete, FENCE]
        return lines
