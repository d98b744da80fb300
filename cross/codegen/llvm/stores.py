"""Stores of a bound loop nest as LLVM instructions: whole vectors, parts, lane by lane, and under guards."""

from __future__ import annotations

from collections.abc import Collection

from boards.target import Target
from cross.codegen.buffers import BUFFER_ALIGNMENT
from cross.codegen.instructions import (
    Instruction,
    Value,
    conversion,
    masked_store_function,
    selection,
)
from cross.codegen.llvm.memory import Place
from cross.codegen.llvm.values import Values
from cross.codegen.llvm.writer import Writer
from cross.loopnest.nodes import Buffer, Expr, Scope


class Stores:
    """Writes to buffers at the current place of a writer."""

    def __init__(self, writer: Writer, values: Values, target: Target, rounded: Collection[str]) -> None:
        self.writer = writer
        self.values = values
        self.rounded = rounded  # names of buffers: rounded_buffers of buffers.py
        self.target = target

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], expr: Expr, guard: Expr | None = None) -> None:
        values = self.values
        values.rounded = buffer.name in self.rounded
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
        pointer = place.pointer
        if holds is not None:
            pointer = self.writer.value(selection(holds, pointer, self.unread()))
        mask = self.values.used_lanes() if value.lanes > 1 else None
        if mask is None:
            self.writer.emit(Instruction("store", "", 1, (value, pointer), place.alignment))
            return
        function = masked_store_function(value.dtype, value.lanes)
        self.writer.declare(f"void @{function}({value.type}, ptr, {mask.type})")
        self.writer.emit(Instruction("masked store", "", 1, (value, pointer, mask), place.alignment))

    def unread(self) -> Value:
        """Memory for the stores that a guard turns away."""
        pointer, kind = "%unread", f"[{max(self.target.vector_bytes, BUFFER_ALIGNMENT)} x i8]"
        line = f"  {pointer} = alloca {kind}, align {BUFFER_ALIGNMENT}"
        if line not in self.writer.blocks[0].prologue:
            self.writer.blocks[0].prologue.append(line)
        return Value(pointer, "pointer")
