"""Bound loop nests to LLVM IR text. Start at `llvm_module`.

Every root statement of a nest becomes a region: a function over a range of iterations of its outermost
parallel loops (collapsed into one), which the thread pool calls, and whose buffers are arguments that do
not alias. The kernel itself runs its regions one after the other:

    i32 @<symbol>(ptr buffers, ptr workspace, ptr pool)

Vectorized loops are written as explicit vector types in chunks of powers of two, unrolled loops as straight
code, and register buffers as SSA values that enter and leave loops as phis.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from boards.target import Target
from cross.codegen import in_order
from cross.codegen.frame import POINTER as FRAME
from cross.codegen.frame import Frame
from cross.codegen.interior import idle_unless, versions
from cross.codegen.llvm_arithmetic import suffix
from cross.codegen.llvm_memory import ZERO_BYTES, ZEROS, Place
from cross.codegen.llvm_text import ELEMENT_TYPES, FLOATS, Value, Writer
from cross.codegen.llvm_text import Block as TextBlock
from cross.codegen.llvm_values import Values
from cross.codegen.steps import ordered
from cross.codegen.uses import buffers, dtypes, free_variables, statements, stored
from cross.errors import CompileError
from cross.expression.terms import ITEM_BYTES
from cross.loopnest.nodes import (
    Allocate,
    Block,
    Buffer,
    Expr,
    For,
    Int,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    Store,
)

BUFFER_ALIGNMENT = 64
ATTRIBUTES = 'nounwind "no-trapping-math"="true"'


def llvm_module(symbol: str, nest: LoopNest, target: Target) -> str:
    """The IR of one kernel.

    Args:
        symbol: the exported C symbol.
        nest: a bound loop nest.
        target: a CPU target; its vector width bounds the vectors that are written.

    Raises:
        CompileError: the nest is not bound, or breaks a rule of the grammar.
    """
    pieces = [f'source_filename = "{symbol}"', ""]
    declarations = {"declare i32 @tfb_parallel_for(ptr, ptr, ptr, i64)"}
    functions: list[str] = []
    calls: list[str] = []
    offsets = workspace_offsets(nest)
    for position, statement in enumerate(nest.body.statements):
        region = _Region(f"{symbol}.region{position}", statement, nest, target)
        functions.append(region.function())
        functions.append(_entry(region, nest, offsets))
        calls.append(_call(region))
        declarations |= region.writer.declarations
    if any(f"@{ZEROS}" in text for text in functions):
        pieces.append(
            f"@{ZEROS} = internal constant [{ZERO_BYTES} x i8] zeroinitializer, align {BUFFER_ALIGNMENT}"
        )
    pieces += [*sorted(declarations), "", *functions, _kernel(symbol, calls)]
    return "\n".join(pieces)


def workspace_offsets(nest: LoopNest) -> dict[str, int]:
    """Where each intermediate buffer starts in the workspace, in bytes; the key "" holds the total."""
    offsets, total = {}, 0
    for buffer in nest.workspace:
        offsets[buffer.name] = total
        total += -(-size_bytes(buffer) // BUFFER_ALIGNMENT) * BUFFER_ALIGNMENT
    offsets[""] = total
    return offsets


def size_bytes(buffer: Buffer) -> int:
    """Bytes of a bound buffer."""
    size = ITEM_BYTES[buffer.dtype]
    for extent in buffer.shape:
        size *= _integer(extent, buffer.name)
    return size


def chunks(extent: int, widest: int, masked: bool = False) -> list[tuple[int, int, int]]:
    """A vectorized loop as (first, lanes, lanes in use): powers of two, the widest first.

    With masks the rest is one vector, not all of whose lanes are in use.
    """
    result, first = [], 0
    while first < extent:
        rest = min(widest, extent - first)
        used = rest if masked else 1 << (rest.bit_length() - 1)
        result.append((first, 1 << (used - 1).bit_length(), used))
        first += used
    return result


def _integer(expr: Expr, where: str) -> int:
    if not isinstance(expr, Int):
        raise CompileError(f"{where}: expected a bound extent, found {expr}")
    return expr.value


# ------------------------------------------------------------------------------------ kernel and regions


def _kernel(symbol: str, calls: Sequence[str]) -> str:
    lines = [f"define i32 @{symbol}(ptr %buffers, ptr %workspace, ptr %pool) nounwind {{", "entry:"]
    lines += ["  %closure = alloca { ptr, ptr }, align 8", "  store ptr %buffers, ptr %closure, align 8"]
    lines.append("  %second = getelementptr inbounds { ptr, ptr }, ptr %closure, i32 0, i32 1")
    lines.append("  store ptr %workspace, ptr %second, align 8")
    for position, call in enumerate(calls):
        following = f"done{position}"
        lines.append(call.replace("%status", f"%status{position}"))
        if "tfb_parallel_for" in call:
            lines.append(f"  %bad{position} = icmp ne i32 %status{position}, 0")
            lines.append(f"  br i1 %bad{position}, label %failed{position}, label %{following}")
            lines += [f"failed{position}:", f"  ret i32 %status{position}", f"{following}:"]
    return "\n".join([*lines, "  ret i32 0", "}", ""])


def _call(region: _Region) -> str:
    if region.extent == 1:
        return f"  call void @{region.name}.entry(ptr %closure, i64 0, i64 1)"
    return (
        f"  %status = call i32 @tfb_parallel_for(ptr %pool, ptr @{region.name}.entry, ptr %closure, "
        f"i64 {region.extent})"
    )


def _entry(region: _Region, nest: LoopNest, offsets: dict[str, int]) -> str:
    """What the pool calls: finds the buffers of the region and hands them over as arguments."""
    lines = [f"define internal void @{region.name}.entry(ptr %closure, i64 %begin, i64 %end) nounwind {{"]
    lines += ["entry:", "  %buffers = load ptr, ptr %closure, align 8"]
    lines.append("  %second = getelementptr inbounds { ptr, ptr }, ptr %closure, i32 0, i32 1")
    lines.append("  %workspace = load ptr, ptr %second, align 8")
    arguments = [buffer.name for buffer in nest.arguments]
    for position, buffer in enumerate(region.buffers):
        if buffer.scope is Scope.ARGUMENT:
            slot = f"getelementptr inbounds ptr, ptr %buffers, i64 {arguments.index(buffer.name)}"
            lines += [
                f"  %slot{position} = {slot}",
                f"  %buffer{position} = load ptr, ptr %slot{position}, align 8",
            ]
        else:
            offset = offsets[buffer.name]
            lines.append(f"  %buffer{position} = getelementptr inbounds i8, ptr %workspace, i64 {offset}")
    passed = "".join(f"ptr %buffer{position}, " for position in range(len(region.buffers)))
    lines.append(f"  call void @{region.name}({passed}i64 %begin, i64 %end)")
    return "\n".join([*lines, "  ret void", "}", ""])


@dataclass(frozen=True, slots=True)
class _Collapsed:
    """The parallel loops of a region, outermost first, and what each iteration runs."""

    loops: tuple[For, ...]
    body: Statement

    @classmethod
    def of(cls, statement: Statement) -> _Collapsed:
        loops = []
        while isinstance(statement, For) and statement.kind is LoopKind.PARALLEL:
            loops.append(statement)
            statement = statement.body
        return cls(tuple(loops), statement)


class _Region:
    """The function of one root statement."""

    def __init__(self, name: str, statement: Statement, nest: LoopNest, target: Target) -> None:
        self.name = name
        self.target = target
        self.collapsed = _Collapsed.of(statement)
        used = buffers(statement)
        self.buffers = [buffer for buffer in (*nest.arguments, *nest.workspace) if buffer.name in used]
        self.writer = Writer()
        pointers = {buffer.name: f"%b{position}" for position, buffer in enumerate(self.buffers)}
        self.pointers = pointers
        self.values = Values(self.writer, pointers, target.masks_lanes)
        self.nest = nest
        self.frame: Frame | None = Frame(self.writer)
        self.borders: list[str] = []  # functions that this one calls

    @property
    def extent(self) -> int:
        """Iterations of the collapsed parallel loops."""
        total = 1
        for loop in self.collapsed.loops:
            total *= _integer(loop.extent, loop.var)
        return total

    def function(self) -> str:
        writer = self.writer
        self.loop_over_range()
        written = stored(self.collapsed.body)
        align = f"align {BUFFER_ALIGNMENT}"
        parameters = "".join(
            f"ptr noalias{'' if buffer.name in written else ' readonly'} {align} %b{position}, "
            for position, buffer in enumerate(self.buffers)
        )
        head = f"define internal void @{self.name}({parameters}i64 %begin, i64 %end) {ATTRIBUTES} {{"
        frame = [] if self.frame is None else self.frame.lines
        return "\n".join(
            [*self.borders, head, "entry:", *frame, *writer.blocks[0].lines, "  ret void", "}", ""]
        )

    def loop_over_range(self) -> None:
        """begin <= index < end, each decoded into the collapsed loops' variables."""
        if not self.collapsed.loops:
            self.statement(self.collapsed.body)
            return
        index = self.open_loop("index", "%begin")
        rest = index
        environment, depth = self.values.environment, self.writer.depth
        for loop in reversed(self.collapsed.loops[1:]):
            extent = str(_integer(loop.extent, loop.var))
            var = self.writer.value(f"urem i64 {rest.text}, {extent}", "int64", depth=depth)
            rest = self.writer.value(f"udiv i64 {rest.text}, {extent}", "int64", depth=depth)
            environment.running[loop.var] = (var, depth)
        environment.running[self.collapsed.loops[0].var] = (rest, depth)
        for loop in self.collapsed.loops:
            environment.ranges[loop.var] = (0, _integer(loop.extent, loop.var) - 1)
        self.statement(self.collapsed.body)
        self.close_loop(index, "%end", [])

    # ------------------------------------------------------------------------------------ statements

    def statement(self, statement: Statement) -> None:
        match statement:
            case Block(items):
                for item in items:
                    self.statement(item)
            case Store(buffer, indices, value, guard):
                self.store(buffer, indices, value, guard)
            case Allocate():
                self.allocated(statement)
            case For(_, _, LoopKind.UNROLLED):
                self.unrolled(statement)
            case For(_, _, LoopKind.VECTORIZED):
                self.vectorized(statement)
            case For():
                self.serial(statement)

    def allocated(self, statement: Allocate) -> None:
        """The body of a buffer; a register tile in two versions where guards can be asked once for all."""
        split = versions(statement, self.values.environment.ranges) if self.may_split(statement) else None
        if split is None:
            self.allocate(statement.buffer)
            self.statement(statement.body)
            return
        writer = self.writer
        condition = self.values.evaluate(split.condition)
        label = writer.fresh_label("tile")
        writer.emit(f"  br i1 {condition.text}, label %{label}.interior, label %{label}.border")
        writer.emit(f"{label}.border:")
        self.call_border(split.border)
        writer.emit(f"  br label %{label}.done")
        writer.blocks.append(TextBlock(f"{label}.interior", [f"{label}.interior:"]))
        writer.label = f"{label}.interior"
        self.allocate(statement.buffer)
        for part in statements(split.interior):
            if isinstance(part, Allocate):
                self.statement(part.body)
                break
        writer.emit(f"  br label %{label}.done")
        inside = writer.blocks.pop()
        writer.blocks[-1].body += inside.lines
        writer.emit(f"{label}.done:")
        writer.label = f"{label}.done"

    def may_split(self, statement: Allocate) -> bool:
        """Whether a tile may have a version at the border: it shares no registers with anything."""
        if self.frame is None or statement.buffer.scope is not Scope.REGISTER:
            return False
        own = {part.buffer.name for part in statements(statement) if isinstance(part, Allocate)}
        outside = buffers(statement).keys() - own
        return not self.values.environment.integers and outside <= self.pointers.keys()

    def call_border(self, border: Statement) -> None:
        """Calls the border version: a function of its own, so that it takes no registers of this one."""
        assert self.frame is not None
        name = f"{self.name}.border{len(self.borders)}"
        found = _Border(name, border, self)
        self.borders.append(found.function())
        self.writer.declarations |= found.writer.declarations
        self.writer.emit(f"  call {_Border.CONVENTION} void @{name}(ptr {FRAME})")

    def allocate(self, buffer: Buffer) -> None:
        if buffer.scope is Scope.LOCAL:
            element = "i8" if buffer.dtype == "bool" else ELEMENT_TYPES[buffer.dtype]
            count = size_bytes(buffer) // ITEM_BYTES[buffer.dtype]
            pointer = self.writer.name("local")
            # In the entry block, so that the stack does not grow with the iterations.
            self.writer.blocks[0].prologue.append(
                f"  {pointer} = alloca [{count} x {element}], align {BUFFER_ALIGNMENT}"
            )
            self.pointers[buffer.name] = pointer
            return
        registers = self.values.environment.registers
        for key in [key for key in registers if key[0] == buffer.name]:
            del registers[key]

    def unrolled(self, loop: For) -> None:
        """Straight code; the outermost unrolled loop has the whole of it put in order."""
        integers, body = self.values.environment.integers, self.writer.blocks[-1].body
        first = len(body)
        for value in range(_integer(loop.extent, loop.var)):
            integers[loop.var] = value
            self.statement(loop.body)
        del integers[loop.var]
        if not integers:
            self.put_in_order(body, first)

    def put_in_order(self, body: list[str], first: int) -> None:
        """The lines of a block from one on in the order that suits the target."""
        lines = ordered(body[first:], self.target, self.writer.name)
        if lines is not None:
            body[first:] = lines
            self.writer.declare(in_order.DECLARATION)

    def vectorized(self, loop: For) -> None:
        environment = self.values.environment
        if environment.vector is not None:
            raise CompileError(
                f"loop {loop.var} is vectorized inside vectorized loop {environment.vector[0]}"
            )
        held = dtypes(loop.body)
        widest = self.target.vector_lanes(max(ITEM_BYTES[dtype] for dtype in held))
        # Whatever floats the other lanes hold is harmless; integers might be divisors.
        masked = self.target.masks_lanes and held <= set(FLOATS)
        for first, lanes, used in chunks(_integer(loop.extent, loop.var), widest, masked):
            if lanes == 1:
                environment.integers[loop.var] = first
                self.statement(loop.body)
                del environment.integers[loop.var]
                continue
            environment.vector, environment.used = (loop.var, first, lanes), used
            self.statement(loop.body)
            environment.vector = None

    def serial(self, loop: For) -> None:
        """A loop that runs: the registers that its body changes become phis."""
        environment = self.values.environment
        changed = set(stored(loop.body))
        for name in changed:
            environment.versions[name] = environment.versions.get(name, 0) + 1
        carried = [key for key in environment.registers if key[0] in changed]
        index = self.open_loop(loop.var, "0", carried)
        environment.running[loop.var] = (index, self.writer.depth)
        environment.ranges[loop.var] = (0, _integer(loop.extent, loop.var) - 1)
        skip = idle_unless(loop.body) if carried else None
        if skip is None:
            self.statement(loop.body)
        else:
            self.where(*skip, carried)
        self.close_loop(index, str(_integer(loop.extent, loop.var)), carried)
        del environment.running[loop.var], environment.ranges[loop.var]

    def where(self, condition: Expr, body: Statement, carried: Sequence[tuple[str, int, int]]) -> None:
        """The body, run where the condition holds: registers that it changes become phis after it."""
        holds = self.values.evaluate(condition)
        if holds.text in ("true", "false"):
            if holds.text == "true":
                self.statement(body)
            return
        writer, registers = self.writer, self.values.environment.registers
        before, label = writer.label, writer.fresh_label("where")
        untouched = {key: registers[key] for key in carried}
        writer.emit(f"  br i1 {holds.text}, label %{label}, label %{label}.done")
        writer.blocks.append(TextBlock(label, [f"{label}:"]))
        writer.label = label
        self.statement(body)
        writer.emit(f"  br label %{label}.done")
        inside = writer.blocks.pop()
        writer.blocks[-1].body += [*inside.lines, f"{label}.done:"]
        for key, old in untouched.items():
            merged = Value(writer.name("r"), old.dtype, old.lanes)
            new = registers[key].text
            phi = f"phi {old.type} [ {old.text}, %{before} ], [ {new}, %{writer.label} ]"
            writer.emit(f"  {merged.text} = {phi}")
            registers[key] = merged
        writer.label = f"{label}.done"

    def open_loop(self, hint: str, start: str, carried: Sequence[tuple[str, int, int]] = ()) -> Value:
        """Starts a loop that tests at its end; its extent is at least one."""
        writer, registers = self.writer, self.values.environment.registers
        label = writer.fresh_label("loop")
        writer.emit(f"  br label %{label}")
        block = TextBlock(label)
        index = Value(writer.name(), "int64")
        block.prologue.append(f"{label}:")
        block.prologue.append(
            f"  {index.text} = phi i64 [ {start}, %{writer.label} ], [ {index.text}.next, %{label}.latch ]"
        )
        for key in carried:
            before = registers[key]
            inside = Value(writer.name("r"), before.dtype, before.lanes)
            block.prologue.append(
                f"  {inside.text} = phi {before.type} [ {before.text}, %{writer.label} ], "
                f"[ @@{label}.{key}@@, %{label}.latch ]"
            )
            registers[key] = inside
        writer.blocks.append(block)
        writer.label = label
        return index

    def close_loop(self, index: Value, end: str, carried: Sequence[tuple[str, int, int]]) -> None:
        writer, registers = self.writer, self.values.environment.registers
        block = writer.blocks.pop()
        label = block.label
        self.put_in_order(block.body, 0)
        lines = block.lines
        for position, key in enumerate(carried, start=2):
            lines[position] = lines[position].replace(f"@@{label}.{key}@@", registers[key].text)
        lines += [
            f"  br label %{label}.latch",
            f"{label}.latch:",
            f"  {index.text}.next = add nuw nsw i64 {index.text}, 1",
            f"  {index.text}.more = icmp slt i64 {index.text}.next, {end}",
            f"  br i1 {index.text}.more, label %{label}, label %{label}.done",
            f"{label}.done:",
        ]
        writer.blocks[-1].body += lines
        writer.label = f"{label}.done"

    # ---------------------------------------------------------------------------------------- stores

    def store(self, buffer: Buffer, indices: tuple[Expr, ...], expr: Expr, guard: Expr | None = None) -> None:
        values = self.values
        value = values.evaluate(expr)
        holds = None if guard is None else values.evaluate(guard)
        if buffer.scope is Scope.REGISTER:
            key = values.register(buffer, indices)
            values.environment.registers[key] = self.writer.splat(value, key[2])
            return
        environment = values.environment
        environment.versions[buffer.name] = environment.versions.get(buffer.name, 0) + 1
        place = values.place(buffer, indices)
        lane_differs = holds is not None and holds.lanes != 1
        if values.lanes == 1:
            assert place is not None
            self.write(buffer, value, place, holds)
            return
        value = self.writer.splat(value, values.lanes)
        if place is not None and place.stride == 1 and buffer.dtype != "bool" and not lane_differs:
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
        if buffer.dtype == "bool":
            value = self.writer.value(f"zext i1 {value.text} to i8", "int8")
        pointer = place.pointer
        if holds is not None:
            chosen = f"select i1 {holds.text}, ptr {pointer}, ptr {self.unread()}"
            pointer = self.writer.value(chosen, "int64").text
        mask = self.values.used_lanes() if value.lanes > 1 else None
        if mask is None:
            self.writer.emit(f"  store {value.type} {value.text}, ptr {pointer}, align {place.alignment}")
            return
        function = f"@llvm.masked.store.v{value.lanes}{suffix(value.dtype)}.p0"
        self.writer.declare(f"void {function}({value.type}, ptr, {mask.type})")
        address = f"ptr align {place.alignment} {pointer}"
        self.writer.emit(
            f"  call void {function}({value.type} {value.text}, {address}, {mask.type} {mask.text})"
        )

    def unread(self) -> str:
        """Memory for the stores that a guard turns away."""
        pointer, kind = "%unread", f"[{max(self.target.vector_bytes, BUFFER_ALIGNMENT)} x i8]"
        line = f"  {pointer} = alloca {kind}, align {BUFFER_ALIGNMENT}"
        if line not in self.writer.blocks[0].prologue:
            self.writer.blocks[0].prologue.append(line)
        return pointer


class _Border(_Region):
    """The function of a tile's version at the border of an image; its one argument is the caller's frame."""

    CONVENTION = "preserve_mostcc"  # saves what it uses: the caller keeps its registers

    def __init__(self, name: str, statement: Statement, caller: _Region) -> None:
        super().__init__(name, statement, caller.nest, caller.target)
        outer, frame = caller.values.environment, caller.frame
        assert frame is not None
        for buffer in sorted(buffers(statement).keys() & caller.pointers.keys()):
            frame.put_pointer(buffer, caller.pointers[buffer])
            self.pointers[buffer] = frame.take_pointer(buffer, self.writer)
        environment = self.values.environment
        for variable in sorted(free_variables(statement)):
            frame.put_variable(variable, outer)
            environment.running[variable] = (frame.take_variable(variable, self.writer), 0)
            environment.ranges[variable] = outer.ranges[variable]
        self.frame = None

    def function(self) -> str:
        self.statement(self.collapsed.body)
        head = (
            f"define internal {self.CONVENTION} void @{self.name}(ptr {FRAME}) noinline cold {ATTRIBUTES} {{"
        )
        return "\n".join([head, "entry:", *self.writer.blocks[0].lines, "  ret void", "}", ""])
