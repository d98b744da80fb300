"""Matrices of literals in LLVM IR.

Where the loops around are unrolled, an element is a literal, and what is multiplied by it is folded: nothing
is written for a product with 0, no multiplication for one with 1 or -1. So the transforms of Winograd
convolution become the additions that a person would write. Otherwise the element is loaded from an array.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

from cross.codegen.llvm_arithmetic import Arithmetic, suffix
from cross.codegen.llvm_text import ELEMENT_TYPES, Value, Writer, literal
from cross.expression.terms import FLOATS
from cross.loopnest.affine import substitute
from cross.loopnest.nodes import Binary, Expr, Int, Lookup, Var


def known_element(lookup: Lookup, integers: Mapping[str, int]) -> float | None:
    """The element, if row and column are integers once the variables of unrolled loops are."""
    known: dict[Expr, Expr] = {Var(name): Int(value) for name, value in integers.items()}
    row, column = substitute(lookup.row, known), substitute(lookup.column, known)
    if isinstance(row, Int) and isinstance(column, Int):
        return lookup.matrix[row.value][column.value]
    return None


def known_factor(product: Binary, integers: Mapping[str, int]) -> tuple[float, Expr] | None:
    """A product with a known element of a float matrix as (that element, the other factor)."""
    for one, other in ((product.left, product.right), (product.right, product.left)):
        if isinstance(one, Lookup) and one.dtype in FLOATS:
            element = known_element(one, integers)
            if element is not None:
                return element, other
    return None


def add_multiple(writer: Writer, start: Value, factor: float, value: Value) -> Value:
    """start + factor * value for a factor other than 0, with as few operations as it takes."""
    lanes = max(start.lanes, value.lanes)
    zero = writer.splat(literal(0.0, start.dtype), lanes).text
    start, value = writer.splat(start, lanes), writer.splat(value, lanes)
    kind, dtype = value.type, value.dtype

    def write(instruction: str) -> Value:
        return writer.value(instruction, dtype, lanes)

    if factor == 1:
        return value if start.text == zero else write(f"fadd {kind} {start.text}, {value.text}")
    if factor == -1:
        if start.text == zero:
            return write(f"fneg {kind} {value.text}")
        return write(f"fsub {kind} {start.text}, {value.text}")
    multiple = writer.splat(literal(factor, dtype), lanes)
    if start.text == zero:
        return write(f"fmul {kind} {multiple.text}, {value.text}")
    function = f"@llvm.fmuladd.{'v' + str(lanes) if lanes > 1 else ''}{suffix(dtype)}"
    writer.declare(f"{kind} {function}({kind}, {kind}, {kind})")
    return write(f"call {kind} {function}({kind} {multiple.text}, {kind} {value.text}, {kind} {start.text})")


def load_element(writer: Writer, arithmetic: Arithmetic, lookup: Lookup, row: Value, column: Value) -> Value:
    """The element at a row and column that are known only when the program runs."""
    element = ELEMENT_TYPES[lookup.dtype]
    values = [literal(value, lookup.dtype).text for line in lookup.matrix for value in line]
    listed = ", ".join(f"{element} {value}" for value in values)
    name = f"@tfb.matrix.{hashlib.sha256(listed.encode()).hexdigest()[:16]}"
    kind = f"[{len(values)} x {element}]"
    writer.declarations.add(f"{name} = internal constant {kind} [{listed}], align 64")
    start = arithmetic.integer_binary("*", row, Value(str(len(lookup.matrix[0])), "int64"), None)
    place = arithmetic.integer_binary("+", start, column, None)
    address = writer.value(f"getelementptr inbounds {element}, ptr {name}, i64 {place.text}", "int64")
    return writer.value(f"load {element}, ptr {address.text}", lookup.dtype)
