"""What a tuned GPU kernel is, in numbers: read from its loops, or said by AutoTVM's knobs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from cross.loopnest.nodes import Allocate, Block, For, LoopKind, Statement
from cross.loopnest.threads import extent_of


class NoEqual(Exception):
    """The space has no such program; the message says what it has not."""


@dataclass(frozen=True, slots=True)
class Program:
    """The launch of a contraction by output axis; `written_out` by axis of the reduction: iterations.

    `others` are the threads of a block of the launches around it.
    """

    blocks: dict[str, int]
    threads: dict[str, int]
    elements: dict[str, int]
    lanes: int  # of the vectors along the last axis
    written_out: dict[str, int]
    others: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Equal:
    """A configuration of our space, described, and the program that both are."""

    configuration: dict[str, list[int]]
    program: Program


def contraction_of(launch: Statement, axes: Sequence[str], reduction: Sequence[str]) -> Program:
    """The program of a launch of a contraction, its loops named by stage, axis and level."""
    loops = {_place(loop): loop for loop in loops_of(launch)}
    vector = loops.get((axes[-1], 4))
    in_vectors = vector is not None and vector.kind is LoopKind.VECTORIZED
    return Program(
        blocks={axis: _extent(loops, axis, 0) for axis in axes},
        threads={axis: _extent(loops, axis, 2) for axis in axes},
        elements={axis: math.prod(_extent(loops, axis, level) for level in (1, 3, 4)) for axis in axes},
        lanes=_extent(loops, axes[-1], 4) if in_vectors else 1,
        written_out={axis: _written_out(loops, axis) for axis in reduction},
    )


def threads_of(launch: Statement) -> int:
    """How many threads a block of a launch has."""
    return math.prod(extent_of(loop) for loop in loops_of(launch) if loop.kind is LoopKind.THREAD)


def loops_of(statement: Statement) -> Iterator[For]:
    """All loops of a statement, those around others first."""
    match statement:
        case For(_, _, _, body):
            yield statement
            yield from loops_of(body)
        case Allocate(_, body):
            yield from loops_of(body)
        case Block(statements):
            for item in statements:
                yield from loops_of(item)
        case _:
            return


Loops = Mapping[tuple[str, int], For]


def _place(loop: For) -> tuple[str, int]:
    """The axis and the level of a loop called like y.acc.kh.1; -1 for loops of another kind."""
    name, _, level = loop.var.rpartition(".")
    return (name.rpartition(".")[2], int(level)) if level.isdigit() else (loop.var, -1)


def _extent(loops: Loops, axis: str, level: int) -> int:
    loop = loops.get((axis, level))
    return 1 if loop is None else extent_of(loop)


def _written_out(loops: Loops, axis: str) -> int:
    loop = loops.get((axis, 1))
    return extent_of(loop) if loop is not None and loop.kind is LoopKind.UNROLLED else 1
