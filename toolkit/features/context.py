"""Loop context features of whole batches: the same nest evaluated over arrays of knob values.

Every structure of a space is lowered once. Its loop lengths, strides and touched ranges are expressions
over knobs; evaluating them with the knob columns of N configurations gives the features of all N at once
(paper, Table 2). plain.py is the specification.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from cross.expression.terms import ITEM_BYTES
from cross.loopnest.bind import RUNNING_LOOP
from cross.loopnest.nodes import (
    Allocate,
    Binary,
    Block,
    Expr,
    For,
    Int,
    Knob,
    LoopKind,
    LoopNest,
    Statement,
    Store,
)
from cross.loopnest.program import Programs
from cross.schedule.space import Batch, ScheduleSpace
from toolkit.features.chain import Access, Chain, longest_chain
from toolkit.features.plain import ACCESS_FEATURES, KINDS, LOOP_FEATURES, NEST_FEATURES

Column = NDArray[np.float64]
Knobs = Mapping[str, NDArray[np.int64]]
_ARITHMETIC = {
    "+": np.add,
    "-": np.subtract,
    "*": np.multiply,
    "//": np.floor_divide,
    "min": np.minimum,
    "max": np.maximum,
}


class ContextFeatures:
    """Features of the configurations of one space: call it with a batch.

    Rows of structures with fewer loops than the deepest one end in zeros.
    """

    def __init__(self, programs: Programs) -> None:
        self.space = programs.space
        self._structures = {
            structure: _Structure(programs.parametric(structure).nest)
            for structure in self.space.structures()
        }
        self.width = max(structure.width for structure in self._structures.values())

    def __call__(self, batch: Batch) -> NDArray[np.float32]:
        """float32 [N, width] for int64 [N, K]."""
        result = np.zeros((len(batch), self.width), dtype=np.float32)
        number = np.zeros(len(batch), dtype=np.int64)
        for position in self.space.structural:
            number = number * self.space.shape[position] + batch[:, position]
        for index, first in zip(*np.unique(number, return_index=True), strict=True):
            rows = np.flatnonzero(number == index)
            chosen = tuple(int(batch[first, position]) for position in self.space.structural)
            structure = self._structures[chosen]
            result[rows, : structure.width] = structure.features(self.space.values(batch[rows]), len(rows))
        return result

    @property
    def names(self) -> list[str]:
        """A name per column, after the structure with the most loops."""
        deepest = max(self._structures.values(), key=lambda structure: structure.width)
        names = list(NEST_FEATURES)
        for loop in reversed(deepest.chain.loops):
            names += [f"{loop.var} {feature}" for feature in LOOP_FEATURES]
            for access in deepest.chain.accesses:
                names += [f"{loop.var} {access.buffer.name} {feature}" for feature in ACCESS_FEATURES]
        return names


def features(space: ScheduleSpace, batch: Batch) -> NDArray[np.float32]:
    """Features of a batch, float32 [N, F]; keep a ContextFeatures to ask more than once."""
    return ContextFeatures(Programs(space))(batch)


class _Structure:
    """One lowered nest, ready to be evaluated."""

    def __init__(self, nest: LoopNest) -> None:
        self.nest = nest
        self.chain: Chain = longest_chain(nest)
        per_loop = len(LOOP_FEATURES) + len(ACCESS_FEATURES) * len(self.chain.accesses)
        self.width = len(NEST_FEATURES) + per_loop * len(self.chain.loops)

    def features(self, knobs: Knobs, count: int) -> NDArray[np.float32]:
        """float32 [count, width]."""
        # Columns are rows here: each is written as one contiguous stretch, and log2 runs over all at once.
        table = np.zeros((self.width, count), dtype=np.float32)
        logarithmic = np.ones(self.width, dtype=np.bool_)
        chain, loops = self.chain, self.chain.loops
        table[0], table[1], table[2] = len(self.nest.body.statements), self.workspace_bytes(knobs), len(loops)
        lengths = [_evaluate(loop.extent, knobs) for loop in loops]
        top_down: list[Column | float] = [1.0]
        for length in lengths:
            top_down.append(top_down[-1] * length)
        unrolled = _unrolled(self.nest.body, knobs)
        touched = [_Touched(access, knobs) for access in chain.accesses]
        inside: Column | float = 1.0
        column = len(NEST_FEATURES)
        for position in reversed(range(len(loops))):
            loop, length = loops[position], lengths[position]
            inside = inside * length
            table[column] = length
            table[column + 1 : column + 5] = _kind(loop, unrolled)
            logarithmic[column + 1 : column + 5] = False
            table[column + 5], table[column + 6] = top_down[position], inside
            column += len(LOOP_FEATURES)
            for access in touched:
                elements = access.extend(loop.var, length)
                # The shared log2(1 + x) below must leave log2(ratio).
                table[column], table[column + 1] = elements, inside / elements - 1.0
                table[column + 2] = access.stride(loop.var)
                column += len(ACCESS_FEATURES)
        np.log2(table + np.float32(1.0), out=table, where=logarithmic[:, None])
        return table.T

    def workspace_bytes(self, knobs: Knobs) -> Column | float:
        total: Column | float = 0.0
        for buffer in self.nest.workspace:
            size: Column | float = float(ITEM_BYTES[buffer.dtype])
            for extent in buffer.shape:
                size = size * _evaluate(extent, knobs)
            total = total + size
        return total


class _Touched:
    """How many elements of a buffer the loops seen so far touch, from the innermost outwards."""

    def __init__(self, access: Access, knobs: Knobs) -> None:
        self.strides = {name: np.abs(_evaluate(value, knobs)) for name, value in access.stride.items()}
        self.extents = [_evaluate(extent, knobs) for extent in access.buffer.shape]
        self.steps: dict[str, list[tuple[int, Column | float]]] = {}
        for dimension, coefficients in enumerate(access.dimensions):
            for name, value in coefficients.items():
                step = np.abs(_evaluate(value, knobs))
                self.steps.setdefault(name, []).append((dimension, step))
        self.ranges: list[Column | float] = [1.0] * len(access.dimensions)
        self.elements: Column | float = 1.0

    def extend(self, var: str, length: Column | float) -> Column | float:
        """Elements touched once this loop is inside as well."""
        if var in self.steps:
            for dimension, step in self.steps[var]:
                self.ranges[dimension] = self.ranges[dimension] + step * (length - 1.0)
            elements: Column | float = 1.0
            for reach, extent in zip(self.ranges, self.extents, strict=True):
                if not isinstance(reach, float) or reach > 1.0:
                    elements = elements * np.minimum(reach, extent)
            self.elements = elements
        return self.elements

    def stride(self, var: str) -> Column | float:
        return self.strides.get(var, 0.0)


def _kind(loop: For, unrolled: Mapping[str, NDArray[np.bool_]]) -> NDArray[np.float64]:
    """One-hot annotation, [4, 1] or [4, N]."""
    if loop.var not in unrolled:
        return np.array([[1.0 if loop.kind is kind else 0.0] for kind in KINDS])
    mask = unrolled[loop.var].astype(np.float64)
    zeros = np.zeros_like(mask)
    return np.stack([1.0 - mask, zeros, zeros, mask])


def _unrolled(body: Statement, knobs: Knobs) -> dict[str, NDArray[np.bool_]]:
    """For every loop with an unroll limit, where binding unrolls it (cross.loopnest.bind)."""
    result: dict[str, NDArray[np.bool_]] = {}

    def count(statement: Statement) -> Column | float:
        match statement:
            case Store():
                return 1.0
            case Block(statements):
                return sum((count(item) for item in statements), start=0.0)
            case Allocate(_, inner):
                return count(inner)
            case For():
                return loop_count(statement)

    def loop_count(loop: For) -> Column | float:
        inner, extent = count(loop.body), _evaluate(loop.extent, knobs)
        if loop.kind is LoopKind.VECTORIZED:
            return inner
        if loop.unroll_limit is not None:
            whole = inner * extent
            result[loop.var] = np.atleast_1d(whole <= _evaluate(loop.unroll_limit, knobs))
            return np.where(extent == 1, inner, np.where(result[loop.var], whole, RUNNING_LOOP))
        if loop.kind is LoopKind.UNROLLED:
            return inner * extent
        return np.where(extent == 1, inner, RUNNING_LOOP)

    count(body)
    return result


def _evaluate(expr: Expr, knobs: Knobs) -> Column | float:
    """An integer expression over knob columns; a float where no knob occurs."""
    match expr:
        case Int(value):
            return float(value)
        case Knob(name):
            return knobs[name].astype(np.float64)
        case Binary("ceildiv", left, right):
            quotient: Column = np.ceil(_evaluate(left, knobs) / _evaluate(right, knobs))
            return quotient
        case Binary(op, left, right):
            value_: Column = _ARITHMETIC[op](_evaluate(left, knobs), _evaluate(right, knobs))
            return value_
        case _:
            raise TypeError(f"no integer expression over knobs: {expr}")
