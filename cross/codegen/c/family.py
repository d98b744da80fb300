"""Bound loop nests of a GPU as source text: the printer of all C dialects. Start at `c_program`.

Every root statement of a nest becomes one function over blocks of threads (cross.loopnest.threads says what a
nest means there). Blocks and threads are numbered along one dimension; a function starts by finding its place
in the loops from its number. What stands outside the loops over threads is done by all threads where it is
a loop, and by thread 0 where it is a store.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext

import msgspec

from cross.codegen.buffers import rounded_buffers, rounds, size_bytes, workspace_offsets
from cross.codegen.c.arrays import Array
from cross.codegen.c.dialect import Dialect
from cross.codegen.c.lines import INDENT, Lines
from cross.codegen.c.literals import without_matrices
from cross.codegen.c.names import Names, identifier, loop_name
from cross.codegen.c.registers import Use, own_dimensions, runs_as_vector, uses, vector_registers
from cross.codegen.c.terms import guarded_reads, known_with, without_parentheses
from cross.codegen.c.values import Values
from cross.errors import CompileError
from cross.expression.language.terms import walk
from cross.loopnest.nodes import (
    Allocate,
    Barrier,
    Block,
    Buffer,
    Expr,
    For,
    LoopKind,
    LoopNest,
    Scope,
    Statement,
    Store,
)
from cross.loopnest.printer import buffer_text
from cross.loopnest.threads import THREAD_PRIVATE, LaunchShape, extent_of, is_done_together, launches, region
from cross.schedule.gpu_operands import shared_size

UNROLLED = (LoopKind.UNROLLED, LoopKind.VIRTUAL_THREAD, LoopKind.VECTORIZED)


class Function(msgspec.Struct, frozen=True):
    """One kernel function: blocks and threads of its launch, and its arguments (None: the workspace)."""

    name: str
    blocks: int
    threads: int
    shared_bytes: int
    arguments: tuple[int | None, ...]


class Program(msgspec.Struct, frozen=True):
    """The source of a kernel and the functions to launch, in order."""

    source: str
    functions: tuple[Function, ...]
    workspace_bytes: int


def c_program(symbol: str, nest: LoopNest, dialect: Dialect) -> Program:
    """The source of one kernel.

    Args:
        symbol: what the names of its functions start with.
        nest: a bound nest of a GPU's schedule space.
        dialect: OPENCL_C or CUDA_C.

    Raises:
        CompileError: the nest is not bound, or computes with something that the language has not.
    """
    offsets = workspace_offsets(nest)
    names = Names()
    values = Values(dialect, names)
    texts: list[str] = []
    functions: list[Function] = []
    for shape in launches(without_matrices(nest)):
        writer = _FunctionWriter(nest, shape, values, offsets)
        name = names.fresh(identifier(f"{symbol}_{writer.written}"))
        texts.append(writer.text(name))
        functions.append(
            Function(name, shape.block_count, shape.threads, writer.shared_bytes, writer.arguments)
        )
    heading = [f"// {nest.name}: {nest.flops} floating-point operations"]
    heading += [dialect.preludes[dtype] for dtype in sorted(values.dtypes) if dtype in dialect.preludes]
    heading += [dialect.helper + values.helpers[name] for name in sorted(values.helpers)]
    heading += [
        _table(values, dialect, name, matrix, dtype) for matrix, (name, dtype) in values.tables.items()
    ]
    return Program("\n\n".join(["\n".join(heading), *texts]), tuple(functions), offsets[""])


def _table(
    values: Values, dialect: Dialect, name: str, matrix: tuple[tuple[float, ...], ...], dtype: str
) -> str:
    rows = ", ".join("{" + ", ".join(values.literal(item, dtype) for item in row) + "}" for row in matrix)
    return f"{dialect.constant}{values.type(dtype)} {name}[{len(matrix)}][{len(matrix[0])}] = {{{rows}}};"


class _FunctionWriter(Lines):
    """One launch: its declarations and lines of text."""

    def __init__(self, nest: LoopNest, shape: LaunchShape, values: Values, offsets: dict[str, int]) -> None:
        super().__init__()
        self.nest, self.shape, self.values, self.offsets = nest, shape, values, offsets
        self.dialect, self.names = values.dialect, values.names
        self.shared: list[str] = []
        self.shared_bytes = 0
        self.accessed = False  # whether, since the last barrier, anything that threads share may have been
        found = list(uses(shape.body))
        self.rounded = rounded_buffers(nest)
        self.stored = {use.buffer.name for use in found if use.writes}
        self.touched = {use.buffer.name for use in found}
        own = (*THREAD_PRIVATE, Scope.SHARED)
        self.reads_back = any(  # from global memory
            use.buffer.name in self.stored and not use.writes and use.buffer.scope not in own for use in found
        )
        self.written = _result(found)
        self.own = own_dimensions(shape.body)
        self.vectors = vector_registers(found) if self.dialect.vectors else {}
        places = [place for place, item in enumerate(nest.arguments) if item.name in self.touched]
        uses_workspace = any(item.name in self.touched for item in nest.workspace)
        self.arguments: tuple[int | None, ...] = (*places, None) if uses_workspace else tuple(places)

    def text(self, name: str) -> str:
        """The whole function."""
        head = self.dialect.kernel.format(name=name, threads=self.shape.threads)
        arguments = [item for item in self.nest.arguments if item.name in self.touched]
        parameters = [self._pointer(buffer) for buffer in arguments]
        if None in self.arguments:
            parameters.append(self.dialect.workspace)
        workspace = [self._workspace(item) for item in self.nest.workspace if item.name in self.touched]
        with ExitStack() as scope:
            if self.shape.blocks:
                self.line(f"const int block = {self.dialect.block};")
                scope.enter_context(self._places("block", self.shape.blocks))
            if self.shape.threads > 1:
                self.line(f"const int thread = {self.dialect.thread};")
            self.uniform(self.shape.body)
        return "\n".join([
            f"// {self.written}: {self.shape.block_count} blocks of {self.shape.threads} threads",
            *(f"//   {item.role} {buffer_text(item)}" for item in arguments),
            f"{head}({', '.join(parameters)})",
            "{",
            *(INDENT + line for line in (*workspace, *self.shared)),
            *self.lines,
            "}",
        ])  # fmt: skip

    # --------------------------------------------------------------------------------------- declarations

    def _pointer(self, buffer: Buffer) -> str:
        return self.dialect.pointer.format(
            qualifier="" if buffer.name in self.stored else "const ",
            type=self.values.stored_type(buffer.dtype),
            name=self._array(buffer).name,
        )

    def _workspace(self, buffer: Buffer) -> str:
        text = self.dialect.cast.format(
            qualifier="" if buffer.name in self.stored else "const ",
            type=self.values.stored_type(buffer.dtype),
            name=self._array(buffer).name,
            offset=self.offsets[buffer.name],
        )
        return f"{text}  // {buffer_text(buffer)}"

    def _array(self, buffer: Buffer, dropped: frozenset[int] = frozenset(), lanes: int = 0) -> Array:
        """The buffer under its name, which it has in all functions."""
        known = self.values.arrays.get(buffer.name)
        name = known.name if known is not None else self.names.fresh(identifier(buffer.name))
        array = self.values.arrays[buffer.name] = Array(buffer, name, dropped, lanes)
        return array

    def allocate(self, statement: Allocate) -> None:
        """Declares a buffer: shared ones at the start of the function."""
        buffer = statement.buffer
        if buffer.scope is Scope.SHARED:
            kind, array = self.values.stored_type(buffer.dtype), self._array(buffer)
            text = f"{self.dialect.shared}{kind} {array.name}{array.dimensions};  // {buffer_text(buffer)}"
            self.shared.append(text)
            self.shared_bytes += shared_size(size_bytes(buffer))
            return
        kind, lanes = self.values.type(buffer.dtype), self.vectors.get(buffer.name, 0)
        array = self._array(buffer, self.own.get(buffer.name, frozenset()), lanes)
        self.line(f"{kind}{lanes or ''} {array.name}{array.dimensions};")

    # ------------------------------------------------------------------------------------------ statements

    @contextmanager
    def _variable(self, loop: For) -> Iterator[str]:
        """The C name of a loop variable, within its loop."""
        name = self.names.fresh(loop_name(loop.var))
        self.values.variables[loop.var] = name
        self.values.ranges[loop.var] = (0, extent_of(loop) - 1)
        yield name
        self.names.free(name)

    @contextmanager
    def _places(self, number: str, loops: Sequence[For]) -> Iterator[None]:
        """The variables of collapsed loops, from the number of a block or thread; innermost fastest."""
        inner = math.prod(map(extent_of, loops))
        with ExitStack() as scope:
            for loop in loops:
                outermost = loop is loops[0]
                inner //= extent_of(loop)
                text = number + (f" / {inner}" if inner > 1 else "")
                text += "" if outermost else f" % {extent_of(loop)}"
                name = scope.enter_context(self._variable(loop))
                self.line(f"const int {name} = {text};  // of {extent_of(loop)}")
            yield

    def uniform(self, statement: Statement) -> None:
        """What all threads of a block come to."""
        match statement:
            case Block(statements):
                for alone, items in itertools.groupby(statements, self._is_for_thread_0):
                    if alone:
                        self.thread_0(tuple(items))
                    else:
                        for item in items:
                            self.uniform(item)
            case Barrier():
                if self.shape.threads > 1 and self.accessed:
                    self.line(self.dialect.barrier_for_all if self.reads_back else self.dialect.barrier)
                self.accessed = False
            case Allocate(_, body) if self.shape.threads > 1 or is_done_together(body):
                self.allocate(statement)
                self.uniform(body)
            case For(_, _, LoopKind.THREAD, _):
                self.threads(statement)
                self._note_accesses(statement)
            case For() if is_done_together(statement):
                self.accessed = True  # by the iteration before
                if self.dialect.steps:
                    self.line(self.dialect.steps)
                self.loop(statement, self.uniform)
                self.accessed = True
            case _:
                self.thread_0((statement,))

    def _is_for_thread_0(self, statement: Statement) -> bool:
        return isinstance(statement, For | Store) and not is_done_together(statement)

    def thread_0(self, statements: tuple[Statement, ...]) -> None:
        """What is done once in a block."""
        with self.braces("if (thread == 0)") if self.shape.threads > 1 else nullcontext():
            for item in statements:
                self.own_work(item)
                self._note_accesses(item)

    def _note_accesses(self, statement: Statement) -> None:
        """Remembers that what threads share has been accessed since the last barrier."""
        self.accessed |= any(use.buffer.scope not in THREAD_PRIVATE for use in uses(statement))

    def threads(self, loop: For) -> None:
        """Loops over threads: each thread runs its iteration."""
        loops, body = region(loop)
        count = math.prod(map(extent_of, loops))
        with (
            self.braces(f"if (thread < {count})" if count < self.shape.threads else ""),
            self._places("thread", loops),
        ):
            self.own_work(body)

    def own_work(self, statement: Statement) -> None:
        """What one thread does alone."""
        match statement:
            case Block(statements):
                for item in statements:
                    self.own_work(item)
            case Allocate(_, body):
                with self.braces():
                    self.allocate(statement)
                    self.own_work(body)
            case For() if runs_as_vector(statement) and self.vector(statement):
                return
            case For():
                with self._read_before(statement):
                    self.loop(statement, self.own_work)
            case Store():
                with self._guarded(statement.guard):
                    self.values.rounded = statement.buffer.name in self.rounded
                    value = self.values.scalar(statement.value)
                    self._write(self.values.assignment(statement.buffer, statement.indices, value))
            case Barrier():
                raise CompileError(f"{self.nest.name}: a barrier inside what one thread does")

    def loop(self, loop: For, body: Callable[[Statement], None]) -> None:
        """A loop of C; one that is to be written out carries a pragma."""
        extent = extent_of(loop)
        if loop.kind in UNROLLED:
            self.line("#pragma unroll")
        with self._variable(loop) as name, self.braces(f"for (int {name} = 0; {name} < {extent}; ++{name})"):
            body(loop.body)

    @contextmanager
    def _read_before(self, loop: For) -> Iterator[None]:
        """Within, what all lanes of a vectorized loop read under one condition has been read, by one branch.

        Compilers merge such branches, in time that grows with the square of their number.
        """
        match loop:
            case For(var, _, LoopKind.VECTORIZED, Store(buffer, _, value, None)):
                found = dict.fromkeys(guarded_reads(value, var))
                self.values.rounded = buffer.name in self.rounded or any(map(rounds, walk(value)))
            case _:
                found = {}
        with self.braces() if found else nullcontext():
            texts = [self.values.scalar(item) for item in found]
            for line in self.values.take_lines():
                self.line(line)
            for item, text in zip(found, texts, strict=True):
                name = self.values.kept[item] = self.names.fresh("read")
                self.line(f"const {self.values.type(item.dtype)} {name} = {without_parentheses(text)};")
            yield
        for item in found:
            self.names.free(self.values.kept.pop(item))

    def vector(self, loop: For) -> bool:
        """A store of one vector; False where the language has none for it."""
        store, lanes = loop.body, extent_of(loop)
        assert isinstance(store, Store)
        array = self.values.arrays[store.buffer.name]
        as_whole = array.place(self.values, store.indices, loop.var, lanes) is not None
        self.values.take_lines()
        if not as_whole and not self.dialect.vectors:
            return False
        kind = self.values.type(store.buffer.dtype)
        self.values.rounded = store.buffer.name in self.rounded
        with self._guarded(store.guard):
            value = without_parentheses(self.values.vector(store.value, loop.var, lanes))
            place = array.place(self.values, store.indices, loop.var, lanes)
            if place is None:
                self._write_lanes(store, loop.var, f"{kind}{lanes}", value)
            else:
                self._write(array.vector_assignment(self.values, place, lanes, value))
        return True

    def _write_lanes(self, store: Store, var: str, kind: str, value: str) -> None:
        """A vector whose lanes do not lie side by side in memory."""
        name = self.names.fresh("lanes")
        texts = []
        for number in range(int(kind.lstrip(_LETTERS))):
            with self.values.lane(var, number):
                value_of_lane = f"{name}.s{number:x}"
                texts.append(self.values.assignment(store.buffer, store.indices, value_of_lane))
        with self.braces():
            self._write(f"const {kind} {name} = {value};", *texts)
        self.names.free(name)

    @contextmanager
    def _guarded(self, guard: Expr | None) -> Iterator[None]:
        """Within, a condition holds."""
        if guard is None:
            yield
            return
        text = self.values.scalar(guard)
        head = f"if {text}" if text.startswith("(") else f"if ({text})"
        with ExitStack() as scope:
            lines = self.values.take_lines()
            if lines:
                scope.enter_context(self.braces())
                for line in lines:
                    self.line(line)
            scope.enter_context(self.braces(head))
            self.values.assumed = known_with(guard)
            yield
            self.values.assumed = set()

    def _write(self, *texts: str) -> None:
        """Statements, with the definitions that they need in front."""
        lines = self.values.take_lines()
        with self.braces() if lines else nullcontext():
            for text in (*lines, *texts):
                self.line(text)


_LETTERS = "abcdefghijklmnopqrstuvwxyz"


def _result(found: Sequence[Use]) -> str:
    """The buffer that a launch is for: the last one in global memory that it writes."""
    kept = (Scope.ARGUMENT, Scope.WORKSPACE)
    return next(use.buffer.name for use in reversed(found) if use.writes and use.buffer.scope in kept)
