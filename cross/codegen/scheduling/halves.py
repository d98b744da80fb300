"""Vectors of four floats that come in halves, through integer registers: a Cortex-A53 loads into those beside
multiply-adds, and two halves of different vectors are moved on in one cycle. Empty assembly keeps LLVM from
joining the halves to one load again. `define` writes an instruction and gives its result.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from cross.codegen.instructions import (
    Instruction,
    Value,
    element_pointer,
    insertion,
    integer,
    passed_on,
    poison,
)

FLOAT: Final = "float32"
LANES: Final = 4
HALF_BYTES: Final = 8

Define = Callable[[Instruction], Value]


def loaded(define: Define, pointer: Value, distance: int, alignment: int) -> Value:
    """The half so many bytes behind a pointer; `alignment` of the vector, in bytes."""
    place = define(element_pointer(pointer, "int8", integer(distance))) if distance else pointer
    half = define(Instruction("load volatile", "int64", 1, (place,), min(alignment, HALF_BYTES)))
    return define(passed_on(half, "=r,0", ordered=False))


def begun(define: Define, low: Value) -> Value:
    """A vector register with the low half."""
    return define(passed_on(define(insertion(poison("int64", 2), low, 0)), "=w,0", ordered=True))


def whole(define: Define, low: Value, high: Value) -> Instruction:
    """What `begun` gave with the other half, as floats."""
    return Instruction("bitcast", FLOAT, LANES, (define(insertion(low, high, 1)),))
