"""The functions of a kernel: one for each root statement of its nest, over a range of parallel iterations.

Vectorized loops are written as explicit vector types in chunks of powers of two, unrolled loops as straight
code, and register buffers as SSA values that enter and leave loops as phis.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from boards.target import IN_ORDER_CPUS, Target
from cross.codegen.buffers import BUFFER_ALIGNMENT, bound_extent, size_bytes
from cross.codegen.instructions import (
    FENCE_DECLARATION,
    TYPES,
    Line,
    Value,
    binary,
    integer,
    printed,
)
from cross.codegen.llvm.across_lanes import combine_across
from cross.codegen.llvm.frame import POINTER as FRAME
from cross.codegen.llvm.frame import Frame
from cross.codegen.llvm.matrix_tiles import CONFIGURE, RELEASE, TileCode
from cross.codegen.llvm.memory import stored_dtype
from cross.codegen.llvm.piece import Collapsed, Piece
from cross.codegen.llvm.prefetch import fetch_ahead
from cross.codegen.llvm.stores import Stores, streamed_results
from cross.codegen.llvm.tile_versions import Version, Versions, idle_unless, versions
from cross.codegen.llvm.uses import buffers, dtypes_together, free_variables, reads_itself, stored
from cross.codegen.llvm.values import Values
from cross.codegen.llvm.writer import Block as OpenBlock
from cross.codegen.llvm.writer import Writer
from cross.codegen.scheduling import byte_products, matrix_products
from cross.codegen.scheduling.interleaving import interleaved
from cross.codegen.scheduling.pipelining import Loop, pipelined
from cross.codegen.scheduling.side_by_side import side_by_side
from cross.codegen.scheduling.steps import ordered
from cross.errors import CompileError
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.loopnest.nodes import (
    Allocate,
    Block,
    Buffer,
    Expr,
    For,
    LoopKind,
    Scope,
    Statement,
    Store,
    statements,
)

ATTRIBUTES = 'nounwind "no-trapping-math"="true"'
STORE_FENCE = "void @llvm.x86.sse.sfence()"


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


class Region(Stores):
    """The function of one piece."""

    def __init__(self, name: str, piece: Piece, target: Target) -> None:
        self.piece = piece
        self.pointers = {
            buffer.name: Value(f"%b{position}", "pointer") for position, buffer in enumerate(piece.buffers)
        }
        writer = Writer()
        streamed = streamed_results(piece.statement, piece.buffers, target)
        super().__init__(writer, Values(writer, self.pointers, target), target, piece.rounded, streamed)
        self.name = name
        self.collapsed = Collapsed.of(piece.statement)
        self.held = dtypes_together(piece.statement)  # what decides how many lanes vectors have
        self.frame: Frame | None = Frame(writer)
        self.borders: list[str] = []  # functions that this one calls
        self.tile_configuration = b""  # of tile registers, if there are sums in any
        self.tile_steps: dict[str, TileCode] = {}  # by the variable of a loop: what it is one step of
        self._chunks: dict[tuple[str, int], list[tuple[int, int, int]]] = {}

    def function(self) -> str:
        self.loop_over_range()
        written = stored(self.collapsed.body)
        align = f"align {BUFFER_ALIGNMENT}"
        parameters = "".join(
            f"ptr noalias{'' if buffer.name in written else ' readonly'} {align} %b{position}, "
            for position, buffer in enumerate(self.piece.buffers)
        )
        head = f"define internal void @{self.name}({parameters}i64 %begin, i64 %end) {ATTRIBUTES} {{"
        frame = [] if self.frame is None else self.frame.lines
        body = [*frame, *self.text()]
        before = []
        if self.tile_configuration:
            name = f"@{self.name}.tiles"
            content = "".join(f"\\{byte:02x}" for byte in self.tile_configuration)
            size = len(self.tile_configuration)
            before.append(f'{name} = internal constant [{size} x i8] c"{content}", align {size}')
            body = [f"  call {CONFIGURE.replace('ptr', f'ptr {name}')}", *body, f"  call {RELEASE}"]
        if self.streamed:  # other threads may read what is stored past the caches once this one is done
            self.writer.declare(STORE_FENCE)
            body.append(f"  call {STORE_FENCE}")
        return "\n".join([*before, *self.borders, head, "entry:", *body, "  ret void", "}", ""])

    def text(self) -> list[str]:
        """What is written."""
        lines: Sequence[Line] = self.writer.blocks[0].lines
        for products in (byte_products, matrix_products):
            lines = products.with_instructions(lines, self.writer.name)
        return printed(lines)

    def loop_over_range(self) -> None:
        """begin <= index < end, each decoded into the collapsed loops' variables."""
        if not self.collapsed.loops:
            self.statement(self.collapsed.body)
            return
        index = self.open_loop("index", "%begin")
        rest = index
        environment, depth = self.values.environment, self.writer.depth
        for loop in reversed(self.collapsed.loops[1:]):
            extent = integer(bound_extent(loop.extent, loop.var))
            var = self.writer.value(binary("urem", rest, extent), depth=depth)
            rest = self.writer.value(binary("udiv", rest, extent), depth=depth)
            environment.running[loop.var] = (var, depth)
        environment.running[self.collapsed.loops[0].var] = (rest, depth)
        for loop in self.collapsed.loops:
            environment.ranges[loop.var] = (0, bound_extent(loop.extent, loop.var) - 1)
        self.fetch_ahead(self.collapsed.body)
        self.statement(self.collapsed.body)
        self.close_loop(index, "%end", [], "%begin")

    # ------------------------------------------------------------------------------------ statements

    def statement(self, statement: Statement) -> None:
        match statement:
            case For():
                if statement.var in self.tile_steps:
                    self.tile_steps[statement.var].step()
                elif statement.kind is LoopKind.VECTORIZED:
                    self.vectorized(statement)
                elif not combine_across(statement, self.values, self.target):
                    run = self.unrolled if statement.kind is LoopKind.UNROLLED else self.serial
                    run(statement)
            case Store(buffer, indices, value, guard):
                self.store(buffer, indices, value, guard)
            case Block(items):
                for item in items:
                    self.statement(item)
            case Allocate():
                self.allocated(statement)

    def allocated(self, statement: Allocate) -> None:
        """The body of a buffer; a register tile in two versions where guards can be asked once for all."""
        if statement.buffer.scope is Scope.TILE:
            self.summed_in_tiles(statement)
            return
        split = versions(statement, self.values.environment.ranges) if self.may_split(statement) else None
        if split is None:
            self.allocate(statement.buffer)
            self.statement(statement.body)
            return
        self.first_that_may(split.interiors, lambda: self.call_border(split))

    def first_that_may(self, found: Sequence[Version], otherwise: Callable[[], None]) -> None:
        """The code of the first version whose condition holds, or else another one."""
        writer, label = self.writer, self.writer.fresh_label("tile")
        asked = [self.values.evaluate(condition) for condition, _ in found]
        for number, (holds, (_, statement)) in enumerate(zip(asked, found, strict=True)):
            inside, others = f"{label}.interior{number}", f"{label}.other{number}"
            writer.emit(f"  br i1 {holds.text}, label %{inside}, label %{others}")
            writer.blocks.append(OpenBlock(inside, [f"{inside}:"]))
            writer.label = inside
            tile = next(part for part in statements(statement) if isinstance(part, Allocate))
            self.allocate(tile.buffer)
            self.statement(tile.body)
            writer.emit(f"  br label %{label}.done")
            lines = writer.blocks.pop().lines
            writer.blocks[-1].body += [*lines, f"{others}:"]
            writer.label = others
        otherwise()
        writer.emit(f"  br label %{label}.done")
        writer.emit(f"{label}.done:")
        writer.label = f"{label}.done"

    def summed_in_tiles(self, statement: Allocate) -> None:
        """Sums in tile registers, then what reads them from memory."""
        self.allocate(statement.buffer)
        code = TileCode(statement, self.values)
        if self.tile_configuration not in (b"", code.configuration):
            raise CompileError(f"{self.name}: sums in tile registers of different shapes in one region")
        self.tile_configuration = code.configuration
        code.begin()
        self.tile_steps[code.step_loop] = code
        self.statement(code.update)
        code.end()
        for item in code.rest:
            self.statement(item)

    def may_split(self, statement: Allocate) -> bool:
        """Whether a tile may have a version at the border: it shares no registers with anything."""
        if self.frame is None or statement.buffer.scope is not Scope.REGISTER:
            return False
        own = {part.buffer.name for part in statements(statement) if isinstance(part, Allocate)}
        outside = buffers(statement).keys() - own
        return not self.values.environment.integers and outside <= self.pointers.keys()

    def call_border(self, split: Versions) -> None:
        """Calls the versions at the border: a function of their own, so that they take no registers here."""
        assert self.frame is not None
        name = f"{self.name}.border{len(self.borders)}"
        found = Border(name, split, self)
        self.borders.append(found.function())
        self.writer.declarations |= found.writer.declarations
        self.writer.emit(f"  call {Border.CONVENTION} void @{name}(ptr {FRAME.text})")

    def allocate(self, buffer: Buffer) -> None:
        if buffer.scope in (Scope.LOCAL, Scope.TILE):
            element = TYPES[stored_dtype(buffer.dtype)]
            count = size_bytes(buffer) // ITEM_BYTES[buffer.dtype]
            pointer = self.writer.name("local")
            # In the entry block, so that the stack does not grow with the iterations.
            self.writer.blocks[0].prologue.append(
                f"  {pointer} = alloca [{count} x {element}], align {BUFFER_ALIGNMENT}"
            )
            self.pointers[buffer.name] = Value(pointer, "pointer")
            return
        registers = self.values.environment.registers
        for key in [key for key in registers if key[0] == buffer.name]:
            del registers[key]

    def unrolled(self, loop: For) -> None:
        """Straight code; the outermost unrolled loop has the whole of it put in order."""
        integers, body = self.values.environment.integers, self.writer.blocks[-1].body
        first = len(body)
        for value in range(bound_extent(loop.extent, loop.var)):
            integers[loop.var] = value
            self.statement(loop.body)
        del integers[loop.var]
        if not integers:
            self.store_waiting()
            self.put_in_order(body, first, loop.body)

    def put_in_order(self, body: list[Line], first: int, straight: Statement | None = None) -> None:
        """The lines of a block from one on in the order that suits the target. `straight`: the statement that
        they are, written out, if it is one."""
        lines = None
        if straight is not None and not reads_itself(straight):
            if self.target.cpu in IN_ORDER_CPUS:
                lines = interleaved(body[first:], self.writer.name, self.vectors)
            else:
                lines = side_by_side(body[first:], self.target, self.writer.name, self.vectors)
        self.replace_lines(body, first, lines or ordered(body[first:], self.target, self.writer.name))

    def replace_lines(self, body: list[Line], first: int, lines: list[Line] | None) -> None:
        """The same lines in another order, with fences, in place of those from one on; None: they stay."""
        if lines is not None:
            body[first:] = lines
            self.writer.declare(FENCE_DECLARATION)

    def vectors(self, count: int) -> Value:
        """Memory for vectors of the target, on the stack."""
        pointer, size = self.writer.name("vectors"), self.target.vector_bytes
        # In the entry block, so that the stack does not grow with the iterations.
        self.writer.blocks[0].prologue.append(f"  {pointer} = alloca [{count * size} x i8], align {size}")
        return Value(pointer, "pointer")

    def vectorized(self, loop: For) -> None:
        environment = self.values.environment
        if environment.vector is not None:
            raise CompileError(
                f"loop {loop.var} is vectorized inside vectorized loop {environment.vector[0]}"
            )
        body = self.writer.blocks[-1].body
        begin = len(body)
        for first, lanes, used in self.chunks(loop):
            if lanes == 1:
                environment.integers[loop.var] = first
                self.statement(loop.body)
                del environment.integers[loop.var]
                continue
            environment.vector, environment.used = (loop.var, first, lanes), used
            self.statement(loop.body)
            environment.vector = None
        if not environment.integers:
            self.store_waiting()
            if self.target.cpu not in IN_ORDER_CPUS and not reads_itself(loop.body):
                lines = side_by_side(body[begin:], self.target, self.writer.name, self.vectors)
                self.replace_lines(body, begin, lines)

    def chunks(self, loop: For) -> list[tuple[int, int, int]]:
        """Those of a loop; kept, because each iteration of an unrolled loop around it asks for them."""
        place = loop.var, bound_extent(loop.extent, loop.var)
        found = self._chunks.get(place)
        if found is None:
            held = self.held[loop.var]
            widest = self.target.vector_lanes(max(ITEM_BYTES[dtype] for dtype in held))
            # Whatever floats the other lanes hold is harmless; integers might be divisors.
            masked = self.target.masks_lanes and held <= set(FLOATS)
            found = self._chunks[place] = chunks(place[1], widest, masked)
        return found

    def serial(self, loop: For) -> None:
        """A loop that runs: the registers that its body changes become phis."""
        environment = self.values.environment
        changed = set(stored(loop.body))
        for name in changed:
            environment.versions[name] = environment.versions.get(name, 0) + 1
        carried = [key for key in environment.registers if key[0] in changed]
        index = self.open_loop(loop.var, "0", carried)
        environment.running[loop.var] = (index, self.writer.depth)
        environment.ranges[loop.var] = (0, bound_extent(loop.extent, loop.var) - 1)
        self.fetch_ahead(loop.body)
        skip = idle_unless(loop.body) if carried else None
        if skip is None:
            self.statement(loop.body)
        else:
            self.where(*skip, carried)
        self.close_loop(index, str(bound_extent(loop.extent, loop.var)), carried)
        del environment.running[loop.var], environment.ranges[loop.var]

    def fetch_ahead(self, body: Statement) -> None:
        """What the loop that begins with `body` fetches for later; not where the code generator puts loads in
        order."""
        if self.frame is None or self.target.cpu in IN_ORDER_CPUS:
            return
        environment = self.values.environment
        outer = [loop.var for loop in self.collapsed.loops]
        running = [*outer, *(var for var in environment.running if var not in outer)]
        loops = [(var, environment.ranges[var][1] + 1) for var in running]
        fetch_ahead(body, loops, len(outer), self.values, self.target)

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
        writer.blocks.append(OpenBlock(label, [f"{label}:"]))
        writer.label = label
        self.statement(body)
        self.store_waiting()
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
        self.store_waiting()
        writer, registers = self.writer, self.values.environment.registers
        label = writer.fresh_label("loop")
        writer.emit(f"  br label %{label}")
        block = OpenBlock(label, entered_from=writer.label)
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

    def pipeline(self, block: OpenBlock, index: Value, extent: int, phis: int) -> None:
        """Lets a loop load in each iteration what the next one begins with."""
        found = pipelined(Loop(index, extent, block.prologue[phis:], block.body), self.writer.name)
        if found is None:
            return
        around = self.writer.blocks[-1].body
        around[-1:] = [*found.before, around[-1]]  # the last line goes to the loop
        for item in found.carried:
            phi = f"phi i64 [ {item.before}, %{block.entered_from} ], [ {item.after}, %{block.label}.latch ]"
            block.prologue.insert(phis, f"  {item.name} = {phi}")
        block.body[:] = found.body

    def close_loop(
        self, index: Value, end: str, carried: Sequence[tuple[str, int, int]], start: str = "0"
    ) -> None:
        self.store_waiting()
        writer, registers = self.writer, self.values.environment.registers
        block = writer.blocks.pop()
        label = block.label
        self.put_in_order(block.body, 0)
        if self.target.cpu in IN_ORDER_CPUS and start == "0":
            self.pipeline(block, index, int(end), 2 + len(carried))
        lines = block.lines
        for position, key in enumerate(carried, start=2):
            lines[position] = str(lines[position]).replace(f"@@{label}.{key}@@", registers[key].text)
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


class Border(Region):
    """The function of a tile's versions at the border of an image; its one argument is the caller's frame."""

    CONVENTION = "preserve_mostcc"  # saves what it uses: the caller keeps its registers

    def __init__(self, name: str, split: Versions, caller: Region) -> None:
        statement = split.border
        super().__init__(name, replace(caller.piece, statement=statement), caller.target)
        self.edges = split.edges
        self.streamed = caller.streamed  # which has the fence
        outer, frame = caller.values.environment, caller.frame
        assert frame is not None
        for buffer in sorted(buffers(statement).keys() & caller.pointers.keys()):
            frame.put(buffer, caller.pointers[buffer])
            self.pointers[buffer] = frame.take(buffer, "pointer", self.writer)
        environment = self.values.environment
        for variable in sorted(free_variables(statement)):
            kept = f"{variable} of a loop"
            frame.put(kept, *outer.running[variable])
            environment.running[variable] = (frame.take(kept, "int64", self.writer), 0)
            environment.ranges[variable] = outer.ranges[variable]
        self.frame = None

    def function(self) -> str:
        self.first_that_may(self.edges, lambda: self.statement(self.collapsed.body))
        signature = f"{self.CONVENTION} void @{self.name}(ptr {FRAME.text})"
        head = f"define internal {signature} noinline cold {ATTRIBUTES} {{"
        return "\n".join([head, "entry:", *self.text(), "  ret void", "}", ""])
