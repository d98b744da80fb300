"""The instructions of a function: nested scopes, and the placing of what does not change within a loop.

Lines are appended in program order. Every loop opens a `Block`, whose `prologue` runs once per iteration
before its body: an address that depends on outer variables only is written into the prologue of the
outermost loop where it is known. So loop-invariant code never enters an inner loop and no optimizer has
to move it out. Equal expressions are written once per block (a dictionary per block).
"""

from __future__ import annotations

from collections.abc import Hashable

import msgspec

from cross.codegen.instructions import (
    Definition,
    Instruction,
    Line,
    Value,
    extraction,
    insertion,
    literal_vector,
    poison,
    shuffle,
)
from cross.errors import CompileError


class Block(msgspec.Struct):
    """The lines of one loop level, with what is already computed there."""

    label: str
    prologue: list[Line] = []
    body: list[Line] = []
    known: dict[int, Value] = {}  # by the number of a key
    known_early: dict[int, Value] = {}  # in the prologue: dominates all of the block
    addresses: dict[Hashable, tuple[Value, int]] = {}  # and alignments, known early
    entered_from: str = ""  # of a loop: the label of the basic block in front of it

    @property
    def lines(self) -> list[Line]:
        return [*self.prologue, *self.body]


class Writer:
    """Appends instructions of one function; `blocks` are the open loop levels, outermost first."""

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block("entry")]
        self.label = "entry"  # the basic block that is being written
        self.declarations: set[str] = set()
        self._counter = 0
        self._numbers: dict[Hashable, int] = {}
        """Of keys: an instruction is hashed once, not once for every block that may know it."""

    def name(self, hint: str = "v") -> str:
        """A fresh SSA name."""
        self._counter += 1
        return f"%{hint}{self._counter}"

    def fresh_label(self, hint: str) -> str:
        """A fresh basic block label, without the %."""
        self._counter += 1
        return f"{hint}{self._counter}"

    @property
    def depth(self) -> int:
        return len(self.blocks) - 1

    def emit(self, line: Line) -> None:
        """Appends a line to the body of the innermost open block."""
        self.blocks[-1].body.append(line)

    def value(self, instruction: Instruction, *, depth: int | None = None, key: Hashable = None) -> Value:
        """The result of an instruction, written once per block for equal keys.

        Args:
            instruction: one that has a result.
            depth: write it into the prologue of that block; None: the current place.
            key: what makes two instructions equal; None: the instruction.
        """
        number = self._numbers.setdefault(instruction if key is None else key, len(self._numbers))
        found = self._known(number) if depth is None else self._known_early(number, depth)
        if found is not None:
            return found
        result = Value(self.name(), instruction.dtype, instruction.lanes)
        block = self.blocks[-1] if depth is None else self.blocks[depth]
        if depth is None:
            block.body.append(Definition(result.text, instruction))
            block.known[number] = result
        else:
            block.prologue.append(Definition(result.text, instruction))
            block.known_early[number] = result
        return result

    def _known(self, number: int) -> Value | None:
        """A value remembered under the number of a key in any open block."""
        for block in reversed(self.blocks):
            if number in block.known:
                return block.known[number]
            if number in block.known_early:
                return block.known_early[number]
        return None

    def _known_early(self, number: int, depth: int) -> Value | None:
        for block in reversed(self.blocks[: depth + 1]):
            if number in block.known_early:
                return block.known_early[number]
        return None

    def known_address(self, key: Hashable) -> tuple[Value, int] | None:
        """An address and its alignment, remembered under a key in any open block."""
        for block in reversed(self.blocks):
            if key in block.addresses:
                return block.addresses[key]
        return None

    def declare(self, declaration: str) -> None:
        """Adds an external declaration to the module."""
        self.declarations.add(f"declare {declaration}")

    def splat(self, value: Value, lanes: int) -> Value:
        """The value in every lane; a vector of that width is returned as it is."""
        if value.lanes == lanes:
            return value
        if value.lanes != 1:
            raise CompileError(f"cannot widen a vector of {value.lanes} lanes to {lanes}")
        if not value.is_name:
            return literal_vector(value, lanes)
        first = self.value(insertion(poison(value.dtype, lanes), value, 0))
        return self.value(shuffle(first, (0,) * lanes))

    def extract(self, value: Value, lane: int) -> Value:
        """One lane as a scalar."""
        return value if value.lanes == 1 else self.value(extraction(value, lane))

    def join(self, lanes: list[Value]) -> Value:
        """A vector of scalars."""
        whole = poison(lanes[0].dtype, len(lanes))
        for position, lane in enumerate(lanes):
            whole = self.value(insertion(whole, lane, position))
        return whole
