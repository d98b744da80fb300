"""Stores of a bound loop nest as LLVM instructions: whole vectors, parts, lane by lane, and under guards.

Rounded bytes wait for others on x86-64, until there are as many as make a vector of them, see
packed_bytes.py: until a loop begins or ends, or something reads their buffer or writes it in another way.

Whole cache lines of a result that is large beside the last cache are stored past all caches: nothing would
find them there later, and a line need not be read first. Other threads see them behind a fence (region.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Collection, Hashable

import msgspec

from boards.target import Target
from cross.codegen.buffers import BUFFER_ALIGNMENT, size_bytes
from cross.codegen.instructions import (
    Instruction,
    Value,
    conversion,
    masked_store_function,
    selection,
    shuffle,
)
from cross.codegen.llvm.memory import Place
from cross.codegen.llvm.packed_bytes import VECTORS
from cross.codegen.llvm.rounded_bytes import rounded_byte
from cross.codegen.llvm.values import Values
from cross.codegen.llvm.writer import Writer
from cross.expression.language.dtypes import ITEM_BYTES
from cross.loopnest.nodes import Buffer, Expr, Scope, Statement, loads, stores

LARGE_RESULT = 0.25
"""Of the last cache. Measured on a Zen 4 with 32 MiB of it: R(2+1)D-18, some of whose results take 13 and 29
MB, is 1.05 times as fast on one thread, with a threshold of 4 MB 1.06; a ResNet-50 with 2 MB 0.98."""


class _Waiting(msgspec.Struct, frozen=True):
    """A vector of bytes that a statement stores: as int32, what is added to these, where, and of which
    unrolled row it has which element first: those of one row lie together."""

    buffer: Buffer
    indices: tuple[Expr, ...]
    integers: Value
    zero: int
    place: Place
    row: Hashable
    first: int


def streamed_results(statement: Statement, buffers: Collection[Buffer], target: Target) -> frozenset[str]:
    """Names of the buffers whose whole lines are stored past the caches.

    They are large results of a statement that does not read them again, where a vector is a line (AVX-512):
    elsewhere lines would be written in parts.
    """
    least = LARGE_RESULT * target.l3_bytes
    if not target.masks_lanes or not least:
        return frozenset()
    read = {
        load.buffer.name for _, store in stores(statement) for part in store.parts for load in loads(part)
    }
    return frozenset(
        buffer.name
        for buffer in buffers
        if buffer.role == "output" and buffer.name not in read and size_bytes(buffer) >= least
    )


class Stores:
    """Writes to buffers at the current place of a writer."""

    def __init__(
        self,
        writer: Writer,
        values: Values,
        target: Target,
        rounded: Collection[str],
        streamed: Collection[str],
    ) -> None:
        self.writer = writer
        self.values = values
        self.rounded = rounded  # names of buffers: rounded_buffers of buffers.py
        self.streamed = streamed  # names of buffers: streamed_results
        self.target = target
        self.waiting: dict[int, list[_Waiting]] = {}  # by lanes, of one statement
        self._read: dict[int, tuple[Expr, frozenset[str]]] = {}

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], expr: Expr, guard: Expr | None = None) -> None:
        values = self.values
        values.rounded = buffer.name in self.rounded
        first = self.first_waiting
        if first is not None:
            read = [part for part in (*indices, expr, guard) if part is not None]
            is_read = any(first.buffer.name in self.names_read(part) for part in read)
            if is_read or (first.indices is not indices and first.buffer.name == buffer.name):
                self.store_waiting()
        if guard is None and self.waits(buffer, indices, expr):
            return
        value = values.of_statement(expr)
        holds = None if guard is None else values.of_statement(guard)
        if buffer.scope is Scope.REGISTER:
            key = values.register(buffer, indices)
            values.environment.registers[key] = self.writer.splat(value, key[2])
            return
        if buffer.dtype == "bool":  # a byte each in memory; LLVM 22 may lose the lanes of a vector of bits
            value = self.writer.value(conversion("zext", value, "int8"))
        environment = values.environment
        environment.versions[buffer.name] = environment.versions.get(buffer.name, 0) + 1
        place = values.place(buffer, indices)
        lane_differs = holds is not None and holds.lanes != 1
        if values.lanes == 1:
            assert place is not None
            self.write(buffer, value, place, holds)
            return
        value = self.writer.splat(value, values.lanes)
        if place is not None and place.stride == 1 and not lane_differs:
            self.write(buffer, value, place, holds)
            return
        self.scatter(buffer, indices, value, holds)

    def waits(self, buffer: Buffer, indices: tuple[Expr, ...], expr: Expr) -> bool:
        """Whether it is a vector of rounded bytes, which is stored with others later."""
        values, environment = self.values, self.values.environment
        if buffer.scope is Scope.REGISTER or values.lanes not in values.packed_bytes.lanes:
            return False
        byte = rounded_byte(expr)
        if byte is None:
            return False
        place = values.place(buffer, indices)
        if place is None or place.stride != 1 or environment.vector is None or values.masks():
            return False
        shared = rounded_byte(values.sharing.begin(expr))
        assert shared is not None
        integers = values.rounded_integers(shared)
        environment.versions[buffer.name] = environment.versions.get(buffer.name, 0) + 1
        if self.first_waiting is not None and self.first_waiting.indices is not indices:
            self.store_waiting()
        row = tuple(environment.integers.items())
        alike = self.waiting.setdefault(values.lanes, [])
        if alike and alike[-1].zero != byte.zero:
            self.store_together(self.waiting.pop(values.lanes))
            alike = self.waiting.setdefault(values.lanes, [])
        alike.append(_Waiting(buffer, indices, integers, byte.zero, place, row, environment.vector[1]))
        if len(alike) == VECTORS:
            self.store_together(self.waiting.pop(values.lanes))
        return True

    @property
    def first_waiting(self) -> _Waiting | None:
        """One of those that wait, if any do: all are of one statement."""
        return next((alike[0] for alike in self.waiting.values()), None)

    def names_read(self, expr: Expr) -> frozenset[str]:
        """Names of the buffers that an expression reads."""
        found = self._read.get(id(expr))
        if found is None:
            found = self._read[id(expr)] = expr, frozenset(item.buffer.name for item in loads(expr))
        return found[1]

    def store_waiting(self) -> None:
        """Stores all that waits."""
        for alike in self.waiting.values():
            self.store_together(alike)
        self.waiting = {}

    def store_together(self, waiting: list[_Waiting]) -> None:
        """Stores vectors of as many lanes, those that lie together at once."""
        first, lanes = waiting[0], waiting[0].integers.lanes
        integers = [item.integers for item in waiting]
        whole = self.values.packed_bytes.packed(integers, first.zero, first.buffer.dtype)
        numbered = [(place * lanes, item) for place, item in enumerate(waiting)]
        for _, group in itertools.groupby(numbered, lambda item: (item[1].row, item[1].first - item[0])):
            items = list(group)
            begin, end = items[0][0], items[-1][0] + lanes
            part = whole
            if end - begin < whole.lanes:
                part = self.writer.value(shuffle(whole, tuple(range(begin, end))))
            self.write(first.buffer, part, items[0][1].place)

    def scatter(
        self, buffer: Buffer, indices: tuple[Expr, ...], value: Value, holds: Value | None = None
    ) -> None:
        environment = self.values.environment
        vector = environment.vector
        assert vector is not None
        name, first, _ = vector
        environment.vector = None
        for lane in range(environment.used):
            environment.integers[name] = first + lane
            place = self.values.place(buffer, indices)
            assert place is not None
            guard = None if holds is None else self.writer.extract(holds, lane)
            self.write(buffer, self.writer.extract(value, lane), place, guard)
        del environment.integers[name]
        environment.vector = vector

    def write(self, buffer: Buffer, value: Value, place: Place, holds: Value | None = None) -> None:
        """A store; where a guard does not hold it goes to memory that nobody reads, so it needs no branch."""
        pointer, alignment = place.pointer, place.alignment
        if holds is not None:
            pointer = self.writer.value(selection(holds, pointer, self.unread()))
            alignment = min(alignment, self.target.vector_bytes)
        mask = self.values.used_lanes() if value.lanes > 1 else None
        if mask is None:
            whole = self.target.vector_bytes == place.alignment == value.lanes * ITEM_BYTES[buffer.dtype]
            op = "streamed store" if whole and holds is None and buffer.name in self.streamed else "store"
            self.writer.emit(Instruction(op, "", 1, (value, pointer), alignment))
            return
        function = masked_store_function(value.dtype, value.lanes)
        self.writer.declare(f"void @{function}({value.type}, ptr, {mask.type})")
        self.writer.emit(Instruction("masked store", "", 1, (value, pointer, mask), alignment))

    def unread(self) -> Value:
        """Memory for the stores that a guard turns away. On Arm's cores no more aligned than the stack is: to
        align that further, LLVM overwrites a register that the version at a border has to keep."""
        pointer, size = "%unread", max(self.target.vector_bytes, BUFFER_ALIGNMENT)
        line = f"  {pointer} = alloca [{size} x i8], align {self.target.vector_bytes}"
        if line not in self.writer.blocks[0].prologue:
            self.writer.blocks[0].prologue.append(line)
        return Value(pointer, "pointer")
