"""What a reduction reads on a GPU: which operands a block can fetch into shared memory, and how much."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from boards.target import GpuLimits
from cross.expression.language.affine import affine
from cross.expression.language.dtypes import ITEM_BYTES
from cross.expression.language.tensor import Axis, Read
from cross.expression.language.terms import Select, Term, walk
from cross.schedule.space import Constraint, Values

SHARED_ALIGNMENT = 16  # bytes: every array in shared memory starts at a multiple
Sizes = Mapping[Axis, NDArray[np.int64]]
"""How far a block's tile reaches along every axis, for N configurations."""


Bytes = TypeVar("Bytes", int, NDArray[np.int64])


class SharedOperand(msgspec.Struct, frozen=True):
    """A tensor read at one place: per dimension, the coefficients of the reduction's axes."""

    name: str
    dtype: str
    dimensions: tuple[Mapping[Axis, int], ...]
    contiguous: int  # elements of the last dimension

    def region(self, sizes: Sizes) -> list[NDArray[np.int64]]:
        """How many elements of every dimension a tile reads, [N] each."""
        found = []
        for coefficients in self.dimensions:
            reach = np.ones(count(sizes), dtype=np.int64)
            for axis, coefficient in coefficients.items():
                reach = reach + coefficient * (sizes[axis] - 1)
            found.append(reach)
        return found

    def region_bytes(self, sizes: Sizes) -> NDArray[np.int64]:
        """The shared memory that a tile of the operand takes, [N]."""
        return shared_size(ITEM_BYTES[self.dtype] * np.prod(self.region(sizes), axis=0))


def count(columns: Mapping[Any, NDArray[np.int64]]) -> int:
    """N, of columns for N configurations."""
    return len(next(iter(columns.values())))


def product(values: Values, fields: Sequence[str]) -> NDArray[np.int64]:
    """Of some fields, [N]."""
    return np.asarray(np.prod([values[name] for name in fields], axis=0))


def register_limits(
    name: str,
    rule: str,
    threads: Sequence[str],
    needed: Callable[[Values], NDArray[np.int64]],
    limits: GpuLimits,
) -> Constraint:
    """That a thread, and a block of so many (the product of these fields), need no more registers than
    there are, where the board's driver says how many."""

    def fits(values: Values) -> NDArray[np.bool_]:
        registers, most = needed(values), limits.registers_of_a_launch
        enough = registers <= limits.registers_per_thread
        return np.asarray(enough & (registers * product(values, threads) <= most) if most else enough)

    return Constraint(name, rule, fits, needed)


def shared_size(content: Bytes) -> Bytes:
    """The shared memory that an array of so many bytes takes up."""
    return -(-content // SHARED_ALIGNMENT) * SHARED_ALIGNMENT


def shared_operands(body: Term) -> list[SharedOperand]:
    """The operands of a reduction that can be fetched by tiles: read once, unguarded, at affine indices."""
    guarded = {
        inner.tensor.name
        for term in walk(body)
        if isinstance(term, Select)
        for inner in walk(term)
        if isinstance(inner, Read)
    }
    places: dict[str, dict[tuple[Term, ...], Read]] = {}
    for term in walk(body):
        if isinstance(term, Read):
            places.setdefault(term.tensor.name, {})[term.indices] = term
    found = []
    for name, reads in places.items():
        read, *others = reads.values()
        dimensions = [coefficients(index) for index in read.indices]
        if others or name in guarded or not dimensions or None in dimensions:
            continue
        affine = tuple(item for item in dimensions if item is not None)
        found.append(SharedOperand(name, read.dtype, affine, read.tensor.shape[-1]))
    return found


def coefficients(index: Term) -> Mapping[Axis, int] | None:
    """What a step of each axis adds to an index; None where that varies or is negative."""
    found = affine(index)
    return None if found is None or min(found[0].values(), default=0) < 0 else found[0]
