"""Loads of a bound loop nest as LLVM values: addresses, guards, vectors, lanes that are not neighbours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import msgspec
from msgspec.structs import replace

from cross.codegen.instructions import (
    Instruction,
    Value,
    binary,
    call,
    conversion,
    element_pointer,
    integer,
    intrinsic_suffix,
    load_from,
    masked_load_function,
    selection,
    shuffle,
    vector_type,
)
from cross.codegen.llvm.integers import Integers
from cross.codegen.llvm.writer import Writer
from cross.errors import CompileError
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Binary, Int
from cross.loopnest.affine import Affine, affine, multiple_of, rejoined
from cross.loopnest.nodes import ZERO, Buffer, Expr, Load, Scope, Var, add, fold, mul

ZEROS = Value("@tfb.zeros", "pointer")  # zeros that guarded loads read instead of memory they may not touch
ZERO_BYTES = 512  # no single load is longer
LONGEST_STRIDE = 4
"""Of lanes that are picked out of vectors of neighbours: so many loads and shuffles, not a load for each."""


class Place(msgspec.Struct, frozen=True):
    """An address: pointer, distance in elements between lanes, and alignment in bytes."""

    pointer: Value
    stride: int
    alignment: int


class Offset(NamedTuple):
    """A row-major position as a sum: terms with the variable that each is, if it is one, and its factor."""

    terms: tuple[tuple[Expr, str, int], ...]
    constant: int


class Memory(Integers):
    """Reads buffers at the current place of a writer, under the guards that hold there."""

    def __init__(self, writer: Writer, pointers: Mapping[str, Value], masks: bool = False) -> None:
        super().__init__(writer)
        self.pointers = pointers
        self.loads_parts = masks  # of vectors, at the price of whole ones
        self.guards: list[Value] = []
        self.of_lane: dict[int, Value] = {}
        """While lanes are read one by one: by id, this lane of indices that were evaluated for all lanes."""
        self._offsets: dict[int, tuple[object, Affine]] = {}
        self._placed: dict[int, Offset] = {}

    def masks(self) -> list[Value]:
        """Conditions lane by lane under which memory may be touched."""
        used = self.used_lanes()
        return [guard for guard in self.guards if guard.lanes != 1] + ([] if used is None else [used])

    def offset(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Affine:
        """Row-major position as an affine form; kept, because unrolling asks for it again and again."""
        found = self._offsets.get(id(indices))
        if found is not None:
            return found[1]
        position: Expr = ZERO
        for index, extent in zip(indices, buffer.shape, strict=True):
            position = add(mul(position, extent), index)
        form = rejoined(affine(position))
        self._offsets[id(indices)] = (indices, form)
        return form

    def position(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Offset:
        """`offset` with its factors as numbers; kept, too."""
        found = self._placed.get(id(indices))
        if found is None:
            terms, constant = self.offset(buffer, indices)
            if not isinstance(constant, Int):
                raise CompileError(f"buffer {buffer.name}: offset {constant} is not bound")
            factors = [(term, factor.value) for term, factor in terms.items() if isinstance(factor, Int)]
            assert len(factors) == len(terms)
            named = ((term, term.name if isinstance(term, Var) else "", factor) for term, factor in factors)
            found = self._placed[id(indices)] = Offset(tuple(named), constant.value)
        return found

    def place(self, buffer: Buffer, indices: tuple[Expr, ...]) -> Place | None:
        """The address here; None where the lanes are not evenly spaced."""
        terms, fixed = self.position(buffer, indices)
        environment = self.environment
        integers, vector = environment.integers, environment.vector
        stride, moving = 0, []
        for term, name, factor in terms:
            if name in integers:
                fixed += factor * integers[name]
            elif vector is not None and name == vector[0]:
                fixed += factor * vector[1]
                stride = factor
            elif vector is not None and not name and vector[0] in self.variables(term):
                return None
            else:
                moving.append((term, factor))
        return self.address(buffer, moving, fixed, stride)

    def address(self, buffer: Buffer, moving: list[tuple[Expr, int]], fixed: int, stride: int) -> Place:
        pointer, alignment = self.moved(buffer, moving)
        if fixed:
            element = stored_dtype(buffer.dtype)
            pointer = self.writer.value(element_pointer(pointer, element, integer(fixed)))
        return Place(pointer, stride, _common_alignment(alignment, fixed * ITEM_BYTES[buffer.dtype]))

    def moved(self, buffer: Buffer, moving: list[tuple[Expr, int]]) -> tuple[Value, int]:
        """Where a buffer begins, moved by loop variables, and the alignment of that address in bytes.

        Each element of an unrolled tile asks for it: it is kept as long as the block is open in which it is
        known. A term is named by its id; it lives as long as the `offset` that it is from.
        """
        pointer = self.pointers[buffer.name]
        key = (pointer.text, *((id(term), coefficient) for term, coefficient in moving))
        found = self.writer.known_address(key)
        if found is not None:
            return found
        alignment, parts = 64, []
        for term, coefficient in moving:
            picked = self.of_lane.get(id(term))
            if picked is None:
                parts.append((self.depth_of(term), self.integer(term), coefficient))
            else:
                parts.append((None, picked, coefficient))
            distance_bytes = coefficient * multiple_of(term) * ITEM_BYTES[buffer.dtype]
            alignment = _common_alignment(alignment, distance_bytes)
        element = stored_dtype(buffer.dtype)
        for depth, value, coefficient in sorted(parts, key=lambda part: (part[0] is None, part[0])):
            distance = value
            if coefficient != 1:
                distance = self.arithmetic.apply("*", [value, integer(coefficient)], depth)
            pointer = self.writer.value(element_pointer(pointer, element, distance), depth=depth)
        integers = self.environment.integers.keys()
        depths = [depth for depth, _, _ in parts if depth is not None]
        if len(depths) == len(parts) and not any(self.variables(term) & integers for term, _ in moving):
            self.writer.blocks[max(depths, default=0)].addresses[key] = pointer, alignment
        return pointer, alignment

    def load(self, load: Load) -> Value:
        buffer = load.buffer
        if buffer.scope is Scope.REGISTER:
            return self.held(*self.register(load.buffer, load.indices))
        place = self.place(buffer, load.indices)
        if place is None:
            repeated = self.repeated(load)
            return self.gather(load) if repeated is None else repeated
        lanes = self.lanes if place.stride != 0 else 1
        if lanes == 1:
            return self.scalar_load(buffer, place.pointer, place.alignment)
        if place.stride == 1:
            return self.vector_load(buffer, place, lanes)
        if abs(place.stride) > min(LONGEST_STRIDE, lanes) or self.masks():
            return self.gather(load)
        return self.strided_load(buffer, place, lanes)

    def held(self, name: str, position: int, lanes: int) -> Value:
        """What registers hold at a position, or the lane of a vector there, as an index asks for it."""
        registers = self.environment.registers
        if lanes == 1 and (name, position, lanes) not in registers:
            for (other, first, width), value in registers.items():
                if other == name and first <= position < first + width:
                    return self.writer.extract(value, position - first)
        return registers[name, position, lanes]

    def read_key(self, buffer: Buffer, pointer: Value, lanes: int) -> tuple[str, str, int, int]:
        return ("load", pointer.text, lanes, self.environment.versions.get(buffer.name, 0))

    def scalar_load(self, buffer: Buffer, pointer: Value, alignment: int) -> Value:
        guards = [guard for guard in self.guards if guard.lanes == 1]
        if len(guards) < len(self.guards):
            guards.append(self.any_lane(self.masks()))
        for guard in guards:
            pointer = self.guarded_pointer(pointer, guard)
            alignment = min(alignment, ITEM_BYTES[buffer.dtype])
        loaded = self.writer.value(
            load_from(pointer, stored_dtype(buffer.dtype), 1, alignment),
            key=self.read_key(buffer, pointer, 1),
        )
        return self.writer.value(conversion("trunc", loaded, "bool")) if buffer.dtype == "bool" else loaded

    def guarded_pointer(self, pointer: Value, guard: Value) -> Value:
        """The pointer where the guard holds, else zeros: such a load stays in bounds and needs no branch."""
        return self.writer.value(selection(guard, pointer, ZEROS))

    def all_hold(self, masks: list[Value]) -> Value:
        """The conjunction of conditions, lane by lane."""
        mask = masks[0]
        for other in masks[1:]:
            mask = self.writer.value(binary("and", mask, other))
        return mask

    def any_lane(self, masks: list[Value]) -> Value:
        """Whether some lane wants a value that all lanes share."""
        mask = self.all_hold(masks)
        function = f"llvm.vector.reduce.or.{intrinsic_suffix(mask.dtype, mask.lanes)}"
        self.writer.declare(f"i1 @{function}({mask.type})")
        return self.writer.value(call(function, "bool", 1, (mask,)))

    def vector_load(self, buffer: Buffer, place: Place, lanes: int) -> Value:
        if buffer.dtype == "bool":  # a byte each in memory
            stored = self.vector_load(replace(buffer, dtype="uint8"), place, lanes)
            return self.writer.value(conversion("trunc", stored, "bool"))
        pointer, alignment = place.pointer, place.alignment
        masks = self.masks()
        for guard in self.guards:
            if guard.lanes == 1:
                pointer = self.guarded_pointer(pointer, guard)
        if not masks:
            return self.writer.value(
                load_from(pointer, buffer.dtype, lanes, alignment), key=self.read_key(buffer, pointer, lanes)
            )
        mask, kind = self.all_hold(masks), vector_type(buffer.dtype, lanes)
        function = masked_load_function(buffer.dtype, lanes)
        self.writer.declare(f"{kind} @{function}(ptr, {mask.type}, {kind})")
        alignment = ITEM_BYTES[buffer.dtype] if any(guard.lanes != 1 for guard in self.guards) else alignment
        return self.writer.value(
            Instruction("masked load", buffer.dtype, lanes, (pointer, mask), alignment),
            key=("masked", mask.text, self.read_key(buffer, pointer, lanes)),
        )

    def strided_load(self, buffer: Buffer, place: Place, lanes: int) -> Value:
        """Every stride-th element, picked out of vectors of neighbours. The last of these ends with the last
        element that is wanted, and with no longer strides than lanes the others end before it: no other
        memory is touched than lane by lane."""
        step = abs(place.stride)
        first = min(0, (lanes - 1) * place.stride)
        starts = [number * lanes for number in range(step - 1)] + [(lanes - 1) * (step - 1)]
        vectors = []
        for start in starts:
            distance = first + start
            pointer = self.writer.value(
                element_pointer(place.pointer, stored_dtype(buffer.dtype), integer(distance))
            )
            alignment = _common_alignment(place.alignment, distance * ITEM_BYTES[buffer.dtype])
            vectors.append(self.vector_load(buffer, Place(pointer, 1, alignment), lanes))
        elements = [lane * place.stride - first for lane in range(lanes)]
        if step == 1:
            return self.writer.value(shuffle(vectors[0], tuple(elements)))
        own = [min(element // lanes, step - 1) for element in elements]  # which vector has a lane's element
        found, places = vectors[0], elements  # of the lanes that are found already in what has been found
        for number, vector in enumerate(vectors[1:], start=1):
            places = [
                lanes + elements[lane] - starts[number] if own[lane] == number else places[lane] % lanes
                for lane in range(lanes)
            ]
            found, places = self.writer.value(shuffle(found, tuple(places), vector)), list(range(lanes))
        return found

    def repeated(self, load: Load) -> Value | None:
        """Elements next to each other of which several lanes each read one: an index with lane // n; None
        where it is no such index, or a guard differs from lane to lane."""
        vector = self.environment.vector
        assert vector is not None
        name, first, lanes = vector
        terms, _ = self.offset(load.buffer, load.indices)
        found = [(term, factor) for term, factor in terms.items() if name in self.variables(term)]
        if any(guard.lanes != 1 for guard in self.guards) or len(found) != 1:
            return None
        match found[0]:
            case (Binary("//", Var(), Int(repeats)), Int(1)):
                pass
            case _:
                return None
        start, end = first // repeats, (first + self.environment.used - 1) // repeats + 1
        quotient = Binary("//", Var(name), Int(repeats))
        element = Var(f"{name}.element")
        indices = tuple(_replaced(index, quotient, element) for index in load.indices)
        width = 1 << (end - start - 1).bit_length()
        if width > end - start and not self.loads_parts:
            return None
        used = self.environment.used
        self.environment.vector, self.environment.used = (element.name, start, width), end - start
        source = self.load(Load(load.buffer, indices)) if width > 1 else None
        self.environment.vector, self.environment.used = None, 0
        if source is None:
            self.environment.integers[element.name] = start
            source = self.load(Load(load.buffer, indices))
            del self.environment.integers[element.name]
        self.environment.vector, self.environment.used = vector, used
        if width == 1:
            return source
        places = tuple(lane // repeats - start for lane in self.places(first, lanes))
        return self.writer.value(shuffle(source, places))

    def gather(self, load: Load) -> Value:
        """Lane by lane: every lane is a scalar load of its own under its own guards. Indices that are read
        from memory are evaluated for all lanes at once."""
        environment, guards, outer = self.environment, self.guards, self.of_lane
        vector = environment.vector
        assert vector is not None
        name, first, _ = vector
        terms, _ = self.offset(load.buffer, load.indices)
        read = [term for term in terms if name in self.variables(term) and self.reads(term)]
        vectors = {id(term): self.evaluate(term) for term in read}
        lanes: list[Value] = []
        environment.vector = None
        for lane in range(environment.used):
            environment.integers[name] = first + lane
            self.guards = [self.writer.extract(guard, lane) for guard in guards]
            self.of_lane = {term: self.writer.extract(value, lane) for term, value in vectors.items()}
            place = self.place(load.buffer, load.indices)
            assert place is not None
            lanes.append(self.scalar_load(load.buffer, place.pointer, place.alignment))
        del environment.integers[name]
        environment.vector, self.guards, self.of_lane = vector, guards, outer
        return self.writer.join(lanes + lanes[-1:] * (vector[2] - environment.used))

    def register(self, buffer: Buffer, indices: tuple[Expr, ...]) -> tuple[str, int, int]:
        """Which register holds an element (or the lanes of a vector)."""
        terms, position = self.position(buffer, indices)
        integers, vector, lanes = self.environment.integers, self.environment.vector, 1
        for term, name, factor in terms:
            if name in integers:
                position += factor * integers[name]
            elif vector is not None and name == vector[0]:
                position += factor * vector[1]
                lanes = vector[2]
            else:
                raise CompileError(f"register buffer {buffer.name}: index term {term} is no constant")
        return (buffer.name, position, lanes)


def stored_dtype(dtype: str) -> str:
    """The dtype of elements in memory: a bool is a byte there."""
    return "int8" if dtype == "bool" else dtype


def _replaced(expr: Expr, old: Expr, new: Expr) -> Expr:
    """The integer expression with a sub-expression replaced."""
    if expr == old:
        return new
    if isinstance(expr, Binary):
        return fold(expr.op, _replaced(expr.left, old, new), _replaced(expr.right, old, new))
    return expr


def _common_alignment(alignment: int, distance_bytes: int) -> int:
    while distance_bytes % alignment:
        alignment //= 2
    return alignment
