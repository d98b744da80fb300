"""LLVM instructions as values: what the code generator writes, the schedulers reorder and `printed` prints.

A function is a list of lines. What computes something is a `Definition`, what only has an effect an
`Instruction`; labels, branches, phis and allocas, which no scheduler moves, are text. Equal instructions
are equal tuples, so that a dictionary finds what is computed already.
"""

from __future__ import annotations

import functools
import math
import struct
from collections.abc import Callable, Iterable
from typing import Final, NamedTuple

import numpy as np

from cross.expression.language.dtypes import DTYPES, FLOATS, ITEM_BYTES

TYPES: Final = {**{name: row.llvm for name, row in DTYPES.items()}, "pointer": "ptr", "": "void"}
MULTIPLY_ADD: Final = "llvm.fmuladd"


@functools.cache
def vector_type(dtype: str, lanes: int) -> str:
    """The LLVM type of so many values of a dtype."""
    return TYPES[dtype] if lanes == 1 else f"<{lanes} x {TYPES[dtype]}>"


class Value(NamedTuple):
    """An SSA value or literal: its text, element dtype, and lanes (1 for a scalar)."""

    text: str
    dtype: str
    lanes: int = 1

    @property
    def type(self) -> str:
        """The value's LLVM type as text, such as `<8 x float>`."""
        return vector_type(self.dtype, self.lanes)

    @property
    def is_name(self) -> bool:
        """Whether an instruction or a parameter gives the value, and no literal or global."""
        return self.text.startswith("%")


class Instruction(NamedTuple):
    """An operation of LLVM on `operands`; `dtype` and `lanes` are of its result ("": it has none).

    `detail` is what is no value:

        load, load volatile, store, streamed store, masked load, masked store    alignment in bytes
        getelementptr                                            dtype of the elements that are counted
        insertelement, extractelement                            lane
        shufflevector                                            for every lane the lane of the operands
        call                                                     the function
        asm, asm sideeffect                                      the constraints; the assembly is empty
    """

    op: str
    dtype: str
    lanes: int
    operands: tuple[Value, ...]
    detail: int | str | tuple[int, ...] = ""

    @property
    def uses(self) -> list[str]:
        """The names among the operands."""
        return [operand.text for operand in self.operands if operand.text.startswith("%")]

    def renamed(self, names: dict[str, str]) -> Instruction:
        """This instruction with operands renamed: old names to new ones."""
        op, dtype, lanes, operands, detail = self  # `_replace` takes several times as long
        new = [Value(names[name], kind, width) if name in names else None for name, kind, width in operands]
        if not any(new):
            return self
        return Instruction(
            op, dtype, lanes, tuple([value or old for value, old in zip(new, operands, strict=True)]), detail
        )


class Definition(NamedTuple):
    """`name` is what the instruction computes."""

    name: str
    instruction: Instruction

    @property
    def value(self) -> Value:
        """The result."""
        return Value(self.name, self.instruction.dtype, self.instruction.lanes)


Line = Definition | Instruction | str


def instruction_of(line: Definition | Instruction) -> Instruction:
    """What a line does."""
    return line.instruction if isinstance(line, Definition) else line


# A scheduling fence: a label (codeview annotation) that instructions do not cross. No code comes of it.
FENCE: Final = Instruction("fence", "", 1, ())
FENCE_DECLARATION: Final = "void @llvm.codeview.annotation(metadata)"


# ------------------------------------------------------------------------------------------- instructions


def binary(op: str, left: Value, right: Value) -> Instruction:
    """An operation on two values of one type with a result of that type: "fadd", "mul", "and", ..."""
    return Instruction(op, left.dtype, left.lanes, (left, right))


def comparison(op: str, left: Value, right: Value) -> Instruction:
    """ "icmp slt", "fcmp ogt", ... of two values."""
    return Instruction(op, "bool", left.lanes, (left, right))


def conversion(op: str, value: Value, dtype: str) -> Instruction:
    """ "zext", "fptosi", "bitcast", ... to another dtype of as many lanes."""
    return Instruction(op, dtype, value.lanes, (value,))


def selection(condition: Value, then: Value, otherwise: Value) -> Instruction:
    """`then` where the condition holds, else `otherwise`; lane by lane if the condition is a vector."""
    return Instruction("select", then.dtype, then.lanes, (condition, then, otherwise))


def call(function: str, dtype: str, lanes: int, operands: Iterable[Value]) -> Instruction:
    """A call of a function, named without its @."""
    return Instruction("call", dtype, lanes, tuple(operands), function)


def load_from(pointer: Value, dtype: str, lanes: int, alignment: int) -> Instruction:
    """A load from an address that is a multiple of `alignment` bytes."""
    return Instruction("load", dtype, lanes, (pointer,), alignment)


def element_pointer(pointer: Value, dtype: str, distance: Value) -> Instruction:
    """The address so many elements behind a pointer."""
    return Instruction("getelementptr", "pointer", 1, (pointer, distance), dtype)


def insertion(vector: Value, element: Value, lane: int) -> Instruction:
    """The vector with another element in one lane."""
    return Instruction("insertelement", vector.dtype, vector.lanes, (vector, element), lane)


def extraction(vector: Value, lane: int) -> Instruction:
    """One lane of a vector."""
    return Instruction("extractelement", vector.dtype, 1, (vector,), lane)


def shuffle(vector: Value, lanes: tuple[int, ...], *other: Value) -> Instruction:
    """A vector of lanes of another, or of two of the same type, where the second one's are counted on."""
    return Instruction("shufflevector", vector.dtype, len(lanes), (vector, *other), lanes)


def passed_on(value: Value, constraints: str, others: Iterable[Value] = (), *, ordered: bool) -> Instruction:
    """The value through an empty piece of assembly, which LLVM cannot see through.

    `ordered`: behind everything that was ordered before, and behind what computes the `others`.
    """
    op = "asm sideeffect" if ordered else "asm"
    return Instruction(op, value.dtype, value.lanes, (value, *others), constraints)


def poison(dtype: str, lanes: int) -> Value:
    """A value of which no lane is ever read."""
    return Value("poison", dtype, lanes)


@functools.lru_cache(maxsize=4096)
def integer(value: int) -> Value:
    """A literal index."""
    return Value(str(value), "int64")


def literal(value: float | int | bool, dtype: str) -> Value:
    """A constant; floats are written by their bits, so that none is rounded twice."""
    if dtype == "bool":
        return Value("true" if value else "false", dtype)
    if dtype not in FLOATS:
        return Value(str(int(value)), dtype)
    return _float_literal(float(value), math.copysign(1.0, value), dtype)


@functools.lru_cache(maxsize=4096)
def _float_literal(value: float, sign: float, dtype: str) -> Value:
    """`sign` is that of the value: 0.0 and -0.0 are equal in Python."""
    return Value(_float_text(value, dtype), dtype)


@functools.lru_cache(maxsize=4096)
def literal_vector(value: Value, lanes: int) -> Value:
    """A literal in every lane."""
    return Value(f"splat ({value.type} {value.text})", value.dtype, lanes)


@functools.cache
def intrinsic_suffix(dtype: str, lanes: int) -> str:
    """How LLVM's intrinsics name a type, for example "v16f32"."""
    kind = TYPES[dtype]
    scalar = kind if kind.startswith("i") else f"f{8 * ITEM_BYTES[dtype]}"
    return f"v{lanes}{scalar}" if lanes > 1 else scalar


def is_multiply_add(instruction: Instruction) -> bool:
    """Whether it is a * b + c."""
    return instruction.op == "call" and str(instruction.detail).startswith(MULTIPLY_ADD)


def is_constant_place(instruction: Instruction) -> bool:
    """Whether it is an address a known number of elements behind a pointer that has a name."""
    if instruction.op != "getelementptr":
        return False
    base, distance = instruction.operands
    return base.is_name and not distance.is_name


# ------------------------------------------------------------------------------------------------ printing


def printed(lines: Iterable[Line]) -> list[str]:
    """The lines as LLVM IR."""
    texts = []
    for line in lines:
        if isinstance(line, Definition):
            texts.append(f"  {line.name} = {text_of(line.instruction)}")
        else:
            texts.append(line if isinstance(line, str) else f"  {text_of(line)}")
    return texts


def text_of(instruction: Instruction) -> str:
    """The instruction as LLVM IR."""
    form = _FORMS.get(instruction.op)
    if form is not None:
        return form(instruction)
    first, second = instruction.operands
    return f"{instruction.op} {first.type} {first.text}, {second.text}"


def _typed(operands: Iterable[Value]) -> str:
    return ", ".join(f"{vector_type(dtype, lanes)} {text}" for text, dtype, lanes in operands)


def _converted(instruction: Instruction) -> str:
    (value,) = instruction.operands
    return (
        f"{instruction.op} {value.type} {value.text} to {vector_type(instruction.dtype, instruction.lanes)}"
    )


def _loaded(instruction: Instruction) -> str:
    kind = vector_type(instruction.dtype, instruction.lanes)
    return f"{instruction.op} {kind}, {_typed(instruction.operands)}, align {instruction.detail}"


def _counted(instruction: Instruction) -> str:
    return f"getelementptr inbounds {TYPES[str(instruction.detail)]}, {_typed(instruction.operands)}"


def _of_lane(instruction: Instruction) -> str:
    return f"{instruction.op} {_typed(instruction.operands)}, i64 {instruction.detail}"


def _shuffled(instruction: Instruction) -> str:
    (source, *other), mask = instruction.operands, instruction.detail
    assert isinstance(mask, tuple)
    second = other[0].text if other else "poison"
    places = f"<{', '.join(f'i32 {lane}' for lane in mask)}>" if any(mask) else "zeroinitializer"
    return f"shufflevector {source.type} {source.text}, {source.type} {second}, <{len(mask)} x i32> {places}"


def _called(instruction: Instruction) -> str:
    kind = vector_type(instruction.dtype, instruction.lanes)
    return f"call {kind} @{instruction.detail}({_typed(instruction.operands)})"


def _assembled(instruction: Instruction) -> str:
    kind = vector_type(instruction.dtype, instruction.lanes)
    return f'call {kind} {instruction.op} "", "{instruction.detail}"({_typed(instruction.operands)})'


def masked_load_function(dtype: str, lanes: int) -> str:
    """The intrinsic behind a "masked load"."""
    return f"llvm.masked.load.{intrinsic_suffix(dtype, lanes)}.p0"


def masked_store_function(dtype: str, lanes: int) -> str:
    """The intrinsic behind a "masked store"."""
    return f"llvm.masked.store.{intrinsic_suffix(dtype, lanes)}.p0"


def _masked_load(instruction: Instruction) -> str:
    pointer, mask = instruction.operands
    kind = vector_type(instruction.dtype, instruction.lanes)
    function = masked_load_function(instruction.dtype, instruction.lanes)
    address = f"ptr align {instruction.detail} {pointer.text}"
    return f"call {kind} @{function}({address}, {_typed((mask,))}, {kind} zeroinitializer)"


def _stored(instruction: Instruction) -> str:
    return f"store {_typed(instruction.operands)}, align {instruction.detail}"


def _masked_store(instruction: Instruction) -> str:
    value, pointer, mask = instruction.operands
    function = masked_store_function(value.dtype, value.lanes)
    address = f"ptr align {instruction.detail} {pointer.text}"
    return f"call void @{function}({_typed((value,))}, {address}, {_typed((mask,))})"


_FORMS: Final[dict[str, Callable[[Instruction], str]]] = {
    **dict.fromkeys(
        ("zext", "sext", "trunc", "fpext", "fptrunc", "fptoui", "fptosi", "uitofp", "sitofp", "bitcast"),
        _converted,
    ),
    **dict.fromkeys(("load", "load volatile"), _loaded),
    **dict.fromkeys(("insertelement", "extractelement"), _of_lane),
    **dict.fromkeys(("asm", "asm sideeffect"), _assembled),
    "store": _stored,
    "streamed store": lambda instruction: f"{_stored(instruction)}, !nontemporal !{{i32 1}}",
    "masked load": _masked_load,
    "masked store": _masked_store,
    "getelementptr": _counted,
    "shufflevector": _shuffled,
    "select": lambda instruction: f"select {_typed(instruction.operands)}",
    "fneg": lambda instruction: f"fneg {_typed(instruction.operands)}",
    "call": _called,
    "fence": lambda instruction: 'call void @llvm.codeview.annotation(metadata !{!"tfb"})',
}


def _float_text(value: float, dtype: str) -> str:
    if dtype == "float64":
        return f"0x{struct.unpack('<Q', struct.pack('<d', value))[0]:016X}"
    if dtype == "bfloat16":
        return str(int(np.asarray(value, dtype).view(np.uint16)))
    if dtype == "float16":
        return f"0xH{struct.unpack('<H', struct.pack('<e', value))[0]:04X}"
    # LLVM writes a float as the double of the same value.
    rounded = struct.unpack("<f", struct.pack("<f", value))[0]
    return f"0x{struct.unpack('<Q', struct.pack('<d', rounded))[0]:016X}"
