"""Sums in tile registers (AMX): what a buffer of Scope.TILE becomes. Start at `TileCode`.

    allocate c in tile                        c is memory on the stack; sums are tile registers
      c[x, j] = 0                             tilezero of all of them
      for k0, for k1 in 16, x, j:             for k0: tileloadd of rows of a and columns of b, and
        c[x, j] += dot4(a[x, k], b[k, j])       tdpbusd for each of their pairs
      ... = f(c[x, j])                        tilestored of all sums to c, then f as ever

Registers are named here, not by LLVM, which knows of these instructions only that they touch memory. All of
a region have one configuration, loaded where its function begins. Source of encoding and instructions: Intel
64 and IA-32 Architectures Software Developer's Manual, volume 1, chapter 18, and volume 2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from cross.codegen.buffers import bound_extent
from cross.codegen.instructions import Value, integer
from cross.codegen.llvm.memory import Memory
from cross.errors import CompileError
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Binary, Call, Const
from cross.loopnest.nodes import (
    Allocate,
    Block,
    Buffer,
    For,
    Load,
    LoopKind,
    Statement,
    Store,
    stores,
)
from cross.schedule.matrix_tiles import COLUMNS, REGISTERS, ROWS, WORD_BYTES, WORDS, registers_of

INSTRUCTIONS: Final = {"dot4": "tdpbusd", "sdot4": "tdpbssd"}
ALLOW: Final = "i32 @tfb_allow_tiles()"
CONFIGURE: Final = "void @llvm.x86.ldtilecfg(ptr)"
RELEASE: Final = "void @llvm.x86.tilerelease()"
_OTHERS: Final = (
    "void @llvm.x86.tilezero(i8)",
    "void @llvm.x86.tileloadd64(i8, ptr, i64)",
    "void @llvm.x86.tilestored64(i8, ptr, i64)",
    *(f"void @llvm.x86.{name}(i8, i8, i8)" for name in INSTRUCTIONS.values()),
)
_CONFIGURATION_BYTES: Final = 64


class Shape(msgspec.Struct, frozen=True):
    """What the registers of a region hold: rows of data, and words of these."""

    rows: int
    words: int

    def configuration(self, sums: int, rows_held: bool, held: int) -> bytes:
        """What `ldtilecfg` reads: palette 1, then bytes of a row and rows, register by register."""
        data, weights = (self.rows, WORD_BYTES * self.words), (self.words, WORD_BYTES * COLUMNS)
        first, second = (data, weights) if rows_held else (weights, data)
        streamed = REGISTERS - sums - held
        shapes = [(self.rows, WORD_BYTES * COLUMNS)] * sums + [first] * held + [second] * streamed
        found = bytearray(_CONFIGURATION_BYTES)
        found[0] = 1
        for number, (rows, row_bytes) in enumerate(shapes):
            found[16 + 2 * number : 18 + 2 * number] = row_bytes.to_bytes(2, "little")
            found[48 + number] = rows
        return bytes(found)


class _Product(msgspec.Struct, frozen=True):
    """c[rows, columns] += function(data, weights), over the words of a loop."""

    words: For
    rows: tuple[For, ...]  # unrolled, outermost first
    columns: For
    function: str
    data: Load
    weights: Load


class TileCode:
    """Writes the tile instructions of one allocation at the current place of a writer.

    Attributes:
        update: the loops of the sum, to be written as they are but for `step_loop`.
        rest: what follows them.
        configuration: of the registers.
    """

    def __init__(self, statement: Allocate, memory: Memory) -> None:
        self.buffer, self.memory, self.writer = statement.buffer, memory, memory.writer
        start, self.update, *self.rest = _flat(statement.body)
        if any(store.value != Const(0, "int32") for _, store in stores(start)):
            raise CompileError(
                f"sums in tile registers begin with 0, found another value in {self.buffer.name}"
            )
        self.product = _product_of(self.update, self.buffer)
        rows = bound_extent(self.product.rows[-1].extent, "rows") if self.product.rows else 1
        self.shape = Shape(rows // registers_of(rows), bound_extent(self.product.words.extent, "words"))
        self.places = list(self._row_places(rows))
        columns = bound_extent(self.product.columns.extent, "columns")
        self.columns = list(range(0, columns, COLUMNS))
        self.sums = len(self.places) * len(self.columns)
        # Products of the same columns in a row take a cycle for each row, of others 16 whatever the rows: if
        # registers suffice, those of the rows stay, and columns come one after the other (measured on one
        # Xeon: 7 rows 1.25 times as fast, 13 rows 1.1, 16 alike).
        self.rows_held = self.sums + len(self.places) < REGISTERS
        self.held = len(self.places if self.rows_held else self.columns)
        fits = self.shape.words <= WORDS and self.shape.rows <= ROWS and columns % COLUMNS == 0
        if rows % self.shape.rows or not fits or self.sums + self.held >= REGISTERS:
            raise CompileError(f"tile of {rows} x {columns} x {self.shape.words}: it does not fit registers")
        side_by_side = ((self.product.data, self.product.words), (self.product.weights, self.product.columns))
        if any(self._stride(load, (loop,)) != WORD_BYTES for load, loop in side_by_side):
            raise CompileError(f"{self.buffer.name}: words that tile registers take do not lie side by side")
        self.configuration = self.shape.configuration(self.sums, self.rows_held, self.held)
        for declaration in (CONFIGURE, RELEASE, *_OTHERS):
            self.writer.declare(declaration)

    @property
    def step_loop(self) -> str:
        """The variable of the loop that `step` stands for."""
        return self.product.words.var

    def begin(self) -> None:
        """All sums 0."""
        for number in range(self.sums):
            self._call(f"tilezero(i8 {number})")

    def step(self) -> None:
        """The products of as many words as a register has."""
        product = self.product
        data = [
            (product.data, values, self._stride(product.data, product.rows[-1:])) for values in self.places
        ]
        weights = [
            (product.weights, {product.columns.var: first}, self._stride(product.weights, (product.words,)))
            for first in self.columns
        ]
        held, streamed = (data, weights) if self.rows_held else (weights, data)
        for number, item in enumerate(held):
            self._load(self.sums + number, *item)
        free = itertools.cycle(range(self.sums + self.held, REGISTERS))
        for number, item in enumerate(streamed):
            register = next(free)
            self._load(register, *item)
            for other in range(self.held):
                row, column = (other, number) if self.rows_held else (number, other)
                pair = (self.sums + other, register) if self.rows_held else (register, self.sums + other)
                total = row * len(self.columns) + column
                operands = ", ".join(f"i8 {item}" for item in (total, *pair))
                self._call(f"{INSTRUCTIONS[product.function]}({operands})")

    def end(self) -> None:
        """All sums to memory."""
        columns = len(self.columns) * COLUMNS
        row_bytes = columns * WORD_BYTES
        for number in range(self.sums):
            row, column = divmod(number, len(self.columns))
            place = row * self.shape.rows * columns + column * COLUMNS
            pointer = self.memory.address(self.buffer, [], place, 1).pointer
            self._call(f"tilestored64(i8 {number}, ptr {pointer.text}, i64 {row_bytes})")

    def _row_places(self, rows: int) -> Iterator[dict[str, int]]:
        """The loop variables at the first row of each register."""
        *others, last = self.product.rows or (None,)
        outer = [range(bound_extent(loop.extent, loop.var)) for loop in others if loop is not None]
        names = [loop.var for loop in others if loop is not None]
        for values in itertools.product(*outer):
            for first in range(0, rows, self.shape.rows):
                own = {} if last is None else {last.var: first}
                yield dict(zip(names, values, strict=True)) | own

    def _stride(self, load: Load, loops: Sequence[For]) -> int:
        """Bytes between neighbours along the one loop; 0 without one."""
        names = {loop.var for loop in loops}
        terms, _ = self.memory.position(load.buffer, load.indices)
        if any(not name and self.memory.variables(term) & names for term, name, _ in terms):
            raise CompileError(f"{load.buffer.name}: elements along {', '.join(names)} are not evenly spaced")
        return sum(factor for _, name, factor in terms if name in names) * ITEM_BYTES[load.buffer.dtype]

    def _load(self, register: int, load: Load, values: dict[str, int], row_bytes: int) -> None:
        integers = self.memory.environment.integers
        product = self.product
        own = {product.words.var: 0, product.columns.var: 0, **values}
        integers.update(own)
        place = self.memory.place(load.buffer, load.indices)
        for name in own:
            del integers[name]
        assert place is not None  # there is no vector here
        self._call(f"tileloadd64(i8 {register}, ptr {place.pointer.text}, {_typed(integer(row_bytes))})")

    def _call(self, text: str) -> None:
        self.writer.emit(f"  call void @llvm.x86.{text}")


def _typed(value: Value) -> str:
    return f"{value.type} {value.text}"


def _flat(statement: Statement) -> Iterator[Statement]:
    if isinstance(statement, Block):
        for item in statement.statements:
            yield from _flat(item)
    else:
        yield statement


def _product_of(update: Statement, buffer: Buffer) -> _Product:
    """The innermost loops of a sum: words, rows and columns."""
    loops = []
    statement = update
    while isinstance(statement, For):
        loops.append(statement)
        statement = statement.body
    rows = tuple(loop for loop in loops if loop.kind is LoopKind.UNROLLED)
    serial = [loop for loop in loops if loop.kind is LoopKind.SERIAL]
    match statement, loops[-1:]:
        case (
            Store(written, _, Binary("+", Load(read), Call(function, (Load() as data, Load() as weights)))),
            [For(kind=LoopKind.VECTORIZED) as columns],
        ) if written == read == buffer and function in INSTRUCTIONS and serial:
            if (*serial, *rows, columns) == tuple(loops):
                return _Product(serial[-1], rows, columns, function, data, weights)
    raise CompileError(f"the sums of {buffer.name} are no products of bytes that tile registers take")
