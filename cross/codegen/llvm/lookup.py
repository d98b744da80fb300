"""Matrices of literals in LLVM IR.

Where the loops around are unrolled, an element is a literal, and what is multiplied by it is folded: nothing
is written for a product with 0, no multiplication for one with 1 or -1. So the transforms of Winograd
convolution become the additions that a person would write. Otherwise the element is loaded from an array.
"""

from __future__ import annotations

from collections.abc import Mapping

from cross.codegen.instructions import (
    Value,
    binary,
    element_pointer,
    integer,
    literal,
    load_from,
)
from cross.codegen.llvm.arithmetic import Arithmetic
from cross.expression.language.dtypes import FLOATS, ITEM_BYTES
from cross.expression.language.terms import Binary, Int, Lookup
from cross.loopnest.affine import substitute
from cross.loopnest.nodes import Expr, Var


def known_element(lookup: Lookup, integers: Mapping[str, int]) -> float | None:
    """The element, if row and column are integers once the variables of unrolled loops are."""
    row = known_integer(lookup.row, integers)
    column = None if row is None else known_integer(lookup.column, integers)
    return None if row is None or column is None else lookup.matrix[row][column]


def known_integer(expr: Expr, integers: Mapping[str, int]) -> int | None:
    """An integer expression's value, if it is one once the variables of unrolled loops are."""
    if isinstance(expr, Int):
        return expr.value
    if isinstance(expr, Var):
        return integers.get(expr.name)
    known: dict[Expr, Expr] = {Var(name): Int(value) for name, value in integers.items()}
    found = substitute(expr, known)
    return found.value if isinstance(found, Int) else None


def known_factor(product: Binary, integers: Mapping[str, int]) -> tuple[float, Expr] | None:
    """A product with a known element of a float matrix as (that element, the other factor)."""
    for one, other in ((product.left, product.right), (product.right, product.left)):
        if isinstance(one, Lookup) and one.dtype in FLOATS:
            element = known_element(one, integers)
            if element is not None:
                return element, other
    return None


def add_multiple(arithmetic: Arithmetic, start: Value, factor: float, value: Value) -> Value:
    """start + factor * value for a factor other than 0, with as few operations as it takes."""
    writer, lanes = arithmetic.writer, max(start.lanes, value.lanes)
    zero = writer.splat(literal(0.0, start.dtype), lanes)
    start, value = writer.splat(start, lanes), writer.splat(value, lanes)
    if factor == 1:
        return value if start == zero else writer.value(binary("fadd", start, value))
    if factor == -1:
        if start == zero:
            return arithmetic.negative(value)
        return writer.value(binary("fsub", start, value))
    multiple = writer.splat(literal(factor, value.dtype), lanes)
    if start == zero:
        return writer.value(binary("fmul", multiple, value))
    return arithmetic.multiply_add(multiple, value, start)


def load_element(arithmetic: Arithmetic, lookup: Lookup, row: Value, column: Value) -> Value:
    """The element at a row and column that are known only when the program runs."""
    writer = arithmetic.writer
    matrix = arithmetic.array([literal(value, lookup.dtype) for line in lookup.matrix for value in line])
    start = arithmetic.apply("*", [row, integer(len(lookup.matrix[0]))])
    place = arithmetic.apply("+", [start, column])
    address = writer.value(element_pointer(matrix, lookup.dtype, place))
    return writer.value(load_from(address, lookup.dtype, 1, ITEM_BYTES[lookup.dtype]))
