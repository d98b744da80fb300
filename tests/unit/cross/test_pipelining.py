"""Loops of cores in order that load what the next iteration begins with: which, where, and nothing else."""

from __future__ import annotations

import itertools
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from boards.board import load
from cross.codegen.instructions import (
    FENCE,
    Definition,
    Instruction,
    Line,
    Value,
    binary,
    call,
    element_pointer,
    integer,
    load_from,
)
from cross.codegen.llvm.module import llvm_module
from cross.codegen.scheduling.pipelining import MOST, Loop, Pipelined, pipelined
from cross.expression import Operator, placeholder
from cross.expression.families.conv import conv2d
from cross.expression.families.dense import dense
from cross.expression.families.window import Window
from cross.inspection.cpu_loops import inspect
from cross.loopnest import LoopNest, Programs
from cross.schedule import cpu_space
from tests.fuzz.kernels import Job, compile_jobs, run_emulated
from tests.interpreter.interpreter import interpret
from toolkit.measure import emulation

BOARD = load("emulated-a53")
TARGET = BOARD.target(None)
INDEX, INPUT = Value("%i", "int64"), Value("%x", "pointer")


def loop(heads: int = 3, sums: int = 24, factor: int = 20, extent: int = 5) -> Loop:
    """Of `sums` multiply-adds that read the first of `heads` vectors; an iteration moves them by `factor`."""
    place = Definition("%move", binary("mul", INDEX, integer(factor)))
    base = Definition("%base", element_pointer(INPUT, "float32", place.value))
    body: list[Line] = []
    for number in range(heads):
        pointer = Definition(f"%p{number}", element_pointer(base.value, "float32", integer(4 * number + 4)))
        body += [pointer, Definition(f"%v{number}", load_from(pointer.value, "float32", 4, 16))]
    for number in range(sums):
        terms = (Value("%v0", "float32", 4), Value("%v0", "float32", 4), Value(f"%r{number}", "float32", 4))
        body.append(Definition(f"%s{number}", call("llvm.fmuladd.v4f32", "float32", 4, terms)))
        if number % 3 == 2:
            body.append(FENCE)
    return Loop(INDEX, extent, [place, base], body)


def found(given: Loop) -> Pipelined | None:
    counter = itertools.count()
    return pipelined(given, lambda hint: f"%{hint}.{next(counter)}")


def value(name: str, lines: list[Line], known: dict[str, int]) -> int:
    """What an integer or an address in bytes is, by the definitions among the lines."""
    if name in known:
        return known[name]
    if not name.startswith("%"):
        return int(name)
    (instruction,) = (
        line.instruction for line in lines if isinstance(line, Definition) and line.name == name
    )
    operands = [value(operand.text, lines, known) for operand in instruction.operands]
    match instruction.op:
        case "getelementptr":
            return operands[0] + operands[1] * (1 if instruction.detail == "int8" else 4)
        case "add":
            return operands[0] + operands[1]
        case "mul":
            return operands[0] * operands[1]
        case "select":
            return operands[1] if operands[0] else operands[2]
        case "icmp slt":
            return operands[0] < operands[1]
        case "asm":
            return operands[0]
    raise AssertionError(instruction)


def loaded(lines: list[Line]) -> list[Definition]:
    return [line for line in lines if isinstance(line, Definition) and line.instruction.op == "load volatile"]


@pytest.mark.parametrize("factor", [1, 20])
def test_each_half_comes_from_where_the_next_iteration_reads_it(factor: int) -> None:
    given = loop(factor=factor)
    after = found(given)
    assert after is not None and len(after.carried) == 6
    lines = [*given.prologue, *after.body]
    places = [8 * half + 16 * number + 16 for number in range(3) for half in range(2)]
    for iteration in range(5):
        following = min(iteration + 1, 4)  # the last one loads its own once more
        known = {"%i": iteration, "%x": 0}
        addresses = [value(line.instruction.operands[0].text, lines, known) for line in loaded(after.body)]
        assert addresses == [4 * factor * following + place for place in places]
    first = [
        value(line.instruction.operands[0].text, after.before, {"%x": 0}) for line in loaded(after.before)
    ]
    assert first == places


def test_a_loop_defines_what_it_did_and_loads_no_vector_where_it_begins() -> None:
    given = loop()
    after = found(given)
    assert after is not None
    names = Counter(line.name for line in after.body if isinstance(line, Definition))
    assert names.keys() >= {line.name for line in given.body if isinstance(line, Definition)}
    assert set(names.values()) == {1}
    assert not any(isinstance(line, Definition) and line.instruction.op == "load" for line in after.body)
    seen = {"%i", "%x", "%base", *(item.name for item in after.carried), *(f"%r{n}" for n in range(24))}
    for line in after.body:
        if isinstance(line, Definition):
            assert seen.issuperset(line.instruction.uses)
            seen.add(line.name)
    assert seen.issuperset(item.after for item in after.carried)


def test_halves_are_loaded_beside_the_last_multiply_adds_and_no_more_than_registers_last_for() -> None:
    after = found(loop(heads=12, sums=60))
    assert after is not None and len(after.carried) == 2 * MOST
    kinds = [
        line.instruction.op
        for line in after.body
        if isinstance(line, Definition) and line.instruction.op in ("call", "load volatile")
    ]
    assert kinds[-4 * MOST :] == ["call", "load volatile"] * (2 * MOST)
    few = found(loop(heads=12, sums=7))
    assert few is not None and len(few.carried) == 6  # of three vectors: beside seven multiply-adds


def body_with(given: Loop, *lines: Line) -> Loop:
    return replace(given, body=[*lines, *given.body])


MEMORY = Definition("%from", load_from(INPUT, "int64", 1, 8))
OTHERS: dict[str, Loop] = {
    "one iteration": loop(extent=1),
    "not arranged": replace(loop(), body=[line for line in loop().body if line != FENCE]),
    "a store": replace(
        loop(), body=[*loop().body, Instruction("store", "", 1, (Value("%s0", "float32", 4), INPUT), 16)]
    ),
    "text": body_with(loop(), "  ; text"),
    "no sums": loop(sums=0),
    "no loads of vectors": loop(heads=0),
    "a place from memory": replace(
        loop(), prologue=[MEMORY, Definition("%base", element_pointer(INPUT, "float32", MEMORY.value))]
    ),
    "a place that moves unevenly": replace(
        loop(),
        prologue=[
            Definition("%move", Instruction("urem", "int64", 1, (INDEX, integer(3)))),
            Definition("%base", element_pointer(INPUT, "float32", Value("%move", "int64"))),
        ],
    ),
}


@pytest.mark.parametrize("what", OTHERS)
def test_other_loops_stay_as_they_are(what: str) -> None:
    assert found(OTHERS[what]) is None


def nest_of(operator: Operator) -> LoopNest:
    space = cpu_space(operator, TARGET, winograd=False)
    return Programs(space).nest(space.default())


def operators() -> list[Operator]:
    found = []
    for size, kernel, inside, outside in ((14, 1, 64, 36), (7, 1, 20, 24), (14, 3, 8, 12)):
        data, weight = (
            placeholder((1, size, size, inside), "X"),
            placeholder((kernel, kernel, inside, outside), "W"),
        )
        output = conv2d(data, weight, Window(pads=(kernel // 2,) * 4))
        found.append(Operator("conv", (data, weight), output, frozenset({1})))
    data, weight = placeholder((7, 96), "X"), placeholder((96, 20), "W")
    found.append(Operator("dense", (data, weight), dense(data, weight), frozenset({1})))
    return found


def in_memory(operator: Operator) -> list[LoopNest]:
    """Programs whose sums are in memory: each iteration loads them, adds a part and stores them again."""
    space = cpu_space(operator, TARGET)
    described = space.describe(space.default()) | {"tiling": [1]}
    return [Programs(space).nest(space.parse(described | {"dense.acc.k": [steps]})) for steps in (4, 16)]


@pytest.mark.emulated
def test_kernels_compute_what_the_interpreter_does(tmp_path: Path) -> None:
    paths = emulation.find()
    if paths is None:
        pytest.skip("no emulation here; `make emulation` fetches it")
    rng, jobs = np.random.default_rng(11), []
    for operator in operators():
        inputs = [rng.standard_normal(item.shape).astype(np.float32) for item in operator.inputs]
        jobs.append(Job(nest_of(operator), inputs))
    assert all("phi i64 [ %ahead" in llvm_module("f", job.nest, TARGET) for job in jobs)
    inputs = [rng.standard_normal(item.shape).astype(np.float32) for item in operators()[-1].inputs]
    jobs += [Job(nest, inputs) for nest in in_memory(operators()[-1])]
    outputs = run_emulated(compile_jobs(jobs, TARGET), jobs, tmp_path, paths.command(BOARD.link.command))
    for job, got in zip(jobs, outputs, strict=True):
        want = interpret(job.nest, list(job.inputs))
        assert np.abs(got - want).max() <= 1e-4 * np.abs(want).max()


def test_a_product_of_seven_pixels_and_twelve_channels_takes_few_cycles() -> None:
    """84 multiply-adds and 19 vectors that are moved are 103 cycles; with loads at the start it took 117."""
    hot = inspect("conv", nest_of(operators()[0]), TARGET).hot
    assert hot is not None and (hot.fma, hot.spills) == (84, 0)
    assert hot.predictions[0].cycles <= 110
