"""LLVM IR as text: values, nested scopes, and the placing of what does not change within a loop.

Text is appended in program order. Every loop opens a `Block`, whose `prologue` runs once per iteration
before its body: an address that depends on outer variables only is written into the prologue of the
outermost loop where it is known. So loop-invariant code never enters an inner loop and no optimizer has
to move it out. Equal expressions are written once per block (a dictionary per block).
"""

from __future__ import annotations

import struct
from collections.abc import Hashable
from dataclasses import dataclass, field

from cross.errors import CompileError

ELEMENT_TYPES = {
    "float16": "half",
    "float32": "float",
    "float64": "double",
    "int8": "i8",
    "uint8": "i8",
    "int32": "i32",
    "int64": "i64",
    "bool": "i1",
}
FLOATS = ("float16", "float32", "float64")


@dataclass(frozen=True, slots=True)
class Value:
    """An SSA value or literal: its text, element dtype, and lanes (1 for a scalar)."""

    text: str
    dtype: str
    lanes: int = 1

    @property
    def type(self) -> str:
        return vector_type(self.dtype, self.lanes)


def vector_type(dtype: str, lanes: int) -> str:
    """The LLVM type of so many values of a dtype."""
    element = ELEMENT_TYPES[dtype]
    return element if lanes == 1 else f"<{lanes} x {element}>"


@dataclass(slots=True)
class Block:
    """The text of one loop level, with what is already computed there."""

    label: str
    prologue: list[str] = field(default_factory=list)
    body: list[str] = field(default_factory=list)
    known: dict[Hashable, Value] = field(default_factory=dict)
    known_early: dict[Hashable, Value] = field(
        default_factory=dict
    )  # in the prologue: dominates all of the block

    @property
    def lines(self) -> list[str]:
        return [*self.prologue, *self.body]


class Writer:
    """Appends instructions of one function; `blocks` are the open loop levels, outermost first."""

    def __init__(self) -> None:
        self.blocks: list[Block] = [Block("entry")]
        self.label = "entry"  # the basic block that the text is in now
        self.declarations: set[str] = set()
        self._counter = 0

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

    def emit(self, line: str) -> None:
        """Appends a line to the body of the innermost open block."""
        self.blocks[-1].body.append(line)

    def value(
        self, instruction: str, dtype: str, lanes: int = 1, *, depth: int | None = None, key: Hashable = None
    ) -> Value:
        """The result of an instruction, written once per block for equal keys.

        Args:
            instruction: the text right of the equals sign.
            dtype, lanes: of the result.
            depth: write it into the prologue of that block; None: the current place.
            key: what makes two instructions equal; None: the instruction text.
        """
        key = instruction if key is None else key
        found = self.known(key) if depth is None else self._known_early(key, depth)
        if found is not None:
            return found
        result = Value(self.name(), dtype, lanes)
        line = f"  {result.text} = {instruction}"
        if depth is None:
            self.blocks[-1].body.append(line)
            self.blocks[-1].known[key] = result
        else:
            self.blocks[depth].prologue.append(line)
            self.blocks[depth].known_early[key] = result
        return result

    def known(self, key: Hashable) -> Value | None:
        """A value remembered under a key in any open block."""
        for block in reversed(self.blocks):
            if key in block.known:
                return block.known[key]
            if key in block.known_early:
                return block.known_early[key]
        return None

    def _known_early(self, key: Hashable, depth: int) -> Value | None:
        for block in reversed(self.blocks[: depth + 1]):
            if key in block.known_early:
                return block.known_early[key]
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
        whole = vector_type(value.dtype, lanes)
        if not value.text.startswith("%"):
            return Value(f"splat ({value.type} {value.text})", value.dtype, lanes)
        first = self.value(
            f"insertelement {whole} poison, {value.type} {value.text}, i64 0", value.dtype, lanes
        )
        return self.value(
            f"shufflevector {whole} {first.text}, {whole} poison, <{lanes} x i32> zeroinitializer",
            value.dtype,
            lanes,
        )

    def extract(self, value: Value, lane: int) -> Value:
        """One lane as a scalar."""
        if value.lanes == 1:
            return value
        return self.value(f"extractelement {value.type} {value.text}, i64 {lane}", value.dtype)

    def join(self, lanes: list[Value]) -> Value:
        """A vector of scalars."""
        dtype, count = lanes[0].dtype, len(lanes)
        whole = vector_type(dtype, count)
        text = "poison"
        for position, lane in enumerate(lanes):
            text = self.value(
                f"insertelement {whole} {text}, {lane.type} {lane.text}, i64 {position}", dtype, count
            ).text
        return Value(text, dtype, count)


def literal(value: float | int | bool, dtype: str) -> Value:
    """A constant; floats are written by their bits, so that none is rounded twice."""
    if dtype == "bool":
        return Value("true" if value else "false", dtype)
    if dtype not in FLOATS:
        return Value(str(int(value)), dtype)
    return Value(_float_text(float(value), dtype), dtype)


def _float_text(value: float, dtype: str) -> str:
    if dtype == "float64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if dtype == "float16":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    # LLVM writes a float as the double of the same value.
    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
