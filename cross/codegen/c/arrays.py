"""Buffers as C sees them: how an element, or a vector of them, is read and stored.

Half floats are another type in memory than as values: they are converted where they are read and stored
(Dialect.stored).
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager
from typing import Protocol

from cross.codegen.c.dialect import Dialect
from cross.errors import CompileError
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.terms import Int
from cross.loopnest.affine import affine, multiple_of
from cross.loopnest.bounds import is_index
from cross.loopnest.nodes import ZERO, Buffer, Expr, Scope, Var, add, mul, variables

MAX_ELEMENTS = 2**31 - 1  # indices are int
LONGEST_ACCESS_BYTES = 16  # where vectors must be aligned


class Indices(Protocol):
    """What writes the indices of an element: Values of c_values.py."""

    dialect: Dialect

    def integer(self, expression: Expr) -> str:
        """The text of an index."""

    def scalar(self, expression: Expr) -> str:
        """The text of a scalar."""

    def type(self, dtype: str) -> str:
        """The C type of a dtype's values."""

    def lane(self, var: str, number: int) -> AbstractContextManager[None]:
        """Within, a variable has the value of one lane."""


class Array:
    """A buffer as C sees it: a pointer with one index, or an array with an index a dimension.

    Args:
        buffer: a bound buffer.
        name: its C name.
        dropped: dimensions that are left out: a thread has its own, or they have one element.
        lanes: for registers held as vectors, elements of one (the last dimension); else 0.
    """

    def __init__(
        self, buffer: Buffer, name: str, dropped: frozenset[int] = frozenset(), lanes: int = 0
    ) -> None:
        self.buffer = buffer
        self.name = name
        self.lanes = lanes
        self.flat = buffer.scope in (Scope.ARGUMENT, Scope.WORKSPACE)
        self.extents = [extent.value for extent in buffer.shape if isinstance(extent, Int)]
        last = len(self.extents) - (1 if lanes else 0)
        self.kept = [place for place in range(last) if place not in dropped and self.extents[place] > 1]
        if math.prod(self.extents) > MAX_ELEMENTS:
            raise CompileError(
                f"buffer {buffer.name} has more than {MAX_ELEMENTS} elements, which int cannot count"
            )

    @property
    def dimensions(self) -> str:
        """The dimensions of a declaration."""
        return "".join(f"[{self.extents[place]}]" for place in self.kept)

    @property
    def space(self) -> str:
        """OpenCL's address space."""
        return "__global" if self.flat else "__local"

    def converts(self, dialect: Dialect) -> bool:
        """Whether elements in memory are of another type than their values."""
        return self.buffer.dtype in dialect.stored and (self.flat or self.buffer.scope is Scope.SHARED)

    def load(self, values: Indices, indices: tuple[Expr, ...]) -> str:
        """The value of one element."""
        element = self.element(values, indices)
        if not self.converts(values.dialect):
            return element
        template = values.dialect.load[self.buffer.dtype]
        return template.format(space=self.space, lanes="", address=f"&{element}")

    def element(self, values: Indices, indices: tuple[Expr, ...]) -> str:
        """One element; of a register of vectors the component that the last index names."""
        if self.flat:
            return f"{self.name}[{values.integer(self.offset(indices))}]"
        text = self.name + "".join(f"[{values.integer(indices[place])}]" for place in self.kept)
        if self.lanes:
            return f"{text}.s{int(values.scalar(indices[-1])):x}"
        return text

    def offset(self, indices: tuple[Expr, ...]) -> Expr:
        """The row-major position of an element."""
        result: Expr = ZERO
        for index, extent in zip(indices, self.extents, strict=True):
            result = add(mul(result, Int(extent)), index)
        return result

    def vector(self, values: Indices, indices: tuple[Expr, ...], var: str, lanes: int) -> str | None:
        """The elements of all lanes where they are one vector; else None."""
        place = self.place(values, indices, var, lanes)
        if place is None or self.lanes:
            return place
        kind, template = values.type(self.buffer.dtype), values.dialect.load_vector
        if self.converts(values.dialect):
            template = values.dialect.load[self.buffer.dtype]
        return template.format(type=kind, space=self.space, lanes=lanes, address=place)

    def vector_assignment(self, values: Indices, place: str, lanes: int, value: str) -> str:
        """The statement that stores a vector at the place that `place` gave."""
        if self.lanes:
            return f"{place} = {value};"
        kind, template = values.type(self.buffer.dtype), values.dialect.store_vector
        if self.converts(values.dialect):
            template = values.dialect.store[self.buffer.dtype]
        return template.format(type=kind, space=self.space, lanes=lanes, address=place, value=value)

    def place(self, values: Indices, indices: tuple[Expr, ...], var: str, lanes: int) -> str | None:
        """Where all lanes are one vector: a register of vectors, or the address of lane 0; else None."""
        if self.lanes:
            own = self.name + "".join(f"[{values.integer(indices[place])}]" for place in self.kept)
            return own if self.lanes == lanes and indices[-1] == Var(var) else None
        return self._address(values, indices, var, lanes)

    def _address(self, values: Indices, indices: tuple[Expr, ...], var: str, lanes: int) -> str | None:
        if not self._is_contiguous(indices, var) or (not self.flat and self.buffer.scope is not Scope.SHARED):
            return None
        item_bytes = ITEM_BYTES[self.buffer.dtype]
        if values.dialect.vector_alignment and (
            lanes * item_bytes > LONGEST_ACCESS_BYTES
            or multiple_of(self.offset(indices), var) % lanes
            or self.buffer.dtype not in ("float16", "float32")
        ):
            return None
        with values.lane(var, 0):
            return f"&{self.element(values, indices)}"

    def _is_contiguous(self, indices: tuple[Expr, ...], var: str) -> bool:
        if any(var in variables(index) for index in indices[:-1]) or not is_index(indices[-1]):
            return False
        terms, _ = affine(indices[-1])
        others = [term for term in terms if term != Var(var)]
        return terms.get(Var(var)) == Int(1) and not any(var in variables(term) for term in others)
